package behaviour_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// TestFault_F52_AFailingSetupTakesDownAnLoThatWasUp: an lo that was up before
// the Setup belongs to a process in the namespace. Neither a failed Setup nor a
// Remove sets it down. An lo that was down is set down again.
func TestFault_F52_AFailingSetupTakesDownAnLoThatWasUp(t *testing.T) {
	for kind, opts := range map[string][]cni.Opt{
		"built in":   {cni.WithBuiltinPlugins("loopback")},
		"executable": {nil, cni.WithoutBuiltinPlugins()},
	} {
		for _, up := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, up %t", kind, up), func(t *testing.T) {
				s := newStage(t)
				if kind == "executable" {
					opts[0] = cni.WithPluginDir([]string{s.Path("bin"), testhost.ReferencePlugins(t)})
				}
				lo := []byte(`{"cniVersion": "1.0.0", "name": "lo", "plugins": [{"type": "loopback"}]}`)
				open := func() *cni.Runtime {
					return s.Runtime(append(slices.Clone(opts), cni.WithOwner("tester"), cni.WithConfListBytes(lo), cni.WithConfListBytes(s.Network("own", "1.0.0", "p")))...)
				}
				path := s.Container("c1")
				if up {
					s.lo(path, netlink.LinkSetUp)
				}
				want := func(when string, up bool) {
					t.Helper()
					s.lo(path, func(l netlink.Link) error {
						if got := l.Attrs().RawFlags&1 != 0; got != up {
							t.Errorf("%s: lo is up: %t, want %t", when, got, up)
						}
						return nil
					})
				}
				ctx, r := context.Background(), open()

				s.On("p", "ADD", testhost.Says(100, "refused"))
				if _, err := r.SetupSerially(ctx, "c1", path); err == nil {
					t.Fatal("Setup succeeded")
				}
				want("after a Setup that failed", up)

				s.On("p", "ADD", scripted.Action{})
				expect.Value(r.Setup(ctx, "c1", path))(t)
				want("attached", true)
				s.On("p", "DEL", testhost.Says(100, "refused"))
				if err := r.Remove(ctx, "c1", path); err == nil {
					t.Fatal("Remove succeeded")
				}
				want("after a Remove that failed", up)
				s.On("p", "DEL", scripted.Action{})
				expect.NoError(t, open().Remove(ctx, "c1", path))
				want("after a Remove by the next runtime", up)
			})
		}
	}
}

// lo calls fn for the loopback interface of a namespace.
func (s *stage) lo(path string, fn func(netlink.Link) error) {
	s.T.Helper()
	ns := expect.Value(netns.Open(path))(s.T)
	expect.NoError(s.T, ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return fn(lo)
	}))
	expect.NoError(s.T, ns.Close())
}
