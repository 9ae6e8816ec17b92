package links

import (
	"errors"
	"reflect"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
)

// vlanMessage is the body of an answer about a port: pairs of flags and an ID, and more.
func vlanMessage(family uint8, index int, vlans [][2]uint16, more ...attribute) []byte {
	fixed := portinfo(index)
	fixed.Family = family
	infos := []attribute{data(nl.IFLA_BRIDGE_FLAGS, nl.Uint16Attr(nl.BRIDGE_FLAGS_MASTER)...)}
	for _, i := range vlans {
		infos = append(infos, data(nl.IFLA_BRIDGE_VLAN_INFO, (&nl.BridgeVlanInfo{Flags: i[0], Vid: i[1]}).Serialize()...))
	}
	return body(request(unix.RTM_NEWLINK, 0, fixed, append([]attribute{str(unix.IFLA_IFNAME, "veth0"), nest(unix.IFLA_AF_SPEC|unix.NLA_F_NESTED, infos...)}, more...)...))
}

// body is that of a message.
func body(m *nl.NetlinkRequest) []byte { return m.Serialize()[unix.NLMSG_HDRLEN:] }

func TestVLANsAreRead(t *testing.T) {
	read := func(b []byte) (bridgePort, error) {
		m := parse(unix.RTM_NEWLINK, b)
		return parsePort(m), *m.bad
	}
	p, err := read(vlanMessage(unix.AF_BRIDGE, 7, [][2]uint16{{vlanAccess, 7}, {nl.BRIDGE_VLAN_INFO_RANGE_BEGIN, 100}, {nl.BRIDGE_VLAN_INFO_RANGE_END, 199}, {nl.BRIDGE_VLAN_INFO_UNTAGGED, 300}}))
	got := p.VLANs
	want := VLANs{{7, 7, true}, {100, 199, false}, {300, 300, false}}
	expect.That(t, err == nil && p.Interface == 7 && reflect.DeepEqual(got, want), "%+v, %v", p, err)
	for id, in := range map[uint16]bool{7: true, 99: false, 100: true, 150: true, 199: true, 200: false, 300: true} {
		v, ok := got.Find(id)
		expect.That(t, ok == in && (!ok || v == (VLAN{id, id == 7})), "VLAN %d: %+v, %v", id, v, ok)
	}
	expect.That(t, got.Access() == 7 && (VLANs{{1, 9, false}}).Access() == 0, "own VLAN %d", got.Access())
	other, err := read(vlanMessage(unix.AF_UNSPEC, 7, [][2]uint16{{vlanAccess, 7}}))
	expect.That(t, other.VLANs == nil && err == nil, "of another family: %v, %v", other, err)
	whole := vlanMessage(unix.AF_BRIDGE, 7, [][2]uint16{{vlanAccess, 7}})
	for _, b := range [][]byte{nil, whole[:unix.SizeofIfInfomsg-1], whole[:unix.SizeofIfInfomsg+5], whole[:len(whole)-3]} {
		_, err := read(b)
		expect.That(t, errors.Is(err, errTruncated), "%d bytes: %v", len(b), err)
	}
}

// TestVLANsOfPorts: each port is listed with those that it was given and has not lost. On
// a kernel whose bridges do not know VLANs, which the log says, it has none.
func TestVLANsOfPorts(t *testing.T) {
	ns := newNS(t, "host")
	c := mustDial(t, ns)
	br, err := Bridge{Name: "br0", VLANFiltering: true}.Create(c)
	knows := !errors.Is(err, unix.EOPNOTSUPP)
	if !knows {
		t.Log("not run: this kernel's bridges do not know VLANs")
		br, err = Bridge{Name: "br0"}.Create(c)
	}
	expect.NoError(t, err)
	nettest.Shell(t, ns, "ip link add veth0 type veth peer name veth1; ip link set veth0 master br0")
	port := must[Link](t)(c.Link("veth0"))
	var want VLANs
	if knows {
		want = VLANs{{br.DefaultVLAN, br.DefaultVLAN, true}, {7, 8, false}}
		for id := uint16(7); id < 10; id++ {
			expect.NoError(t, AddVLAN(c, port.Index, VLAN{ID: id}))
		}
		expect.NoError(t, DeleteVLAN(c, port.Index, 9))
	}
	expect.Same(t, "bridge", must[VLANs](t)(c.VLANs(port.Index)), want)
}
