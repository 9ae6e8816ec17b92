package conflist

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

const root = "../../.."

// elsewhere lists directories outside the library: tests, programs, and
// packages that only these import.
var elsewhere = []string{
	"bench", "cmd", "cnitest", "examples", "internal/audit", "internal/faults", "internal/firewalldtest",
	"internal/lint", "internal/oracle", "internal/refplugins", "internal/sandbox", "internal/scripted", "internal/testhost",
}

// otherMeanings lists types whose names have another meaning in a directory or
// file: kinds of links, families of nf_tables, capabilities.
var otherMeanings = map[string][]string{
	"internal/kernel/links":     {Bridge, MACVLAN, Dummy},
	"internal/kernel/netfilter": {Bridge, Firewall}, // the beginning of an error
	"internal/kernel/nft":       {Bridge},
	"internal/builtin/lan":      {Bridge, MACVLAN, HostDevice},
	"internal/builtin/veth":     {Bridge}, // the plugin is there too
	"capability.go":             {Bandwidth},
	"internal/engine/leftovers": {Bandwidth, MACVLAN},
	"internal/builtin/portmap":  {Bridge}, // a kind of link
	"internal/run/contract":     {Bridge},
	"netconf":                   {Bandwidth, Bridge, VLAN}, // a capability and fields

}

// TestTypesAreNamedInTheTableOnly: outside the table and the plugin's own package,
// code asks for a type's properties or uses the constants.
func TestTypesAreNamedInTheTableOnly(t *testing.T) {
	expect.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, root+string(filepath.Separator)))
		if entry.IsDir() {
			if slices.Contains(elsewhere, name) || entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".") && path != root {
				return fs.SkipDir
			}
			return nil
		}
		if name == "internal/store/conflist/known.go" || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.HasSuffix(filepath.Dir(name), "test") {
			return nil
		}
		dir := filepath.ToSlash(filepath.Dir(name))
		for _, typ := range named(t, path) {
			own := dir == "internal/builtin/"+strings.ReplaceAll(typ, "-", "")
			if !own && !slices.Contains(otherMeanings[dir], typ) && !slices.Contains(otherMeanings[filepath.Base(name)], typ) {
				t.Errorf("%s names the plugin type %q: ask conflist.Known, or use the constant", name, typ)
			}
		}
		return nil
	}))
}

// named lists the string literals of a file that are types.
func named(t *testing.T, path string) (found []string) {
	t.Helper()
	file := expect.Value(parser.ParseFile(token.NewFileSet(), path, nil, 0))(t)
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			text, err := strconv.Unquote(lit.Value)
			if _, known := table[text]; known && err == nil {
				found = append(found, text)
			}
		}
		return true
	})
	return found
}

// TestTheTableIsConsistent checks the rules between columns.
func TestTheTableIsConsistent(t *testing.T) {
	for typ, row := range table {
		switch {
		case row.Swept && row.Makes == Unswept:
			t.Errorf("%s: the sweep does not know the interface", typ)
		case row.Makes == Moved && !row.Borrows:
			t.Errorf("%s: a moved interface is the host's", typ)
		}
	}
}
