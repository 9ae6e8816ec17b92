package cni_test

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
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/netns"
)

// deaths are how a container that a pool has made loses its network; path is where
// its namespace is.
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
				wantNil(h.t, netlink.LinkDel(l))
			}
		},
		"its port is taken off the bridge": func(h *realHost, _ string) {
			for _, l := range h.ports() {
				wantNil(h.t, netlink.LinkSetNoMaster(l))
			}
		},
		"the ruleset is flushed": func(h *realHost, _ string) { h.run("nft", "flush", "ruleset") },
		"iptables are flushed":   func(h *realHost, _ string) { h.run("iptables", "-t", "nat", "-F") },
		"its mount is gone":      func(h *realHost, path string) { wantNil(h.t, netns.Unpin(path)) },
		"its mount is another's": func(h *realHost, path string) {
			wantNil(h.t, netns.Remove(path))
			ns, err := netns.Create(path)
			wantNil(h.t, errors.Join(err, ns.Close()))
			h.t.Cleanup(func() { // nobody else has
				id, err := netns.Open(path)
				wantNil(h.t, err)
				wantNil(h.t, errors.Join(id.Close(), netns.Remove(path)))
			})
		},
	}
}

func (h *realHost) link(name string, do func(netlink.Link) error) {
	h.t.Helper()
	l, err := netlink.LinkByName(name)
	wantNil(h.t, err)
	wantNil(h.t, do(l))
}

// ports are the ports of the host's bridges.
func (h *realHost) ports() (ports []netlink.Link) {
	h.t.Helper()
	all, err := netlink.LinkList()
	wantNil(h.t, err)
	for _, l := range all {
		if l.Attrs().MasterIndex != 0 {
			ports = append(ports, l)
		}
	}
	return ports
}

// poolPath is where a pool has the namespace of that name.
func (h *host) poolPath(name string) string {
	h.t.Helper()
	found, err := filepath.Glob(h.path("state", "embedcni", "attachments", "pool", "*", name))
	wantNil(h.t, err)
	if len(found) != 1 {
		h.t.Fatalf("%d namespaces of the name %s, want one", len(found), name)
	}
	return found[0]
}

// TestFault_F60_APoolHandsOutNoDeadContainer: each time Setup returns one from
// which the world can be reached.
func TestFault_F60_APoolHandsOutNoDeadContainer(t *testing.T) {
	for kind, opts := range map[string]struct {
		masquerade string
		how        []cni.Opt
		except     string // what cannot happen to it
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
				h.serve(h.outside(), 80)
				c := realCase{plugins: []string{bridgeConf(`"ipMasq": true, ` + opts.masquerade + hostLocal(v4Range))}}
				var log logged
				t.Cleanup(func() {
					if t.Failed() {
						t.Log(strings.Join(log.lines("WARN"), "\n"))
					}
				})
				r := h.real(append(opts.how, log.logger(), cni.WithHostNetNS(h.path("netns", "host")),
					cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam"))))...)
				p, err := r.NewPool(cni.PoolOptions{Size: 1})
				wantNil(t, err)
				t.Cleanup(func() { wantNil(t, p.Close()) })
				dead := h.wantFull(r, p, 1)[0]
				happens(h, h.poolPath(dead))
				path, _, err := p.Setup(t.Context(), "c1")
				wantNil(t, err)
				if filepath.Base(path) == dead {
					t.Error("the dead one was handed out")
				}
				answer, err := h.ask(path, "tcp", "192.0.2.2:80", 10*time.Second)
				wantNil(t, err)
				wantSame(t, "the container as the world sees it", answer, "192.0.2.1")
				if next := h.wantFull(r, p, 1); slices.Contains(next, dead) {
					t.Error("the dead one is ready again")
				}
				wantNil(t, p.Close())
				wantNil(t, r.Remove(t.Context(), "c1", ""))
				wantSame(t, "on record", recorded(t, r), []string{})
			})
		}
	}
}

// TestAPoolTakesWhatLivesAlthoughTheHostHasChanged: other containers' interfaces
// and rules come and go.
func TestAPoolTakesWhatLivesAlthoughTheHostHasChanged(t *testing.T) {
	for kind, masquerade := range map[string]string{"own table": ``, "nftables": `"ipMasqBackend": "nftables", `, "iptables": `"ipMasqBackend": "iptables", `} {
		t.Run(kind, func(t *testing.T) {
			h := newRealHost(t)
			c := realCase{plugins: []string{bridgeConf(`"ipMasq": true, ` + masquerade + hostLocal(v4Range))}}
			r := h.real(cni.WithBuiltinPlugins(), cni.WithHostNetNS(h.path("netns", "host")),
				cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam"))))
			before := h.container("before")
			_, err := r.Setup(t.Context(), "before", before)
			wantNil(t, err)
			p, err := r.NewPool(cni.PoolOptions{Size: 1})
			wantNil(t, err)
			ready := h.wantFull(r, p, 1)
			wantNil(t, r.Remove(t.Context(), "before", before))
			_, err = r.Setup(t.Context(), "after", h.container("after"))
			wantNil(t, err)
			h.run("nft", "add", "table", "inet", "another")
			path, _, err := p.Setup(t.Context(), "c1")
			wantNil(t, err)
			wantSame(t, "the one that was ready", []string{filepath.Base(path)}, ready)
			wantNil(t, p.Close())
			for _, id := range []string{"c1", "after"} {
				wantNil(t, r.Remove(t.Context(), id, ""))
			}
		})
	}
}

// TestAPoolOfAHostThatWasMadeAgainIsMadeAgain: what was made for the last one is
// not put back each time.
func TestAPoolOfAHostThatWasMadeAgainIsMadeAgain(t *testing.T) {
	s := newStage(t)
	host := s.container("another")
	r := s.runtime(cni.WithOwner("tester"), cni.WithHostNetNS(host), s.poolNetwork("net"))
	p, err := r.NewPool(cni.PoolOptions{Size: 1})
	wantNil(t, err)
	ready := s.wantFull(r, p, 1)[0]
	s.forget("another")
	ns, err := netns.Create(host)
	wantNil(t, errors.Join(err, ns.Close()))
	_, _, err = p.Setup(t.Context(), "c1")
	wantNil(t, err)
	for end := time.Now().Add(patience); p.Ready() < 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("none is ready")
		}
	}
	path, _, err := p.Setup(t.Context(), "c2")
	wantNil(t, err)
	if name := filepath.Base(path); name == ready || !strings.HasPrefix(name, "warm-") {
		t.Errorf("c2 is in %s, want one that was made for the host as it is", name)
	}
	wantNil(t, p.Close())
	for _, id := range []string{"c1", "c2"} {
		wantNil(t, r.Remove(t.Context(), id, ""))
	}
	for _, name := range s.poolFiles() { // of a host that is gone
		wantNil(t, netns.Remove(s.poolPath(name)))
	}
}

// TestFault_F60_ASetupOfAPoolWaitsForNoRemoval: what was made for another
// configuration goes behind the call, and Close waits for it.
func TestFault_F60_ASetupOfAPoolWaitsForNoRemoval(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithOwner("tester"), s.poolNetwork("net"))
	p, err := r.NewPool(cni.PoolOptions{Size: 4})
	wantNil(t, err)
	stale := s.wantFull(r, p, 4)
	gate := s.gate("bridge")
	s.on("bridge", "DEL", scripted.Action{Block: gate})
	wantNil(t, r.Load(s.poolNetwork("other")))
	done := make(chan error, 1)
	go func() {
		_, _, err := p.Setup(context.Background(), "c1")
		done <- err
	}()
	letGo := s.arrive(gate)
	wantNil(t, await(t, "Setup, beside a removal that hangs", done))
	closed := begin(p.Close)
	select {
	case err := <-closed:
		t.Errorf("Close has returned %v, and a removal has not ended", err)
	case <-time.After(50 * time.Millisecond): // it is the removal that takes long
	}
	s.on("bridge", "DEL", scripted.Action{})
	letGo()
	wantNil(t, await(t, "Close", closed))
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 attached"})
	for _, id := range stale {
		wantSame(t, "DELs of "+id, len(of(id, s.calls())), 3)
	}
	wantNil(t, r.Remove(t.Context(), "c1", ""))
}

// TestAPoolStaysWhenTheSameIsLoaded, and is made anew whatever the difference.
func TestAPoolStaysWhenTheSameIsLoaded(t *testing.T) {
	s := newStage(t)
	conf := s.poolNetwork("net")
	r := s.runtime(cni.WithOwner("tester"), conf)
	p, err := r.NewPool(cni.PoolOptions{Size: 1})
	wantNil(t, err)
	t.Cleanup(func() { wantNil(t, p.Close()) })
	wantNil(t, os.Symlink(s.path("state"), s.path("link")))
	loads := []struct {
		what string
		stay bool
		opts []cni.Opt
	}{
		{"the same", true, []cni.Opt{conf}},
		{"another deadline", true, []cni.Opt{conf, cni.WithTimeouts(cni.Timeouts{Add: time.Hour})}},
		{"another spelling of the state directory", true, []cni.Opt{conf, cni.WithStateDir(s.path("link"))}},
		{"another name", false, []cni.Opt{s.poolNetwork("other")}},
		{"one network more", false, []cni.Opt{s.poolNetwork("other"), s.poolNetwork("more")}},
		{"another interface", false, []cni.Opt{cni.WithInterfacePrefix("net"), s.poolNetwork("other"), s.poolNetwork("more")}},
		{"another owner", false, []cni.Opt{cni.WithOwner("another"), s.poolNetwork("other")}},
		{"other plugins", false, []cni.Opt{cni.WithoutBuiltinPlugins(), s.poolNetwork("other")}},
		{"other directories", false, []cni.Opt{cni.WithPluginDir([]string{s.path("none"), s.path("bin")}), s.poolNetwork("other")}},
	}
	for i, load := range loads {
		ready := s.wantFull(r, p, 1)
		wantNil(t, r.Load(load.opts...))
		id := fmt.Sprint("c", i)
		path, _, err := p.Setup(t.Context(), id)
		wantNil(t, err)
		wantSame(t, load.what+": the one that was ready is taken", filepath.Base(path) == ready[0], load.stay)
		wantNil(t, r.Remove(t.Context(), id, ""))
	}
}

// TestFault_F60_APathComesWithoutAnError: what failed has no namespace that a
// caller could use.
func TestFault_F60_APathComesWithoutAnError(t *testing.T) {
	s, r, p := pooled(t, 1)
	s.on("portmap", "ADD", says(5, "taken"))
	for what, opt := range map[string][]cni.NamespaceOpts{"warm": nil, "cold": {cni.WithNetwork("net", cni.WithInterfaceName("eth5"))}} {
		s.wantFull(r, p, 1)
		path, result, err := p.Setup(t.Context(), "c1", opt...)
		wantSame(t, what+": errors", messages(err), []string{"portmap: taken"})
		if path != "" || result != nil {
			t.Errorf("%s: path %q and result %v beside an error", what, path, result)
		}
		s.wantFull(r, p, 1)
		for _, name := range s.poolFiles() {
			if strings.HasPrefix(name, "cold-") {
				t.Errorf("%s: %s is left", what, name)
			}
		}
		wantSame(t, what+": namespaces", len(s.poolFiles()), 1)
	}
}

// poolFiles are the names of the namespaces that pools have.
func (h *host) poolFiles() (names []string) {
	h.t.Helper()
	found, err := filepath.Glob(h.path("state", "embedcni", "attachments", "pool", "*", "*"))
	wantNil(h.t, err)
	for _, path := range found {
		names = append(names, filepath.Base(path))
	}
	return names
}
