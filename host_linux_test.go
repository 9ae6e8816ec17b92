package cni_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// elsewhereHost is a Runtime whose plugins run in another namespace than those
// that attached c1 of [inhabited].
func elsewhereHost(t *testing.T) (s *stage, there *cni.Runtime, conf []byte) {
	t.Helper()
	s, _, conf = inhabited(t, "c1")
	s.newNetNS("elsewhere")
	return s, s.restarted(conf, cni.WithHostNetNS(s.path("netns", "elsewhere"))), conf
}

// TestFault_F38_ACallFromAnotherHostNamespaceEntersTheRecorded, however that is
// found: by the path on record, or where that leads elsewhere by now through a
// process, a mount or a descriptor.
func TestFault_F38_ACallFromAnotherHostNamespaceEntersTheRecorded(t *testing.T) {
	calls := map[string]func(t *testing.T, s *stage, r *cni.Runtime) error{
		"Check": func(t *testing.T, s *stage, r *cni.Runtime) error {
			return r.Check(t.Context(), "c1", s.path("netns", "c1"))
		},
		"Recover": func(t *testing.T, s *stage, r *cni.Runtime) error {
			recoverWith(t, r, adopted)
			return nil
		},
		"GC": func(t *testing.T, s *stage, r *cni.Runtime) error {
			wantNil(t, r.Load()) // no plugin's GC
			report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
			wantSame(t, "report", *report, removed)
			return err
		},
		"Remove": func(t *testing.T, s *stage, r *cni.Runtime) error { return r.Remove(t.Context(), "c1", "") },
	}
	for _, found := range []string{"by its path", "by a descriptor"} {
		for what, call := range calls {
			t.Run(what+" "+found, func(t *testing.T) {
				s, there, _ := elsewhereHost(t)
				host := netNo(s.host, "host")
				s.changeRecord("c1", func(rec *record.Record) {
					wantSame(t, "path on record", rec.HostPath, s.path("netns", "host"))
					if found != "by its path" {
						rec.HostPath = s.path("netns", "elsewhere")
					}
				})
				wantNil(t, call(t, s, there))
				took := s.takeCalls()
				if len(took) == 0 {
					t.Error("no plugin was run")
				}
				for _, c := range took {
					wantSame(t, c.Verb+" ran in", c.NetNo, host)
				}
			})
		}
	}
}

// netNo is the namespace as a process in it sees it: "net:[4026532231]".
func netNo(h *host, name string) string {
	h.t.Helper()
	ns, err := netns.Open(h.path("netns", name))
	wantNil(h.t, err)
	wantNil(h.t, ns.Close())
	_, number, _ := strings.Cut(ns.ID().String(), ":")
	return "net:[" + number + "]"
}

// TestFault_F38_AnUnreachableHostNamespaceIsRefused, and Recover and GC leave the
// container as it is: it may live there.
func TestFault_F38_AnUnreachableHostNamespaceIsRefused(t *testing.T) {
	s, there, conf := elsewhereHost(t)
	s.changeRecord("c1", func(rec *record.Record) {
		rec.Host, rec.HostPath, rec.PIDNS = "4:99", "/run/detached/netns", 1 // of processes that are not seen from here
	})
	path := s.path("netns", "c1")
	for what, err := range map[string]error{
		"Remove": there.Remove(t.Context(), "c1", path),
		"Check":  there.Check(t.Context(), "c1", path),
		"Setup":  setUp(t.Context(), there, "c1", path, cni.WithNetwork("net", cni.WithInterfaceName("eth7")))(),
	} {
		wantIs(t, err, cni.ErrHostNetNS)
		for _, named := range []string{"4:99 (/run/detached/netns)", s.path("netns", "elsewhere"), "WithHostNetNS"} {
			if err == nil || !strings.Contains(err.Error(), named) {
				t.Errorf("%s: error %v does not say %q", what, err, named)
			}
		}
	}
	for what, call := range map[string]func() (*cni.Report, error){
		"Recover": func() (*cni.Report, error) { return there.Recover(t.Context()) },
		"GC": func() (*cni.Report, error) {
			wantNil(t, there.Load())
			return there.GC(t.Context(), cni.GCOptions{KeepNone: true})
		},
	} {
		report, err := call()
		wantNil(t, err)
		wantIs(t, report.Skipped["c1"], cni.ErrHostNetNS)
		wantSame(t, what+": report", *report, cni.Report{Skipped: map[string]error{"c1": report.Skipped["c1"]}})
	}
	wantSame(t, "calls", s.took(), []string{})
	wantSame(t, "on record", recorded(t, s.restarted(conf)), []string{"c1/eth0 attached"})
	wantSame(t, "kept", s.pinned("c1"), true)
}

// TestFault_F38_AContainerIsNotAddedToFromAnotherHostNamespace: its record has one.
func TestFault_F38_AContainerIsNotAddedToFromAnotherHostNamespace(t *testing.T) {
	s, there, _ := elsewhereHost(t)
	err := setUp(t.Context(), there, "c1", s.path("netns", "c1"), cni.WithNetwork("net", cni.WithInterfaceName("eth7")))()
	wantIs(t, err, cni.ErrHostNetNS)
	wantSame(t, "calls", s.took(), []string{})
}

// TestFault_F38_OfAHostNamespaceThatIsGoneOnlyFilesAreUndone: the caller's has
// rules for the same address, of a container that lives.
func TestFault_F38_OfAHostNamespaceThatIsGoneOnlyFilesAreUndone(t *testing.T) {
	h := newRealHost(t)
	list := func(ipam string) cni.Opt {
		return cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "podnet", "plugins": [
			{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables",
			 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.88.0.0/24"}]]}},
			{"type": "firewall", "backend": "iptables"}]}`, h.path(ipam)))
	}
	builtin, owner := cni.WithBuiltinPlugins(), cni.WithOwner("tester")
	here := h.runtime(builtin, owner, list("ipam-here"))
	setUpOrFail(t, here, "c2", h.container("c2"))

	before := h.audit()
	host, path := h.path("netns", "detached"), h.path("netns", "c1")
	for _, p := range []string{host, path} {
		ns, err := netns.Create(p)
		wantNil(t, err)
		wantNil(t, ns.Close())
	}
	setUpOrFail(t, h.runtime(builtin, owner, list("ipam-there"), cni.WithHostNetNS(host)), "c1", path)
	wantSame(t, "address", addressOf(t, here, "c1"), addressOf(t, here, "c2"))
	wantNil(t, netns.Remove(host))

	// As long as the container lives, so may the host's namespace.
	wantIs(t, here.Remove(t.Context(), "c1", ""), cni.ErrHostNetNS)
	wantNil(t, netns.Remove(path))
	wantNil(t, netns.Remove(h.pin("c1")))
	report, err := here.Recover(t.Context())
	wantNil(t, err)
	wantIs(t, report.Skipped["c1"], cni.ErrHostNetNS)
	wantNil(t, here.Remove(t.Context(), "c1", ""))
	wantSame(t, "on record", recorded(t, here), []string{"c2/eth0 attached"})
	if _, err := os.Stat(h.path("ipam-there", "podnet", "10.88.0.2")); !os.IsNotExist(err) {
		t.Errorf("the address is held: %v", err)
	}
	left, missing := h.left(before)
	missing = missing.Without(func(l string) bool { return strings.Contains(l, h.path("state", "embedcni")) })
	if len(left)+len(missing) > 0 {
		t.Errorf("left: %q, gone: %q", left, missing)
	}
	wantNil(t, here.Check(t.Context(), "c2", h.path("netns", "c2")))
	wantNil(t, here.Remove(t.Context(), "c2", ""))
}

func setUpOrFail(t testing.TB, r *cni.Runtime, id, path string) {
	t.Helper()
	_, err := r.Setup(t.Context(), id, path)
	wantNil(t, err)
}

func addressOf(t testing.TB, r *cni.Runtime, id string) string {
	t.Helper()
	result, err := r.Lookup(id)
	wantNil(t, err)
	return result.IPv4().Prefix.String()
}
