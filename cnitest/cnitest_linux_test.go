package cnitest_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// host is a host for the reference plugins, with a Runtime.
type host struct {
	*testhost.RealHost
	*cni.Runtime
}

func newHost(t *testing.T, plugins string) *host {
	t.Helper()
	h := testhost.NewReal(t)
	ipam := fmt.Sprintf(`{"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.7.0.0/24"}], [{"subnet": "fd07::/64"}]]}`, h.Path("ipam"))
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "podnet", "plugins": [%s]}`, strings.ReplaceAll(plugins, "IPAM", ipam))
	return &host{h, h.Real(cni.WithConfListBytes([]byte(conf)))}
}

// attach attaches a new container and detaches it when the test ends.
func (h *host) attach(id string, port int32) *cni.Result {
	h.T.Helper()
	path := h.Container(id)
	result, err := h.Setup(context.Background(), id, path,
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: port, ContainerPort: 80, Protocol: "tcp"}}))
	expect.NoError(h.T, err)
	h.T.Cleanup(func() {
		if err := h.Remove(context.Background(), id, path); err != nil {
			h.T.Error(err)
		}
	})
	return result
}

// audit omits the mounts that the tests make.
func (h *host) audit(of []cnitest.Attachment) []string {
	h.T.Helper()
	lines, err := cnitest.Audit(context.Background(), cnitest.Options{
		StateDirs: []string{h.Path("ipam"), h.Path("state")}, NetNSDirs: []string{}, Of: of,
	})
	expect.NoError(h.T, err)
	return slices.DeleteFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, "mount ") && !strings.HasPrefix(line, "mount nsfs "+h.Path("state"))
	})
}

// TestAuditOfAContainerIsItsAdditions: the lines about a container are
// exactly those that its attachment added.
func TestAuditOfAContainerIsItsAdditions(t *testing.T) {
	for name, plugins := range map[string]string{
		"iptables": `{"type": "bridge", "bridge": "br7", "isDefaultGateway": true, "ipMasq": true, "ipam": IPAM},
			{"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}},
			{"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 8000000, "egressRate": 8000000, "egressBurst": 8000000},
			{"type": "firewall", "backend": "iptables"}`,
		"nftables": `{"type": "bridge", "bridge": "br7", "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "macspoofchk": true, "ipam": IPAM},
			{"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}}`,
		"ptp": `{"type": "ptp", "ipMasq": true, "ipam": IPAM}, {"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}}`,
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, plugins)
			h.attach("c11", 8081)
			before := h.audit(nil)
			of := cnitest.Attachments("c1", h.attach("c1", 8080))
			came := cnitest.Diff(before, h.audit(nil))
			if len(of) != 1 || strings.Contains(came, "\n- ") || strings.Count(came, "\n") < 10 {
				t.Fatalf("attachments %+v, and there came\n%s", of, came)
			}
			expect.Same(t, "the lines about c1", cnitest.Diff(nil, h.audit(of)), came)
		})
	}
}

func TestAuditFindsHeldAddressesByItself(t *testing.T) {
	h := newHost(t, `{"type": "ptp", "ipMasq": true, "ipam": IPAM}`)
	h.attach("c11", 8081)
	whole := cnitest.Attachments("c1", h.attach("c1", 8080))
	bare := []cnitest.Attachment{{ContainerID: "c1", Network: "podnet", IfName: "eth0", Links: whole[0].Links}}
	expect.Same(t, "the difference", cnitest.Diff(h.audit(whole), h.audit(bare)), "")
}

func TestAuditAddsRequestedParts(t *testing.T) {
	h := newHost(t, `{"type": "bridge", "bridge": "br7", "isDefaultGateway": true, "ipam": IPAM}`)
	h.attach("c1", 8080)
	count := func(o cnitest.Options, prefix string) int {
		o.StateDirs, o.NetNSDirs = []string{h.Path("state")}, []string{h.Path("netns")}
		lines := expect.Value(cnitest.Audit(t.Context(), o))(t)
		n := 0
		for _, line := range lines {
			if strings.HasPrefix(line, prefix) {
				n++
			}
		}
		return n
	}
	for _, c := range []struct {
		prefix  string
		options cnitest.Options
		without int
	}{
		{prefix: "link br7 ", options: cnitest.Options{Shared: true}},
		{prefix: "file " + h.Path("state/embedcni/locks"), options: cnitest.Options{Shared: true}},
		{prefix: "fd ", options: cnitest.Options{Process: true}},
	} {
		if without, with := count(cnitest.Options{}, c.prefix), count(c.options, c.prefix); without != 0 || with == 0 {
			t.Errorf("%q: %d lines, and %d with %+v", c.prefix, without, with, c.options)
		}
	}
	expect.Same(t, "pinned namespaces", count(cnitest.Options{}, "netns "+h.Path("netns")), 2)
}

func TestAttachmentsHaveTheResultsValues(t *testing.T) {
	result := &cni.Result{Networks: []*cni.NetworkResult{{Name: "podnet", IfName: "eth0", Interfaces: []*cni.Interface{
		{Name: "veth1"}, {Name: "eth0", Sandbox: "/run/netns/c1", Addresses: []cni.Address{{Prefix: netip.MustParsePrefix("10.7.0.2/24")}}},
	}}, {Name: "second", IfName: "eth1"}}}
	want := []string{
		"{c1 podnet eth0 [10.7.0.2] [veth1]}",
		"{c1 second eth1 [] []}",
	}
	var got []string
	for _, a := range cnitest.Attachments("c1", result) {
		got = append(got, fmt.Sprint(a))
	}
	expect.Same(t, "attachments", got, want)
}

// addLink makes a pair of interfaces in the calling thread's namespace.
func addLink(name string) error {
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"})
}
