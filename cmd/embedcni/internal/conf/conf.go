// Package conf finds mistakes in files of network configurations, and says where they are
// and how to mend them. It knows the fields of the reference plugins; the library's own
// reading of a file, and the STATUS of its built-in plugins, have the last word.
package conf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/embedcni/cni"
)

// Finding is a mistake in a file.
type Finding struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"` // from 1; 0: the file as a whole
	Column  int    `json:"column,omitempty"`
	Message string `json:"message"`
	Mend    string `json:"mend,omitempty"` // what to do
}

// String is the finding as compilers print theirs.
func (f Finding) String() string {
	at := f.File
	if f.Line > 0 {
		at = fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Column)
	}
	return at + ": " + f.Message
}

// Checker checks files.
type Checker struct {
	// PluginDirs are where plugins are that are not built in.
	PluginDirs []string

	named   map[string]string // the file of each network
	subnets []claimed
}

// claimed is a subnet of a network in an earlier file.
type claimed struct {
	prefix        netip.Prefix
	file, network string
	bridge        string
}

// Path checks a file, or the files of a directory that a Runtime would load, in their order.
// It returns how many files it has read.
func (c *Checker) Path(ctx context.Context, path string) (files int, all []Finding, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, nil, err
	}
	if !info.IsDir() {
		all, err = c.file(ctx, path)
		return 1, all, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return 0, nil, err
	}
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if e.IsDir() || strings.HasPrefix(e.Name(), ".") || !slices.Contains([]string{".conf", ".conflist", ".json"}, ext) {
			continue
		}
		found, err := c.file(ctx, filepath.Join(path, e.Name()))
		if err != nil {
			return files, all, err
		}
		files++
		all = append(all, found...)
	}
	return files, all, nil
}

// file checks one file.
func (c *Checker) file(ctx context.Context, path string) ([]Finding, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	k := &checked{Checker: c, path: path}
	if !info.Mode().IsRegular() { // to read a FIFO would wait
		k.add(-1, "it is no regular file", "delete it, or write the configuration into a file")
		return k.found, nil
	}
	if k.data, err = os.ReadFile(path); err != nil {
		return nil, err
	}
	v, err := parse(k.data)
	if syntax := (*syntaxError)(nil); errors.As(err, &syntax) {
		k.add(syntax.offset, "the file is no JSON: "+syntax.Error(), "look for a comma, a quote or a brace that is missing or too many before this place")
		return k.found, nil
	} else if err != nil {
		return nil, err
	}
	if v.kind != object {
		k.add(v.offset, fmt.Sprintf("the configuration is %s, not an object", v.kind), `write {"cniVersion": "1.0.0", "name": …, "plugins": […]}`)
		return k.found, nil
	}
	k.network(&v)
	refused := len(k.found) > 0
	k.hints(&v)
	if !refused { // else the library says the same in other words
		k.library(ctx, &v)
	}
	slices.SortStableFunc(k.found, func(a, b Finding) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
	return k.found, nil
}

// checked is a file that is being checked.
type checked struct {
	*Checker
	path  string
	data  []byte
	found []Finding
}

// add adds a finding at an offset of the file; a negative one is the file as a whole.
func (k *checked) add(offset int, message, mend string) {
	f := Finding{File: k.path, Message: message, Mend: mend}
	if offset >= 0 {
		f.Line, f.Column = position(k.data, offset)
	}
	k.found = append(k.found, f)
}

// plugins returns the plugins of a file of either form.
func (k *checked) plugins(v *value) []value {
	if !k.isList() {
		return []value{*v}
	}
	if p := v.get("plugins"); p != nil {
		return p.items
	}
	return nil
}

// isList tells the forms apart as the library does: by the file's name.
func (k *checked) isList() bool { return filepath.Ext(k.path) == ".conflist" }

// library has the library load the file, and asks the STATUS of each built-in plugin. The
// first finds what only it can know, such as a file that every user may write; the second
// refuses what every ADD would refuse. No executable runs.
func (k *checked) library(ctx context.Context, v *value) {
	load := cni.WithConfFile(k.path)
	if k.isList() {
		load = cni.WithConfListFile(k.path)
	}
	rt, err := cni.New(cni.WithBuiltinPlugins(), cni.WithPluginDir([]string{os.DevNull}), cni.WithLogger(nil), load)
	if err != nil {
		k.add(-1, strings.TrimPrefix(oneLine(err), k.path+": "), "") // its words have the mend
		return
	}
	for i, p := range k.plugins(v) {
		config := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "plugins": [%s]}`, v.str("name"), rt.GetConfig().Networks[0].Config.Plugins[i].Source)
		err := rt.StatusOf(ctx, []byte(config))
		var refused *cni.Error
		if !errors.As(err, &refused) || errors.Is(err, cni.ErrPluginNotFound) || refused.Code == codeUnavailable {
			continue // of the host, not of the file: ready says that
		}
		said := strings.TrimPrefix(refused.Msg, "plugin "+p.str("type")+": ")
		k.add(k.mentioned(&p, said), fmt.Sprintf("plugin %s would refuse every container: %s", p.str("type"), said), "")
	}
}

// codeUnavailable is the code of a plugin that cannot attach containers now (CNI
// specification 1.1.0, section 3, "STATUS").
const codeUnavailable = 50

// mentioned returns the place of the value that a message is most likely about: of the
// longest name or text in the message.
func (k *checked) mentioned(p *value, message string) int {
	best, at := "", p.offset
	var look func(v *value)
	look = func(v *value) {
		for i := range v.members {
			m := &v.members[i]
			s, _ := m.scalar.(string) // other kinds have no text
			for _, word := range []string{m.key, s} {
				if len(word) > len(best) && m.key != "type" && strings.Contains(message, word) {
					best, at = word, m.offset
				}
			}
			look(&m.value)
		}
		for i := range v.items {
			look(&v.items[i])
		}
	}
	look(p)
	return at
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
