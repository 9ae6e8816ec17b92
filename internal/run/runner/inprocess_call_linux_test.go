package runner

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// ownNetNS is a namespace that can be opened without privilege.
const (
	ownNetNS = "/proc/self/ns/net"
	hasNetNS = true
)

const plain = `{"name":"n", "cniVersion":"1.0.0"}`

// TestNamespaceThatIsNotThere: it is an error for ADD and CHECK. For DEL it
// means that its contents are gone.
func TestNamespaceThatIsNotThere(t *testing.T) {
	called := 0
	p := fake{
		add: func(*plugin.Request) (*types100.Result, error) { called++; return oneAddress(), nil },
		other: func(verb string, r *plugin.Request) error {
			called++
			expect.That(t, r.Container == nil, "%s has a namespace", verb)
			return nil
		},
	}
	file := filepath.Join(t.TempDir(), "file")
	expect.NoError(t, os.WriteFile(file, nil, 0o600))
	gone := filepath.Join(t.TempDir(), "gone")
	for path, reason := range map[string]string{gone: "no such file or directory", file: "not a network namespace"} {
		for _, verb := range []string{"ADD", "CHECK"} {
			_, err := run1(p, verb, path, plain)
			wantError(t, verb, err, types.Error{
				Code: types.ErrInvalidNetNS, Msg: `open network namespace "` + path + `": ` + reason,
			})
		}
		expect.That(t, called == 0, "called")
		_, err := run1(p, "DEL", path, plain)
		expect.That(t, err == nil && called == 1, "DEL: %v, called %d times", err, called)
		called = 0
	}
	_, err := run1(p, "DEL", "", plain)
	expect.That(t, err == nil && called == 1, "DEL without a path: %v, called %d times", err, called)
}

func TestNamespacesAreOpenDuringTheCallAndClosedAfterIt(t *testing.T) {
	host := expect.Value(netns.Current())(t)
	defer host.Close()
	var container *netns.Handle
	p := fake{other: func(_ string, r *plugin.Request) error {
		container = r.Container
		expect.That(t, r.Host == host && container.ID() == host.ID(), "host %v, container %v, want %v", r.Host, container.ID(), host.ID())
		return nil
	}}
	c := call1(p, chain.Call{Verb: "DEL", Plugin: "fake", Env: env(ownNetNS), Stdin: []byte(plain)})
	c.Runner.Host = host
	expect.Value(c.inProcess(context.Background(), nil))(t)
	expect.Is(t, container.File().Close(), os.ErrClosed)
	expect.Succeeds(t, "the host's namespace was closed", expect.Err(host.File().Stat()))
}

// TestHandleOfTheCallersIsLeftOpen and given to the plugin, instead of opening
// another one.
func TestHandleOfTheCallersIsLeftOpen(t *testing.T) {
	own := expect.Value(netns.Current())(t)
	defer own.Close()
	var got *netns.Handle
	p := fake{other: func(_ string, r *plugin.Request) error { got = r.Container; return nil }}
	for path, want := range map[string]*netns.Handle{ownNetNS: own, "": nil} {
		c := call1(p, chain.Call{Verb: "DEL", Plugin: "fake", Env: env(path), Stdin: []byte(plain)})
		c.p.Kind, c.Runner.Container = BuiltIn, own
		expect.Value(c.inProcess(context.Background(), nil))(t)
		expect.That(t, got == want, "path %q: got %v, want %v", path, got, want)
	}
	expect.Succeeds(t, "the caller's handle was closed", expect.Err(own.File().Stat()))
}

// TestInlineIsTheCallersGoroutine: its thread is locked, so a plugin on another
// goroutine cannot be on it.
func TestInlineIsTheCallersGoroutine(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, inline := range []bool{true, false} {
		thread := 0
		p := fake{other: func(string, *plugin.Request) error { thread = unix.Gettid(); return nil }}
		c := call1(p, chain.Call{Verb: "DEL", Plugin: "fake", Env: env(""), Stdin: []byte(plain)})
		if inline {
			c.p.Kind = BuiltIn
		}
		expect.Value(c.inProcess(context.Background(), nil))(t)
		expect.Same(t, "on the goroutine of the caller", inline, thread == unix.Gettid())
	}
}
