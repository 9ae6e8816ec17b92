package behaviour_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/firewalldtest"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// firewalldHost is a host whose firewalld rejects forwarded packets.
type firewalldHost struct {
	*realHost
	firewalld *firewalldtest.Server
}

func newFirewalldHost(t testing.TB) *firewalldHost {
	t.Helper()
	h := &firewalldHost{realHost: newRealHost(t)}
	h.firewalld = firewalldtest.Start(t, h.current())
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", h.firewalld.Address)
	return h
}

// current returns the namespace of the test's thread.
func (h *realHost) current() *netns.Handle {
	h.T.Helper()
	ns := expect.Value(netns.Current())(h.T)
	h.T.Cleanup(func() { expect.NoError(h.T, ns.Close()) })
	return ns
}

// filtered returns a network behind a bridge with this plugin firewall.
func (h *firewalldHost) filtered(name, firewall string) cni.Opt {
	c := testhost.Case{Plugins: []string{testhost.BridgeConf(`"ipMasq": true, "ipMasqBackend": "nftables", ` + testhost.HostLocal(testhost.V4Range+","+testhost.V6Range)), firewall}}
	return cni.WithConfListBytes(c.Conf(name, "1.0.0", h.Path("ipam")))
}

// trusted returns the addresses in the zone "trusted".
func (h *firewalldHost) trusted() string {
	h.T.Helper()
	return strings.Join(h.firewalld.Sources("trusted"), " ")
}

// audit includes firewalld's state. It lists only rules about containers,
// because a zone gets its chains on first use and keeps them.
func (h *firewalldHost) audit() audit.Lines {
	h.T.Helper()
	lines := h.realHost.Audit().Without(func(l string) bool {
		return strings.Contains(l, " inet firewalld ") && !strings.Contains(l, "10.77.") && !strings.Contains(l, "fd77:")
	})
	for _, source := range h.firewalld.Sources("trusted") {
		lines = append(lines, "firewalld trusted "+source)
	}
	slices.Sort(lines)
	return lines
}

// wantClean is realHost's method, with firewalld's state.
func (h *firewalldHost) wantClean(before audit.Lines) {
	h.T.Helper()
	left, gone := audit.Diff(before, h.audit())
	own := h.Path("state", "embedcni")
	left = left.Without(audit.Shared).Without(func(l string) bool { return strings.Contains(l, own) })
	if len(left)+len(gone) > 0 {
		h.T.Errorf("left behind:\n%s\ngone:\n%s", strings.Join(left, "\n"), strings.Join(gone, "\n"))
	}
}

// TestFault_F54_FirewalldDropsNothingOfAContainerThatIsAttached: the reference
// plugin checks for a running firewalld if no backend is named.
func TestFault_F54_FirewalldDropsNothingOfAContainerThatIsAttached(t *testing.T) {
	h := newFirewalldHost(t)
	world := h.Outside()
	h.Serve(world, 80)
	r := h.Real(h.filtered("podnet", `{"type": "firewall"}`), cni.WithBuiltinPlugins())
	before := h.audit()
	a := h.attach(r, "a")
	h.WantAnswers(slices.Concat(
		testhost.Both(a.path, testhost.HostPort("192.0.2.2", 80), "192.0.2.1"), testhost.Both(a.path, testhost.HostPort("2001:db8::2", 80), "2001:db8::1")))
	expect.Same(t, "trusted", h.trusted(), a.v4+"/32 "+a.v6+"/128")
	expect.NoError(t, r.Check(context.Background(), "a", a.path))
	h.detach(r, "a")
	h.wantClean(before)
}
