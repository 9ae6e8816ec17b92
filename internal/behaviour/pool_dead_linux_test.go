package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// deaths lists the ways in which a pool's container loses its network. path is
// its namespace.
func deaths() map[string]func(h *realHost, path string) {
	return map[string]func(h *realHost, path string){
		"its bridge is deleted": func(h *realHost, _ string) {
			h.link("cni0", netlink.LinkDel)
		},
		"its bridge is set down": func(h *realHost, _ string) {
			h.link("cni0", netlink.LinkSetDown)
		},
		"its port is deleted": func(h *realHost, _ string) {
			for _, l := range h.ports() {
				expect.NoError(h.T, netlink.LinkDel(l))
			}
		},
		"its port is taken off the bridge": func(h *realHost, _ string) {
			for _, l := range h.ports() {
				expect.NoError(h.T, netlink.LinkSetNoMaster(l))
			}
		},
		"the ruleset is flushed": func(h *realHost, _ string) { h.run("nft", "flush", "ruleset") },
		"iptables are flushed":   func(h *realHost, _ string) { h.run("iptables", "-t", "nat", "-F") },
		"its mount is gone":      func(h *realHost, path string) { expect.NoError(h.T, netns.Unpin(path)) },
		"its mount is another's": func(h *realHost, path string) {
			expect.NoError(h.T, netns.Remove(path))
			ns, err := netns.Create(path)
			expect.NoError(h.T, errors.Join(err, ns.Close()))
			h.T.Cleanup(func() { // no other test needs it
				id, err := netns.Open(path)
				expect.NoError(h.T, err)
				expect.NoError(h.T, errors.Join(id.Close(), netns.Remove(path)))
			})
		},
	}
}

func (h *realHost) link(name string, do func(netlink.Link) error) {
	h.T.Helper()
	l, err := netlink.LinkByName(name)
	expect.NoError(h.T, err)
	expect.NoError(h.T, do(l))
}

// ports returns the ports of the host's bridges.
func (h *realHost) ports() (ports []netlink.Link) {
	h.T.Helper()
	all, err := netlink.LinkList()
	expect.NoError(h.T, err)
	for _, l := range all {
		if l.Attrs().MasterIndex != 0 {
			ports = append(ports, l)
		}
	}
	return ports
}

// TestFault_F60_APoolHandsOutNoDeadContainer: each Setup returns a container
// that can reach the world.
func TestFault_F60_APoolHandsOutNoDeadContainer(t *testing.T) {
	for kind, opts := range map[string]struct {
		masquerade string
		how        []cni.Opt
		except     string // a death that it cannot die
	}{
		"built in":            {``, []cni.Opt{cni.WithBuiltinPlugins()}, "iptables are flushed"},
		"built in, iptables":  {`"ipMasqBackend": "iptables", `, []cni.Opt{cni.WithBuiltinPlugins()}, ""},
		"built in, nftables":  {`"ipMasqBackend": "nftables", `, []cni.Opt{cni.WithBuiltinPlugins()}, "iptables are flushed"},
		"reference, iptables": {`"ipMasqBackend": "iptables", `, nil, ""},
	} {
		for what, happens := range deaths() {
			if what == opts.except {
				continue
			}
			t.Run(kind+"/"+what, func(t *testing.T) {
				h := newRealHost(t)
				h.Serve(h.Outside(), 80)
				c := testhost.Case{Plugins: []string{testhost.BridgeConf(`"ipMasq": true, ` + opts.masquerade + testhost.HostLocal(testhost.V4Range))}}
				var log testhost.Log
				t.Cleanup(func() {
					if t.Failed() {
						t.Log(strings.Join(log.Lines("WARN"), "\n"))
					}
				})
				r := h.Real(append(opts.how, log.Logger(), cni.WithHostNetNS(h.Path("netns", "host")),
					cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))...)
				p, err := r.NewPool(cni.PoolOptions{Size: 1})
				expect.NoError(t, err)
				t.Cleanup(func() { expect.NoError(t, p.Close()) })
				dead := h.WantFull(r, p, 1)[0]
				happens(h, h.PoolPath(dead))
				path, _, err := p.Setup(t.Context(), "c1")
				expect.NoError(t, err)
				if filepath.Base(path) == dead {
					t.Error("the dead one was handed out")
				}
				answer, err := h.Ask(path, "tcp", "192.0.2.2:80", 10*time.Second)
				expect.NoError(t, err)
				expect.Same(t, "the container as the world sees it", answer, "192.0.2.1")
				if next := h.WantFull(r, p, 1); slices.Contains(next, dead) {
					t.Error("the dead one is ready again")
				}
				expect.NoError(t, p.Close())
				expect.NoError(t, r.Remove(t.Context(), "c1", ""))
				expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
			})
		}
	}
}

// TestAPoolKeepsLivingContainersWhenTheHostChanges: other containers'
// interfaces and rules come and go.
func TestAPoolKeepsLivingContainersWhenTheHostChanges(t *testing.T) {
	for kind, masquerade := range map[string]string{"own table": ``, "nftables": `"ipMasqBackend": "nftables", `, "iptables": `"ipMasqBackend": "iptables", `} {
		t.Run(kind, func(t *testing.T) {
			h := newRealHost(t)
			c := testhost.Case{Plugins: []string{testhost.BridgeConf(`"ipMasq": true, ` + masquerade + testhost.HostLocal(testhost.V4Range))}}
			r := h.Real(cni.WithBuiltinPlugins(), cni.WithHostNetNS(h.Path("netns", "host")),
				cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
			before := h.Container("before")
			_, err := r.Setup(t.Context(), "before", before)
			expect.NoError(t, err)
			p, err := r.NewPool(cni.PoolOptions{Size: 1})
			expect.NoError(t, err)
			ready := h.WantFull(r, p, 1)
			expect.NoError(t, r.Remove(t.Context(), "before", before))
			_, err = r.Setup(t.Context(), "after", h.Container("after"))
			expect.NoError(t, err)
			h.run("nft", "add", "table", "inet", "another")
			path, _, err := p.Setup(t.Context(), "c1")
			expect.NoError(t, err)
			expect.Same(t, "the one that was ready", []string{filepath.Base(path)}, ready)
			expect.NoError(t, p.Close())
			for _, id := range []string{"c1", "after"} {
				expect.NoError(t, r.Remove(t.Context(), id, ""))
			}
		})
	}
}

// TestAPoolOfAHostThatWasMadeAgainIsMadeAgain: the containers of the previous
// host are not put back each time.
func TestAPoolOfAHostThatWasMadeAgainIsMadeAgain(t *testing.T) {
	s := newStage(t)
	host := s.Container("another")
	r := s.Runtime(cni.WithOwner("tester"), cni.WithHostNetNS(host), s.poolNetwork("net"))
	p, err := r.NewPool(cni.PoolOptions{Size: 1})
	expect.NoError(t, err)
	ready := s.WantFull(r, p, 1)[0]
	s.RemoveNetNS("another")
	ns, err := netns.Create(host)
	expect.NoError(t, errors.Join(err, ns.Close()))
	_, _, err = p.Setup(t.Context(), "c1")
	expect.NoError(t, err)
	expect.Eventually(t, "a ready one", func() bool { return p.Ready() > 0 })
	path, _, err := p.Setup(t.Context(), "c2")
	expect.NoError(t, err)
	if name := filepath.Base(path); name == ready || !strings.HasPrefix(name, "warm-") {
		t.Errorf("c2 is in %s, want one that was made for the host as it is", name)
	}
	expect.NoError(t, p.Close())
	for _, id := range []string{"c1", "c2"} {
		expect.NoError(t, r.Remove(t.Context(), id, ""))
	}
	for _, name := range s.PoolFiles() { // of a host that no longer exists
		expect.NoError(t, netns.Remove(s.PoolPath(name)))
	}
}

// TestFault_F60_ASetupOfAPoolWaitsForNoRemoval: containers of another
// configuration are removed in the background. Close waits for that.
func TestFault_F60_ASetupOfAPoolWaitsForNoRemoval(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithOwner("tester"), s.poolNetwork("net"))
	p, err := r.NewPool(cni.PoolOptions{Size: 4})
	expect.NoError(t, err)
	stale := s.WantFull(r, p, 4)
	gate := s.Gate("bridge")
	s.On("bridge", "DEL", scripted.Action{Block: gate})
	expect.NoError(t, r.Load(s.poolNetwork("other")))
	done := make(chan error, 1)
	go func() {
		_, _, err := p.Setup(context.Background(), "c1")
		done <- err
	}()
	letGo := s.Arrive(gate)
	expect.NoError(t, expect.Await(t, "Setup, beside a removal that hangs", done))
	closed := testhost.Begin(p.Close)
	select {
	case err := <-closed:
		t.Errorf("Close has returned %v, and a removal has not ended", err)
	case <-time.After(50 * time.Millisecond): // the removal is the slow part
	}
	s.On("bridge", "DEL", scripted.Action{})
	letGo()
	expect.NoError(t, expect.Await(t, "Close", closed))
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
	for _, id := range stale {
		expect.Same(t, "DELs of "+id, len(of(id, s.Calls())), 3)
	}
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}

// TestAPoolStaysWhenTheSameIsLoaded, and is replaced after any difference.
func TestAPoolStaysWhenTheSameIsLoaded(t *testing.T) {
	s := newStage(t)
	conf := s.poolNetwork("net")
	r := s.Runtime(cni.WithOwner("tester"), conf)
	p, err := r.NewPool(cni.PoolOptions{Size: 1})
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, p.Close()) })
	expect.NoError(t, os.Symlink(s.Path("state"), s.Path("link")))
	loads := []struct {
		what string
		stay bool
		opts []cni.Opt
	}{
		{"the same", true, []cni.Opt{conf}},
		{"another deadline", true, []cni.Opt{conf, cni.WithTimeouts(cni.Timeouts{Add: time.Hour})}},
		{"another spelling of the state directory", true, []cni.Opt{conf, cni.WithStateDir(s.Path("link"))}},
		{"another name", false, []cni.Opt{s.poolNetwork("other")}},
		{"one network more", false, []cni.Opt{s.poolNetwork("other"), s.poolNetwork("more")}},
		{"another interface", false, []cni.Opt{cni.WithInterfacePrefix("net"), s.poolNetwork("other"), s.poolNetwork("more")}},
		{"another owner", false, []cni.Opt{cni.WithOwner("another"), s.poolNetwork("other")}},
		{"other plugins", false, []cni.Opt{cni.WithoutBuiltinPlugins(), s.poolNetwork("other")}},
		{"other directories", false, []cni.Opt{cni.WithPluginDir([]string{s.Path("none"), s.Path("bin")}), s.poolNetwork("other")}},
	}
	for i, load := range loads {
		ready := s.WantFull(r, p, 1)
		expect.NoError(t, r.Load(load.opts...))
		id := fmt.Sprint("c", i)
		path, _, err := p.Setup(t.Context(), id)
		expect.NoError(t, err)
		expect.Same(t, load.what+": the one that was ready is taken", filepath.Base(path) == ready[0], load.stay)
		expect.NoError(t, r.Remove(t.Context(), id, ""))
	}
}

// TestFault_F60_APathComesWithoutAnError: after an error there is no namespace
// for the caller.
func TestFault_F60_APathComesWithoutAnError(t *testing.T) {
	s, r, p := pooled(t, 1)
	s.On("portmap", "ADD", testhost.Says(5, "taken"))
	for what, opt := range map[string][]cni.NamespaceOpts{"warm": nil, "cold": {cni.WithNetwork("net", cni.WithInterfaceName("eth5"))}} {
		s.WantFull(r, p, 1)
		path, result, err := p.Setup(t.Context(), "c1", opt...)
		expect.Same(t, what+": errors", testhost.Messages(err), []string{"portmap: taken"})
		if path != "" || result != nil {
			t.Errorf("%s: path %q and result %v beside an error", what, path, result)
		}
		s.WantFull(r, p, 1)
		for _, name := range s.PoolFiles() {
			if strings.HasPrefix(name, "cold-") {
				t.Errorf("%s: %s is left", what, name)
			}
		}
		expect.Same(t, what+": namespaces", len(s.PoolFiles()), 1)
	}
}
