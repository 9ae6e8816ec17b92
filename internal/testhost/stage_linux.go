package testhost

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/netns"
)

// Stage is a host whose plugins are scripted. Each type has its own script,
// which may change between calls. Its runtimes run plugins on the host from any
// goroutine. When the test ends, nothing may be left running.
type Stage struct {
	*Host
	Scripts map[string]scripted.Script
}

// NewStage makes a stage and enters its host.
func NewStage(t *testing.T) *Stage {
	t.Helper()
	LeavesNothingRunning(t)
	return &Stage{New(t), map[string]scripted.Script{}}
}

// Messages returns the plugins' own messages of all errors in err.
func Messages(err error) []string {
	var all []string
	if e, ok := err.(*cni.Error); ok {
		return []string{e.Plugin + ": " + e.Msg}
	}
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			all = append(all, Messages(inner)...)
		}
	case interface{ Unwrap() error }:
		all = Messages(e.Unwrap())
	}
	return all
}

// Cached returns the files of libcni's cache.
func (h *Host) Cached() []string {
	h.T.Helper()
	names := []string{}
	for _, path := range expect.Value(filepath.Glob(h.Path("state", "results", "*")))(h.T) {
		names = append(names, filepath.Base(path))
	}
	return names
}

func InParallel(n int, fn func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			errs[i] = fn(i)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *Stage) Runtime(opts ...cni.Opt) *cni.Runtime {
	s.T.Helper()
	return s.Host.Runtime(append([]cni.Opt{cni.WithHostNetNS(s.Path("netns", "host"))}, opts...)...)
}

// Network makes a list of scripted plugins, and the plugins.
func (s *Stage) Network(name, version string, types ...string) []byte {
	s.T.Helper()
	paths := map[string]string{}
	for _, typ := range types {
		paths[typ] = s.Plugin(s.Scripts[typ], typ)
	}
	return Conflist(name, version, paths, types...)
}

// On sets the action of a plugin type for a verb.
func (s *Stage) On(typ, verb string, action scripted.Action) {
	s.T.Helper()
	script := s.Scripts[typ]
	if script.Verbs == nil {
		script.Verbs = map[string]scripted.Action{}
	}
	script.Verbs[verb] = action
	s.Scripts[typ] = script
	s.Plugin(script, typ)
}

// LogEnds makes the plugins of these types also log the ends of their calls.
func (s *Stage) LogEnds(types ...string) {
	s.T.Helper()
	for _, typ := range types {
		script := s.Scripts[typ]
		script.Ends = true
		s.Scripts[typ] = script
		s.Plugin(script, typ)
	}
}

// Says returns an action that fails with a CNI error.
func Says(code uint, msg string) scripted.Action {
	out := fmt.Sprintf(`{"code": %d, "msg": %q}`, code, msg)
	return scripted.Action{Stdout: &out, Exit: 1}
}

// Took renders the calls since the last time: "ADD first c1/eth0".
func (s *Stage) Took() []string {
	s.T.Helper()
	return Rendered(s.TakeCalls())
}

// Rendered returns calls as lines of text: "ADD first c1/eth0".
func Rendered(calls []scripted.Call) []string {
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

// Request returns the request of a call, by key.
func Request(t testing.TB, c scripted.Call) map[string]string {
	t.Helper()
	var keys map[string]json.RawMessage
	expect.NoError(t, json.Unmarshal([]byte(c.Exact), &keys))
	values := map[string]string{}
	for k, v := range keys {
		values[k] = string(v)
	}
	return values
}

// AsError returns the first *cni.Error in err.
func AsError(t testing.TB, err error) *cni.Error {
	t.Helper()
	var e *cni.Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v has no *cni.Error", err)
	}
	return e
}

// Gate makes a FIFO where scripted plugins can wait.
func (s *Stage) Gate(name string) string {
	s.T.Helper()
	path := s.Path("gate-" + name)
	expect.NoError(s.T, syscall.Mkfifo(path, 0o600))
	return path
}

// Arrive waits until a plugin is at the gate, and returns a function that lets
// it continue.
func (s *Stage) Arrive(gate string) (letGo func()) {
	s.T.Helper()
	opened := make(chan *os.File, 1)
	go func() {
		f, err := os.OpenFile(gate, os.O_WRONLY, 0)
		if err != nil {
			s.T.Error(err)
		}
		opened <- f
	}()
	f := expect.Await(s.T, "a plugin at "+filepath.Base(gate), opened)
	return func() {
		s.T.Helper()
		if err := f.Close(); err != nil {
			s.T.Error(err)
		}
	}
}

// Begin runs f in the background.
func Begin(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// AddLink gives a container an interface, as a real plugin would.
func (h *Host) AddLink(container, name string) {
	h.T.Helper()
	h.with(h.Path("netns", container), func(ns *netns.Handle) { nettest.AddBridge(h.T, ns, name) })
}

// RemoveNetNS removes a container's namespace, so that another can use its
// name.
func (s *Stage) RemoveNetNS(container string) {
	s.T.Helper()
	expect.NoError(s.T, netns.Remove(s.Path("netns", container)))
}
