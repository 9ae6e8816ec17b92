package behaviour_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// elsewhereHost returns a Runtime whose plugins run in another namespace than
// those that attached c1 of [inhabited].
func elsewhereHost(t *testing.T) (s *stage, there *cni.Runtime, conf []byte) {
	t.Helper()
	s, _, conf = inhabited(t, "c1")
	s.NewNetNS("elsewhere")
	return s, s.restarted(conf, cni.WithHostNetNS(s.Path("netns", "elsewhere"))), conf
}

// TestFault_F38_ACallFromAnotherHostNamespaceEntersTheRecorded: by the recorded
// path, or through a process, a mount or a descriptor if that path now leads
// elsewhere.
func TestFault_F38_ACallFromAnotherHostNamespaceEntersTheRecorded(t *testing.T) {
	calls := map[string]func(t *testing.T, s *stage, r *cni.Runtime) error{
		"Check": func(t *testing.T, s *stage, r *cni.Runtime) error {
			return r.Check(t.Context(), "c1", s.Path("netns", "c1"))
		},
		"Recover": func(t *testing.T, s *stage, r *cni.Runtime) error {
			testhost.WantRecover(t, r, adopted)
			return nil
		},
		"GC": func(t *testing.T, s *stage, r *cni.Runtime) error {
			expect.NoError(t, r.Load()) // does not call plugins' GC
			report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
			expect.Same(t, "report", *report, removed)
			return err
		},
		"Remove": func(t *testing.T, s *stage, r *cni.Runtime) error { return r.Remove(t.Context(), "c1", "") },
	}
	for _, found := range []string{"by its path", "by a descriptor"} {
		for what, call := range calls {
			t.Run(what+" "+found, func(t *testing.T) {
				s, there, _ := elsewhereHost(t)
				host := netNo(s.Host, "host")
				s.ChangeRecord("c1", func(rec *record.Record) {
					expect.Same(t, "path on record", rec.HostPath, s.Path("netns", "host"))
					if found != "by its path" {
						rec.HostPath = s.Path("netns", "elsewhere")
					}
				})
				expect.NoError(t, call(t, s, there))
				took := s.TakeCalls()
				if len(took) == 0 {
					t.Error("no plugin was run")
				}
				for _, c := range took {
					expect.Same(t, c.Verb+" ran in", c.NetNo, host)
				}
			})
		}
	}
}

// netNo returns the namespace as a process in it sees it: "net:[4026532231]".
func netNo(h *testhost.Host, name string) string {
	h.T.Helper()
	ns := expect.Value(netns.Open(h.Path("netns", name)))(h.T)
	expect.NoError(h.T, ns.Close())
	_, number, _ := strings.Cut(ns.ID().String(), ":")
	return "net:[" + number + "]"
}

// TestFault_F38_AnUnreachableHostNamespaceIsRefused: Recover and GC leave the
// container alone, because it may still run there.
func TestFault_F38_AnUnreachableHostNamespaceIsRefused(t *testing.T) {
	s, there, conf := elsewhereHost(t)
	s.ChangeRecord("c1", func(rec *record.Record) {
		rec.Host, rec.HostPath, rec.PIDNS = "4:99", "/run/detached/netns", 1 // of processes that are invisible here
	})
	path := s.Path("netns", "c1")
	for _, err := range map[string]error{
		"Remove": there.Remove(t.Context(), "c1", path),
		"Check":  there.Check(t.Context(), "c1", path),
		"Setup":  testhost.SetUp(t.Context(), there, "c1", path, cni.WithNetwork("net", cni.WithInterfaceName("eth7")))(),
	} {
		expect.Is(t, err, cni.ErrHostNetNS)
		for _, named := range []string{"4:99 (/run/detached/netns)", s.Path("netns", "elsewhere"), "WithHostNetNS"} {
			says(t, err, named)
		}
	}
	for what, call := range map[string]func() (*cni.Report, error){
		"Recover": func() (*cni.Report, error) { return there.Recover(t.Context()) },
		"GC": func() (*cni.Report, error) {
			expect.NoError(t, there.Load())
			return there.GC(t.Context(), cni.GCOptions{KeepNone: true})
		},
	} {
		report := expect.Value(call())(t)
		expect.Is(t, report.Skipped["c1"], cni.ErrHostNetNS)
		expect.Same(t, what+": report", *report, cni.Report{Skipped: map[string]error{"c1": report.Skipped["c1"]}})
	}
	expect.Same(t, "calls", s.Took(), []string{})
	expect.Same(t, "on record", testhost.Recorded(t, s.restarted(conf)), []string{"c1/eth0 attached"})
	expect.Same(t, "kept", s.Pinned("c1"), true)
}

// TestFault_F38_AContainerIsNotAddedToFromAnotherHostNamespace: its record
// already names one.
func TestFault_F38_AContainerIsNotAddedToFromAnotherHostNamespace(t *testing.T) {
	s, there, _ := elsewhereHost(t)
	err := testhost.SetUp(t.Context(), there, "c1", s.Path("netns", "c1"), cni.WithNetwork("net", cni.WithInterfaceName("eth7")))()
	expect.Is(t, err, cni.ErrHostNetNS)
	expect.Same(t, "calls", s.Took(), []string{})
}

// TestFault_F38_OfAHostNamespaceThatIsGoneOnlyFilesAreUndone: the caller's
// namespace has rules for the same address, which belong to a running
// container.
func TestFault_F38_OfAHostNamespaceThatIsGoneOnlyFilesAreUndone(t *testing.T) {
	h := newRealHost(t)
	list := func(ipam string) cni.Opt {
		return cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "podnet", "plugins": [
			{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables",
			 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.88.0.0/24"}]]}},
			{"type": "firewall", "backend": "iptables"}]}`, h.Path(ipam)))
	}
	builtin, owner := cni.WithBuiltinPlugins(), cni.WithOwner("tester")
	here := h.Runtime(builtin, owner, list("ipam-here"))
	testhost.MustSetUp(t, here, "c2", h.Container("c2"))

	before := h.Audit()
	host, path := h.Path("netns", "detached"), h.Path("netns", "c1")
	for _, p := range []string{host, path} {
		ns := expect.Value(netns.Create(p))(t)
		expect.NoError(t, ns.Close())
	}
	// A search in the background would have the namespace open for a moment longer.
	there := h.Runtime(builtin, owner, list("ipam-there"), cni.WithHostNetNS(host), cni.WithoutReaping())
	testhost.MustSetUp(t, there, "c1", path)
	expect.Same(t, "address", addressOf(t, here, "c1"), addressOf(t, here, "c2"))
	expect.NoError(t, netns.Remove(host))

	// While the container lives, the host's namespace may live too.
	expect.Is(t, here.Remove(t.Context(), "c1", ""), cni.ErrHostNetNS)
	expect.NoError(t, netns.Remove(path))
	expect.NoError(t, netns.Remove(h.Pin("c1")))
	report := expect.Value(here.Recover(t.Context()))(t)
	expect.Is(t, report.Skipped["c1"], cni.ErrHostNetNS)
	expect.NoError(t, here.Remove(t.Context(), "c1", ""))
	expect.Same(t, "on record", testhost.Recorded(t, here), []string{"c2/eth0 attached"})
	if _, err := os.Stat(h.Path("ipam-there", "podnet", "10.88.0.2")); !os.IsNotExist(err) {
		t.Errorf("the address is held: %v", err)
	}
	left, missing := h.Left(before)
	missing = missing.Without(func(l string) bool { return strings.Contains(l, h.Path("state", "embedcni")) })
	if len(left)+len(missing) > 0 {
		t.Errorf("left: %q, gone: %q", left, missing)
	}
	expect.NoError(t, here.Check(t.Context(), "c2", h.Path("netns", "c2")))
	expect.NoError(t, here.Remove(t.Context(), "c2", ""))
}

func addressOf(t testing.TB, r *cni.Runtime, id string) string {
	t.Helper()
	result := expect.Value(r.Lookup(id))(t)
	return result.IPv4().Prefix.String()
}
