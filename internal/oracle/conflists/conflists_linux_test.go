// Package conflists compares this library with libcni on the configurations of the field's
// network engines, call by call, with recording executables in place of their plugins.
package conflists

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// The columns of the matrix beside versions.
const (
	asWritten = "as written"
	older     = "1.1.0, answered in 0.3.1"
)

// columns returns the ways to run a configuration. That of its own version runs as written.
func columns(s source, own string) []string {
	if s.fixed {
		return []string{asWritten}
	}
	versions := slices.DeleteFunc([]string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}, func(v string) bool { return v == own })
	return slices.Concat([]string{asWritten}, versions, []string{older})
}

// TestConflistsAsTheyAreWritten: each call that this library makes of an engine's plugins is
// the call that libcni makes, but for the differences that are listed.
func TestConflistsAsTheyAreWritten(t *testing.T) {
	m := &matrix{cells: map[string]map[string]*cell{}}
	t.Run("group", func(t *testing.T) {
		for _, s := range sources {
			t.Run(s.file, func(t *testing.T) {
				t.Parallel()
				m.run(t, s)
			})
		}
	})
	t.Log("\n" + m.String())
	if t.Failed() || len(m.cells) < len(sources) { // -run has skipped some
		return
	}
	for _, d := range differences {
		expect.That(t, m.differs[d.name] > 0, "listed, but not seen: %s", d.name)
	}
}

// run runs a configuration in each of its columns, one after the other on one host.
func (m *matrix) run(t *testing.T, s source) {
	h := testhost.New(t)
	h.NoBuiltins = true // libcni has none
	kept := container{"kept-1", h.Container("kept"), 8080}
	stale := container{"stale-2", h.Container("stale"), 8081}
	for _, column := range columns(s, versionOf(t, s.config(t))) {
		l := &life{t: t, h: h, source: s, column: column, cell: &cell{}, results: map[string]any{}}
		l.prepare()
		l.run(kept, stale)
		m.add(s.file, column, l.cell)
		if t.Failed() {
			t.Fatalf("failed: %s", column)
		}
	}
}

// life is the life of containers with both libraries, side by side.
type life struct {
	t      *testing.T
	h      *testhost.Host
	source source
	column string
	cell   *cell

	version      string
	plugins      []json.RawMessage // of the list, as they are written
	types        []string          // of executables
	ours, theirs library
	results      map[string]any // of the ADD of each container, in the configuration's version
	step         step
}

// run has all verbs in the latest version and in those that a file fixes; a GC deletes the stale
// container too. As it is written, a configuration is also deleted twice, and fails once.
func (l *life) run(kept, stale container) {
	all := l.version == "1.1.0" && l.column != older || l.source.fixed
	if all {
		l.both("STATUS", func(lib library) error { return lib.status() })
		l.add(stale)
	}
	l.add(kept)
	l.both("CHECK", func(lib library) error { return lib.check(kept) })
	if all {
		l.both("GC", func(lib library) error { return lib.gc(kept) })
		l.sameCache(kept)
		if l.cell.differs[gcRemoves] == 0 {
			l.sameCache(stale)
		}
	}
	l.both("DEL", func(lib library) error { return lib.del(kept) })
	l.sameCache(kept)
	if l.column == asWritten {
		l.both("DEL", func(lib library) error { return lib.del(kept) })
		l.failedAdd(kept)
	}
}

// prepare writes the configuration and the executables, and loads it with both libraries.
func (l *life) prepare() {
	l.t.Helper()
	config, dir := l.source.config(l.t), l.h.Path(l.column)
	switch l.column {
	case asWritten:
	case older:
		config = withVersion(l.t, config, "1.1.0")
	default:
		config = withVersion(l.t, config, l.column)
	}
	path := filepath.Join(dir, l.source.file)
	expect.NoError(l.t, os.MkdirAll(dir, 0o755))
	expect.NoError(l.t, os.WriteFile(path, config, 0o644))
	folder := strings.TrimSuffix(l.source.file, ".conflist")
	if _, err := os.Stat(filepath.Join("testdata", folder)); err == nil && isList(path) { // of more plugins
		expect.NoError(l.t, os.CopyFS(filepath.Join(dir, folder), os.DirFS(filepath.Join("testdata", folder))))
	}
	l.ours = ours(l.h, path)
	l.theirs = theirs(l.h, dir, l.ours.name)
	l.version, l.plugins = versionOf(l.t, config), pluginsOf(l.t, path, config)
	l.types = typesIn(l.t, l.plugins)
	l.h.Plugin(scripted.Script{}, l.types...)
	l.script("", scripted.Action{})
	if l.column == older {
		answer := fmt.Sprintf(`{"cniVersion": "0.3.1", "interfaces": [{"name": %q}],
			"ips": [{"version": "4", "interface": 0, "address": "10.9.0.2/24", "gateway": "10.9.0.1"}], "dns": {"domain": "<&>"}}`, ifName)
		l.script(typeOf(l.t, l.plugins[0]), scripted.Action{Stdout: &answer})
	}
}

// script writes the scripts of all executables: they delegate as their configuration says.
// The one of a type has an action for its ADD.
func (l *life) script(typ string, add scripted.Action) {
	l.t.Helper()
	for _, name := range l.types {
		s := scripted.Script{Log: l.h.Path("calls"), Delegates: true}
		if name == typ {
			s.Verbs = map[string]scripted.Action{"ADD": add}
		}
		expect.NoError(l.t, s.Save(l.h.Path("bin", name)+scripted.Beside))
	}
}

func typeOf(t *testing.T, plugin json.RawMessage) string {
	t.Helper()
	typ, _ := decoded(t, plugin)["type"].(string)
	return typ
}

// both has each library make a call, and compares the calls of plugins.
func (l *life) both(verb string, call func(library) error) {
	l.t.Helper()
	l.step = step{verb: verb, version: l.version, results: l.results}
	err := call(l.ours)
	got := l.h.TakeCalls()
	want := call(l.theirs)
	l.compare(got, l.h.TakeCalls())
	expect.That(l.t, (err == nil) == (want == nil), "%s: %v, libcni's %v", verb, err, want)
}

func (l *life) add(c container) {
	l.t.Helper()
	var results []*types100.Result
	l.both("ADD", func(lib library) error {
		result, err := lib.add(c)
		results = append(results, result)
		return err
	})
	expect.Must(l.t, results[0] != nil && results[1] != nil, "no result")
	want := expect.Value(results[1].GetAsVersion(results[0].CNIVersion))(l.t)
	expect.Same(l.t, "result", encoded(l.t, results[0]), encoded(l.t, want))
	l.sameCache(c)
	stated := expect.Value(results[1].GetAsVersion(cmp.Or(l.version, "0.1.0")))(l.t)
	l.results[c.id] = decoded(l.t, []byte(encoded(l.t, stated)))
}

// failedAdd has the last plugin fail. A caller of libcni then calls for a DEL.
func (l *life) failedAdd(c container) {
	l.t.Helper()
	refusal := `{"cniVersion": "0.4.0", "code": 100, "msg": "boom", "details": "of the test"}`
	l.script(typeOf(l.t, l.plugins[len(l.plugins)-1]), scripted.Action{Stdout: &refusal, Exit: 1})
	defer l.script("", scripted.Action{})
	_, err := l.ours.add(c)
	got := l.h.TakeCalls()
	_, want := l.theirs.add(c)
	expect.Says(l.t, "error", err, "boom")
	expect.Says(l.t, "libcni's error", want, "boom")
	expect.NoError(l.t, l.theirs.del(c))
	calls := l.h.TakeCalls()
	l.step = step{verb: "DEL", version: l.version, rollback: true, results: map[string]any{c.id: l.before(calls)}}
	l.compare(got, calls)
	l.sameCache(c)
}

// before returns the result of the plugins before the last one, which that one was given.
func (l *life) before(calls []scripted.Call) any {
	last := typeOf(l.t, l.plugins[len(l.plugins)-1])
	for _, call := range calls {
		if call.Verb == "ADD" && filepath.Base(call.Executable) == last {
			return decoded(l.t, []byte(call.Exact))["prevResult"]
		}
	}
	return nil
}

// sameCache compares what both have in libcni's cache of a container.
func (l *life) sameCache(c container) {
	l.t.Helper()
	got, want := l.ours.cached(l.t, c), l.theirs.cached(l.t, c)
	if !reflect.DeepEqual(got, want) {
		l.t.Errorf("cached of %s:\n got %s\nwant %s", c.id, encoded(l.t, got), encoded(l.t, want))
	}
}

// compare compares the calls of plugins that the two libraries have made.
func (l *life) compare(got, want []scripted.Call) {
	l.t.Helper()
	for _, d := range differences {
		if d.more != nil && d.more(l.step, got, want) {
			l.cell.differ(d.name)
			want = got
		}
	}
	expect.Must(l.t, len(got) == len(want), "%s: %d calls %v, libcni's are %d %v", l.step.verb, len(got), names(got), len(want), names(want))
	for i := range got {
		l.unchanged(got[i])
		ours, theirs := requestOf(l.t, got[i]), requestOf(l.t, want[i])
		s := l.step
		s.verb = ours.Verb
		for _, d := range differences {
			if d.even != nil && d.even(s, &ours, &theirs) {
				l.cell.differ(d.name)
			}
		}
		g, w := reflect.ValueOf(ours), reflect.ValueOf(theirs)
		for part := range g.NumField() {
			if of, its := g.Field(part).Interface(), w.Field(part).Interface(); !reflect.DeepEqual(of, its) {
				l.t.Errorf("call %d of %v, %s:\n got %s\nwant %s", i, names(got), g.Type().Field(part).Name, encoded(l.t, of), encoded(l.t, its))
			}
		}
		l.cell.calls++
	}
}

// unchanged checks that a plugin of the list gets each value of its configuration as it is
// written, to the byte. libcni does not do that.
func (l *life) unchanged(call scripted.Call) {
	l.t.Helper()
	var got map[string]json.RawMessage
	expect.NoError(l.t, json.Unmarshal([]byte(call.Exact), &got))
	for _, plugin := range l.plugins {
		typ := typeOf(l.t, plugin)
		if typ != call.Type || filepath.Base(call.Executable) != typ {
			continue
		}
		var written map[string]json.RawMessage
		expect.NoError(l.t, json.Unmarshal(plugin, &written))
		for key, value := range written {
			if !slices.Contains(runtimes, key) && !bytes.Equal(value, got[key]) {
				l.t.Errorf("%s %s gets %q: %s, written is %s", call.Verb, typ, key, got[key], value)
			}
		}
	}
}

// runtimes are the keys that a runtime writes, or does not hand on.
var runtimes = []string{"cniVersion", "cniVersions", "name", "capabilities", "runtimeConfig", "plugins"}

func requestOf(t *testing.T, call scripted.Call) request {
	t.Helper()
	r := request{Executable: call.Executable, Verb: call.Verb, NetNS: call.NetNo, Stdin: decoded(t, []byte(call.Exact)), Bytes: call.Exact}
	for _, v := range call.Env {
		if strings.HasPrefix(v, "CNI_") {
			r.Protocol = append(r.Protocol, v)
		} else {
			r.Others = append(r.Others, v)
		}
	}
	return r
}

// names renders calls as "ADD bridge".
func names(calls []scripted.Call) (all []string) {
	for _, c := range calls {
		all = append(all, c.Verb+" "+filepath.Base(c.Executable))
	}
	return all
}

// decoded reads an object, with the digits of its numbers.
func decoded(t *testing.T, data []byte) (object map[string]any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	err := dec.Decode(&object)
	expect.Must(t, err == nil, "%q: %v", data, err)
	return object
}

func encoded(t *testing.T, value any) string {
	t.Helper()
	return string(expect.Value(json.Marshal(value))(t))
}
