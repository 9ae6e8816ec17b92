package links

import (
	"errors"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/nettest"
)

// vlanMessage is the body of an answer about a port: pairs of flags and an ID.
func vlanMessage(family byte, index int, infos ...[2]uint16) []byte {
	info := ifinfo(index, 0, 0)
	info[0] = family
	m := &message{b: info}
	m.str(unix.IFLA_IFNAME, "veth0")
	m.nest(unix.IFLA_AF_SPEC|unix.NLA_F_NESTED, func() {
		m.attr(bridgeFlags, native.AppendUint16(nil, ofMaster))
		for _, i := range infos {
			m.attr(bridgeVLAN, native.AppendUint16(native.AppendUint16(nil, i[0]), i[1]))
		}
	})
	return m.b
}

func TestVLANsAreRead(t *testing.T) {
	const begin, end, own = vlanRangeBegin, vlanRangeEnd, vlanAccess | vlanUntagged
	index, got, err := parseVLANs(vlanMessage(unix.AF_BRIDGE, 7, [2]uint16{own, 7}, [2]uint16{begin, 100}, [2]uint16{end, 199}, [2]uint16{vlanUntagged, 300}))
	want := VLANs{{7, 7, true}, {100, 199, false}, {300, 300, false}}
	if err != nil || index != 7 || !reflect.DeepEqual(got, want) {
		t.Errorf("%d: %+v, %v", index, got, err)
	}
	for id, in := range map[uint16]bool{7: true, 99: false, 100: true, 150: true, 199: true, 200: false, 300: true} {
		if v, ok := got.Find(id); ok != in || ok && v != (VLAN{id, id == 7}) {
			t.Errorf("VLAN %d: %+v, %v", id, v, ok)
		}
	}
	if got.Access() != 7 || (VLANs{{1, 9, false}}).Access() != 0 {
		t.Errorf("own VLAN %d", got.Access())
	}
	if _, other, err := parseVLANs(vlanMessage(unix.AF_UNSPEC, 7, [2]uint16{own, 7})); other != nil || err != nil {
		t.Errorf("of another family: %v, %v", other, err)
	}
	whole := vlanMessage(unix.AF_BRIDGE, 7, [2]uint16{own, 7})
	for _, b := range [][]byte{nil, whole[:unix.SizeofIfInfomsg-1], whole[:unix.SizeofIfInfomsg+5], whole[:len(whole)-3]} {
		if _, _, err := parseVLANs(b); !errors.Is(err, errTruncated) {
			t.Errorf("%d bytes: %v", len(b), err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	nettest.Shell(t, ns, "ip link add veth0 type veth peer name veth1; ip link set veth0 master br0")
	port := must[Link](t)(c.Link("veth0"))
	var want VLANs
	if knows {
		want = VLANs{{br.DefaultVLAN, br.DefaultVLAN, true}, {7, 8, false}}
		for id := uint16(7); id < 10; id++ {
			if err := c.AddVLAN(port.Index, VLAN{ID: id}); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.DeleteVLAN(port.Index, 9); err != nil {
			t.Fatal(err)
		}
	}
	if got := must[VLANs](t)(c.VLANs(port.Index)); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
