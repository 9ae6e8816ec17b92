package behaviour_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
)

// dualList is a bridge with addresses of both families.
func dualList(h *realHost) []byte {
	return fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [
		{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true,
		 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd00:77::/64"}]]}},
		{"type": "firewall"}]}`, h.Path("ipam"))
}

// whoHas returns the containers that have an address, as "c1/eth0".
func whoHas(t *testing.T, r *cni.Runtime, addr string) []string {
	t.Helper()
	all, err := r.LookupAddr(netip.MustParseAddr(addr))
	if all == nil {
		expect.Is(t, err, cni.ErrNotAttached)
		return nil
	}
	expect.NoError(t, err)
	var names []string
	for _, a := range all {
		names = append(names, a.ContainerID+"/"+a.IfName)
	}
	slices.Sort(names)
	return names
}

// TestLookupAddrFindsTheContainer, in another process too, whatever that has seen before.
func TestLookupAddrFindsTheContainer(t *testing.T) {
	h := newRealHost(t)
	opts := []cni.Opt{cni.WithPluginDir(nil), cni.WithLoNetwork, cni.WithConfListBytes(dualList(h))}
	r, other := h.Runtime(opts...), h.Runtime(append(opts, cni.WithOwner("other"))...)
	addrs := map[string]cni.Address{}
	for _, id := range []string{"c1", "c2"} {
		result := testhost.MustSetUp(t, r, id, h.Container(id))
		addrs[id] = result.IPv4()
		expect.Same(t, "IPv4", whoHas(t, other, result.IPv4().IP().String()), []string{id + "/eth1"})
		expect.Same(t, "IPv6", whoHas(t, other, result.IPv6().IP().String()), []string{id + "/eth1"})
		expect.Same(t, "mapped", whoHas(t, r, "::ffff:"+result.IPv4().IP().String()), []string{id + "/eth1"})
		expect.Same(t, "the host's", whoHas(t, other, result.IPv4().Gateway.String()), nil)
	}
	all := expect.Value(other.LookupAddr(addrs["c2"].IP()))(t)
	listed := expect.Value(other.Attachments())(t)
	i := slices.IndexFunc(listed, func(a cni.Attachment) bool { return a.ContainerID == "c2" && a.IfName == "eth1" })
	expect.Same(t, "attachment", all, listed[i:i+1])

	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	expect.Same(t, "removed", whoHas(t, other, addrs["c1"].IP().String()), nil)
	for _, addr := range []string{"127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1"} {
		expect.Is(t, errOf(r.LookupAddr(netip.MustParseAddr(addr))), cni.ErrInvalidArgument)
	}
	expect.Is(t, errOf(r.LookupAddr(netip.Addr{})), cni.ErrInvalidArgument)

	h.ChangeRecord("c2", func(rec *record.Record) { rec.Boot = "another" })
	expect.Same(t, "of an earlier boot", whoHas(t, other, addrs["c2"].IP().String()), nil)
	expect.NoError(t, r.Remove(t.Context(), "c2", ""))
}

// TestLookupAddrOfADamagedRecord: the address may be in use.
func TestLookupAddrOfADamagedRecord(t *testing.T) {
	h := newRealHost(t)
	r := h.Runtime(cni.WithPluginDir(nil), cni.WithConfListBytes(dualList(h)))
	result := testhost.MustSetUp(t, r, "c1", h.Container("c1"))
	h.SpoilBase("c1", "{")
	all := expect.Value(r.LookupAddr(result.IPv4().IP()))(t)
	expect.Same(t, "state", []any{len(all), all[0].ContainerID, all[0].State}, []any{1, "c1", cni.Unknown})
	expect.NoError(t, r.Remove(t.Context(), "c1", h.Path("netns", "c1")))
}

// inside runs f with a handle in a container's namespace.
func (h *realHost) inside(id string, f func(eth0 netlink.Link) error) {
	h.T.Helper()
	h.Inside(h.Path("netns", id), func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return f(link)
	})
}

func recordSize(h *realHost, id string) int64 {
	h.T.Helper()
	info := expect.Value(os.Stat(h.RecordFile(id) + ".json"))(h.T)
	return info.Size()
}
