package cnitest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// TestAuditOmitsWhatStays after the last container, and this process.
func TestAuditOmitsWhatStays(t *testing.T) {
	h := testhost.NewReal(t)
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "podnet", "plugins": [{"type": "bridge", "bridge": "br7", "isDefaultGateway": true, "ipMasq": true,
		"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.7.0.0/24"}]]}},
		{"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}}]}`, h.Path("ipam"))
	rt, path := h.Real(cni.WithConfListBytes([]byte(conf))), h.Container("c1")
	audit := func() []string {
		return expect.Value(cnitest.Audit(t.Context(), cnitest.Options{StateDirs: []string{h.Path("ipam"), h.Path("state")}, NetNSDirs: []string{h.Path("netns")}}))(t)
	}
	before := audit()
	expect.Value(rt.Setup(t.Context(), "c1", path, testhost.MapPort(8080)))(t)
	attached := cnitest.Diff(before, audit())
	expect.Contains(t, "what came", attached, "+ link veth", "+ iptables-nft nat -A CNI-DN-", "+ file "+h.Path("ipam", "podnet", "10.7.0.2"), "+ file "+h.Path("state", "embedcni", "attachments"))
	for _, stays := range []string{"link br7 ", "embedcni/locks", "+ fd ", "\n- "} {
		expect.Lacks(t, "what came", attached, stays)
	}
	expect.NoError(t, rt.Remove(t.Context(), "c1", path))
	lines := audit()
	expect.Same(t, "pinned namespaces", len(slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !strings.HasPrefix(line, "netns "+h.Path("netns")) })), 2)
	expect.Same(t, "what stays", cnitest.Diff(before, lines), "")
}

// addLink makes a pair of interfaces in the calling thread's namespace.
func addLink(name string) error {
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"})
}
