package behaviour_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// TestGatewaysAreThoseOfResults: known before a container is attached, and true of the
// first that is. A gateway on the host is an address of the host then.
func TestGatewaysAreThoseOfResults(t *testing.T) {
	for what, tt := range map[string]struct {
		plugin string // without its IPAM
		ipam   string
		want   string
	}{
		"a bridge of both families": {`"type": "bridge", "isGateway": true`,
			`"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/16"}], [{"subnet": "fd00:77::/64"}]]`, "10.77.0.1/16 fd00:77::1/64 on the host"},
		"a default gateway": {`"type": "bridge", "isDefaultGateway": true`,
			`"type": "host-local", "subnet": "10.77.0.0/24", "gateway": "10.77.0.254"`, "10.77.0.254/24 on the host"},
		"a bridge that is no gateway": {`"type": "bridge"`,
			`"type": "host-local", "subnet": "10.77.0.0/24", "gateway": "10.77.0.9"`, "10.77.0.9/24"},
		"ptp": {`"type": "ptp"`, `"type": "host-local", "subnet": "10.77.0.0/24"`, "10.77.0.1/24 on the host"},
		"an address given, on a gateway": {`"type": "bridge", "isGateway": true`,
			`"type": "static", "addresses": [{"address": "10.77.3.4/16"}]`, "10.77.0.1/16 on the host"},
		"an address given with its gateway": {`"type": "bridge"`,
			`"type": "static", "addresses": [{"address": "10.77.3.4/16", "gateway": "10.77.9.9"}, {"address": "fd00:77::4/64"}]`, "10.77.9.9/16"},
	} {
		t.Run(what, func(t *testing.T) {
			h := newRealHost(t)
			ipam := tt.ipam
			if strings.Contains(ipam, "host-local") {
				ipam += fmt.Sprintf(`, "dataDir": %q`, h.Path("ipam"))
			}
			r := h.Runtime(cni.WithPluginDir(nil), cni.WithLoNetwork,
				cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [{%s, "ipam": {%s}}]}`, tt.plugin, ipam)))
			before := h.Audit()
			got := expect.Value(r.Gateways("net"))(t)
			h.WantClean(before)
			var text []string
			for _, g := range got {
				text = append(text, g.Prefix.String())
			}
			if got[0].OnHost {
				text = append(text, "on the host")
			}
			expect.Same(t, "gateways", strings.Join(text, " "), tt.want)

			result := testhost.MustSetUp(t, r, "c1", h.Container("c1"))
			var reported []netip.Addr
			for _, ip := range result.Raw()[1].IPs {
				if addr, ok := netip.AddrFromSlice(ip.Gateway); ok {
					reported = append(reported, addr.Unmap())
				}
			}
			for i, g := range got {
				expect.Same(t, "reported", reported[i], g.Prefix.Addr())
				expect.Same(t, "on the host", isOfHost(t, g.Prefix.Addr()), g.OnHost)
			}
			expect.Same(t, "number", len(got), len(reported))
			expect.NoError(t, r.Remove(t.Context(), "c1", ""))
		})
	}
}

// isOfHost reports whether the host has an address.
func isOfHost(t *testing.T, addr netip.Addr) bool {
	t.Helper()
	all := expect.Value(net.InterfaceAddrs())(t)
	return slices.ContainsFunc(all, func(a net.Addr) bool { return a.(*net.IPNet).IP.Equal(addr.AsSlice()) })
}

func TestGatewaysThatNobodyKnows(t *testing.T) {
	h := newRealHost(t)
	list := func(name, plugin string) cni.Opt {
		return cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": %q, "plugins": [%s]}`, name, plugin))
	}
	opts := []cni.Opt{
		list("none", `{"type": "bridge"}`),
		list("dhcp", `{"type": "bridge", "ipam": {"type": "dhcp"}}`),
		list("other", `{"type": "calico", "ipam": {"type": "host-local", "subnet": "10.77.0.0/24"}}`),
		list("given", `{"type": "bridge", "capabilities": {"ipRanges": true}, "ipam": {"type": "host-local"}}`),
		list("without", `{"type": "bridge", "ipam": {"type": "static", "addresses": [{"address": "10.77.3.4/16"}]}}`),
		list("wrong", `{"type": "bridge", "isGateway": "yes", "ipam": {"type": "host-local", "subnet": "10.77.0.0/24"}}`),
		list("several", `{"type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/24"}, {"subnet": "10.78.0.0/24"}]]}}`),
		list("several", `{"type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "subnet": "fd00:77::/64"}}`),
	}
	r := h.Runtime(opts...)
	for _, name := range []string{"none", "dhcp", "other", "given", "without", "wrong"} {
		got, err := r.Gateways(name)
		if got != nil {
			t.Errorf("%s: %v", name, got)
		}
		expect.Is(t, err, cni.ErrNotFound)
	}
	_, err := r.Gateways("lacking")
	expect.Is(t, err, cni.ErrNotFound)
	got := expect.Value(r.Gateways("several"))(t)
	var want []cni.Gateway
	for _, p := range []string{"10.77.0.1/24", "10.78.0.1/24", "fd00:77::1/64"} {
		want = append(want, cni.Gateway{Prefix: netip.MustParsePrefix(p), OnHost: true})
	}
	expect.Same(t, "several", got, want)
	for _, typ := range []string{"bridge", "host-local"} { // the caller's own may mean something else
		_, err = h.Runtime(append(opts, cni.WithPlugin(typ, testhost.Idle{}))...).Gateways("several")
		expect.Is(t, err, cni.ErrNotFound)
	}
}
