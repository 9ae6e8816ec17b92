package cni_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// patience is how long a test waits for what must come, on the slowest machine.
const patience = testhost.Patience

// stage is a host whose plugins are scripted, each type by a script of its own
// that may be changed between calls. Its runtimes run plugins on the host
// whatever goroutine calls, and when the test is over nothing may be left
// running.
type stage struct {
	*host
	scripts map[string]scripted.Script
}

func newStage(t *testing.T) *stage {
	t.Helper()
	leavesNothingRunning(t)
	return &stage{newHost(t), map[string]scripted.Script{}}
}

func (s *stage) runtime(opts ...cni.Opt) *cni.Runtime {
	s.t.Helper()
	return s.host.runtime(append([]cni.Opt{cni.WithHostNetNS(s.path("netns", "host"))}, opts...)...)
}

// network makes a list of scripted plugins, and the plugins.
func (s *stage) network(name, version string, types ...string) []byte {
	s.t.Helper()
	paths := map[string]string{}
	for _, typ := range types {
		paths[typ] = s.plugin(s.scripts[typ], typ)
	}
	return conflist(name, version, paths, types...)
}

// on tells the plugins of a type what to do for a verb.
func (s *stage) on(typ, verb string, action scripted.Action) {
	s.t.Helper()
	script := s.scripts[typ]
	if script.Verbs == nil {
		script.Verbs = map[string]scripted.Action{}
	}
	script.Verbs[verb] = action
	s.scripts[typ] = script
	s.plugin(script, typ)
}

// logEnds has the plugins of these types log the ends of their calls too.
func (s *stage) logEnds(types ...string) {
	s.t.Helper()
	for _, typ := range types {
		script := s.scripts[typ]
		script.Ends = true
		s.scripts[typ] = script
		s.plugin(script, typ)
	}
}

// says is an action that fails with an error of CNI.
func says(code uint, msg string) scripted.Action {
	out := fmt.Sprintf(`{"code": %d, "msg": %q}`, code, msg)
	return scripted.Action{Stdout: &out, Exit: 1}
}

// takeCalls returns the calls since the last time.
func (s *stage) takeCalls() []scripted.Call {
	s.t.Helper()
	calls := s.calls()
	if err := os.Remove(s.path("calls")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.t.Fatal(err)
	}
	return calls
}

// took renders the calls since the last time: "ADD first c1/eth0".
func (s *stage) took() []string {
	s.t.Helper()
	return rendered(s.takeCalls())
}

func rendered(calls []scripted.Call) []string {
	lines := []string{}
	for _, c := range calls {
		line := fmt.Sprintf("%s %s %s/%s", c.Verb, c.Type, c.ContainerID, c.IfName)
		if c.Ended {
			line = "end of " + line
		}
		lines = append(lines, line)
	}
	return lines
}

// request is what a plugin read, by key.
func request(t testing.TB, c scripted.Call) map[string]string {
	t.Helper()
	var keys map[string]json.RawMessage
	if err := json.Unmarshal([]byte(c.Exact), &keys); err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for k, v := range keys {
		values[k] = string(v)
	}
	return values
}

// canonical is JSON with sorted keys and without white space, for comparison.
func canonical(t testing.TB, data string) string {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(data))
	dec.UseNumber() // all digits count
	var value any
	if err := dec.Decode(&value); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	wantNil(t, enc.Encode(value))
	return strings.TrimSpace(b.String())
}

func wantSame[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}

// wantIs wants an error that is of each of these kinds.
func wantIs(t testing.TB, err error, kinds ...error) {
	t.Helper()
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			t.Errorf("error %v, want one that is %q", err, kind)
		}
	}
}

// asError is the first *cni.Error in err.
func asError(t testing.TB, err error) *cni.Error {
	t.Helper()
	var e *cni.Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v has no *cni.Error", err)
	}
	return e
}

func wantNil(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// gate makes a FIFO at which plugins can be told to wait.
func (s *stage) gate(name string) string {
	s.t.Helper()
	path := s.path("gate-" + name)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// arrive waits until a plugin stands at the gate, and returns how to let it go.
func (s *stage) arrive(gate string) (letGo func()) {
	s.t.Helper()
	opened := make(chan *os.File, 1)
	go func() {
		f, err := os.OpenFile(gate, os.O_WRONLY, 0)
		if err != nil {
			s.t.Error(err)
		}
		opened <- f
	}()
	f := await(s.t, "a plugin at "+filepath.Base(gate), opened)
	return func() {
		s.t.Helper()
		if err := f.Close(); err != nil {
			s.t.Error(err)
		}
	}
}

// await receives what must come.
func await[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-from:
		return v
	case <-timer.C:
		t.Fatalf("waited %v for %s", patience, what)
		panic("unreachable")
	}
}

// begin runs f in the background.
func begin(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// addLink gives a container an interface, as a real plugin would.
func (s *stage) addLink(container, name string) {
	s.t.Helper()
	s.inContainer(container, func(nl *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		return nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	})
}

func (s *stage) delLink(container, name string) {
	s.t.Helper()
	s.inContainer(container, func(nl *netlink.Handle) error {
		link, err := nl.LinkByName(name)
		if err != nil {
			return err
		}
		return nl.LinkDel(link)
	})
}

func (s *stage) inContainer(container string, f func(*netlink.Handle) error) {
	s.t.Helper()
	ns, err := netns.Open(s.path("netns", container))
	wantNil(s.t, err)
	defer ns.Close()
	nl, err := netlink.NewHandleAt(vnetns.NsHandle(ns.File().Fd()))
	wantNil(s.t, err)
	defer nl.Close()
	wantNil(s.t, f(nl))
}

// forget removes a container's namespace, so that another may have its name.
func (s *stage) forget(container string) {
	s.t.Helper()
	wantNil(s.t, netns.Remove(s.path("netns", container)))
}

func leavesNothingRunning(t *testing.T) { t.Helper(); testhost.LeavesNothingRunning(t) }
func children(t testing.TB) []string    { t.Helper(); return testhost.Children(t) }

// blocked waits until n goroutines wait in a select of this function of the
// module, and returns how many do.
func (s *stage) blocked(function string, n int) int {
	s.t.Helper()
	stacks := make([]byte, 16<<20)
	found := 0
	for end := time.Now().Add(patience); found < n && time.Now().Before(end); time.Sleep(time.Millisecond) {
		found = strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "[select]:\ngithub.com/embedcni/cni"+function+"(")
	}
	return found
}
