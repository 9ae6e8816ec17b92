package links

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// Link is an interface as the kernel describes it.
type Link struct {
	Index int
	Name  string
	// Others are further names under which Link finds the interface.
	Others []string
	Alias  string
	Type
	State
	MAC         net.HardwareAddr
	MTU         int
	QueueLength int // length of the transmit queue
	Peer        Peer
	Port        Port
	Hardware    Hardware
	Settings    Settings // those below /proc/sys
}

// Type is the type of an interface, with the settings that only that type has.
type Type struct {
	Kind string // "bridge", "veth"; empty for lo and hardware
	// VLANFiltering reports whether a bridge separates VLANs. DefaultVLAN is the
	// VLAN of its new ports, or 0.
	VLANFiltering bool
	DefaultVLAN   uint16
	// MacvlanMode is one of the modes of [Macvlan].
	MacvlanMode uint32
}

// Peer is the other end of a veth pair, or the interface below a macvlan or a
// vlan.
type Peer struct {
	Index int // in its own namespace; 0 for none
	// Elsewhere is set if the peer is in another namespace than the interface.
	// NetNS is the number that the namespace has there; see [Conn.NetNS].
	Elsewhere bool
	NetNS     int
}

// Port is an interface as the port of a bridge.
type Port struct {
	Master int // the index of the bridge, or 0
	Number int // the lowest free number
	PortMode
}

// Hardware identifies the device behind an interface.
type Hardware struct {
	MAC       net.HardwareAddr // the permanent one, or nil
	Bus, Name string           // "pci", "0000:00:1f.6"
}

// State is the state of an interface.
type State struct {
	Flags     uint32 // IFF_*
	OperState uint8  // IF_OPER_*
}

// Up reports whether the interface is set up. It may have no carrier.
func (s State) Up() bool { return s.Flags&unix.IFF_UP != 0 }

// Running reports whether packets can pass: the interface has a carrier, and the
// kernel has acted on it (RFC 2863, section 3.1.14).
func (s State) Running() bool { return s.OperState == operUp }

// Carrier reports whether the interface is up and has a carrier. The kernel may
// not have acted on it yet.
func (s State) Carrier() bool { return s.Flags&unix.IFF_LOWER_UP != 0 }

// Promiscuous reports whether that mode was set. An interface can be in it
// without the flag, because of a sniffer or as a bridge port.
func (s State) Promiscuous() bool { return s.Flags&unix.IFF_PROMISC != 0 }

const (
	operUp       = 6 // IF_OPER_UP, <linux/if.h>
	withoutStats = 8 // RTEXT_FILTER_SKIP_STATS, <linux/rtnetlink.h>
)

// Link looks an interface up by its name. If there is none, NotFound is true of
// the error.
func (c *Conn) Link(name string) (Link, error) {
	if len(name) >= unix.IFNAMSIZ {
		return Link{}, Missing(name)
	}
	r := c.Requests()
	l := r.Link(name)
	err := r.Send()
	return *l, err
}

// Missing returns the error of Link for a name that no interface has.
func Missing(name string) error {
	if len(name) >= unix.IFNAMSIZ {
		return fmt.Errorf("interface %q: %w: the name is too long", name, unix.ENODEV)
	}
	return fmt.Errorf("interface %q: %w", name, &KernelError{Errno: unix.ENODEV})
}

// validName refuses a name in which the kernel would insert a number
// (dev_alloc_name): the interface would get another name than requested.
func validName(name string) error {
	if strings.Contains(name, "%") {
		return fmt.Errorf("%w: the name contains %%", unix.EINVAL)
	}
	return nil
}

// Link looks an interface up by its name, which must not be too long. It ignores
// the errors in fine; the index is then 0.
func (r *Requests) Link(name string, fine ...error) *Link {
	m := newMessage(unix.RTM_GETLINK, 0, ifinfo(0, 0, 0))
	m.str(unix.IFLA_IFNAME, name)
	return r.link(m, fmt.Sprintf("interface %q", name), fine...)
}

// LinkByIndex looks an interface up by its index. Since Linux 6.8 the answer
// comes only after the kernel has handled a change of the carrier.
func (c *Conn) LinkByIndex(index int) (Link, error) {
	r := c.Requests()
	l := r.LinkByIndex(index)
	err := r.Send()
	return *l, err
}

// LinkByIndex is [Conn.LinkByIndex] as a request.
func (r *Requests) LinkByIndex(index int) *Link {
	return r.link(newMessage(unix.RTM_GETLINK, 0, ifinfo(index, 0, 0)), fmt.Sprintf("interface %d", index))
}

func (r *Requests) link(m *message, what string, fine ...error) *Link {
	l := new(Link)
	m.u32(unix.IFLA_EXT_MASK, withoutStats)
	r.add(m, func(body []byte) (err error) {
		*l, err = parseLink(body)
		return err
	}, what, fine...)
	return l
}

// PeerLink looks up the other end of a veth pair whose peer is elsewhere. If the kernel is
// about to delete the pair, because nothing refers to that namespace any more, NotFound is
// true of the error.
func (c *Conn) PeerLink(l Link) (Link, error) {
	if l.Peer.NetNS < 0 { // a namespace gets a number unless it is ending
		return Link{}, Missing("the peer of " + l.Name)
	}
	r := c.Requests()
	m := newMessage(unix.RTM_GETLINK, 0, ifinfo(l.Peer.Index, 0, 0))
	m.u32(unix.IFLA_TARGET_NETNSID, uint32(l.Peer.NetNS))
	peer := r.link(m, fmt.Sprintf("the peer of %q", l.Name))
	err := r.Send()
	if errors.Is(err, unix.EINVAL) { // of a number whose namespace is ending
		err = fmt.Errorf("%w: %w", Missing("the peer of "+l.Name), err)
	}
	return *peer, err
}

// IsFallback reports whether an interface can be one that the kernel creates in
// each namespace for a kind of tunnel (net.core.fb_tunnels_only_for_init_net).
func (l Link) IsFallback() bool {
	return slices.Contains([]string{"ipip", "sit", "ip6tnl", "gre", "gretap", "erspan", "ip6gre", "vti", "vti6"}, l.Kind)
}

// Links lists the interfaces of the namespace. The list is complete, or the error
// wraps [ErrTorn]: if interfaces come or go while the kernel sends it, Links asks
// again.
func (c *Conn) Links() ([]Link, error) {
	var all []Link
	m := newMessage(unix.RTM_GETLINK, unix.NLM_F_DUMP, ifinfo(0, 0, 0))
	m.u32(unix.IFLA_EXT_MASK, withoutStats)
	err := c.list(m, func() { all = nil }, func(body []byte) error {
		l, err := parseLink(body)
		all = append(all, l)
		return err
	})
	if err != nil {
		return all, fmt.Errorf("list the interfaces: %w", err)
	}
	return all, nil
}

// NetNS returns the number of another namespace in that of c, or -1 if it has
// none because no interface leads there.
func (c *Conn) NetNS(ns *netns.Handle) (id int, err error) {
	id = unix.NETNSA_NSID_NOT_ASSIGNED
	m := newMessage(unix.RTM_GETNSID, 0, make([]byte, align)) // a struct rtgenmsg
	m.u32(unix.NETNSA_FD, uint32(ns.File().Fd()))
	err = c.execute(m, func(body []byte) error {
		if len(body) < align {
			return errTruncated
		}
		return eachAttr(body[align:], func(typ uint16, value []byte) {
			if typ == unix.NETNSA_NSID {
				id = int(int32(number(value)))
			}
		})
	})
	if err != nil {
		return id, fmt.Errorf("number of namespace %s: %w", ns.ID(), err)
	}
	return id, nil
}

// ifinfo encodes a struct ifinfomsg (<linux/rtnetlink.h>) that changes the flags
// in the mask.
func ifinfo(index int, flags, mask uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	native.PutUint32(b[4:], uint32(index))
	native.PutUint32(b[8:], flags)
	native.PutUint32(b[12:], mask)
	return b
}

// parseLink reads the body of an RTM_NEWLINK.
func parseLink(body []byte) (Link, error) {
	if len(body) < unix.SizeofIfInfomsg {
		return Link{}, errTruncated
	}
	l := Link{Index: int(native.Uint32(body[4:])), State: State{Flags: native.Uint32(body[8:])}}
	var info, settings, others []byte
	err := eachAttr(body[unix.SizeofIfInfomsg:], func(typ uint16, value []byte) {
		switch typ {
		case unix.IFLA_IFNAME:
			l.Name = unix.ByteSliceToString(value)
		case unix.IFLA_IFALIAS:
			l.Alias = unix.ByteSliceToString(value)
		case unix.IFLA_ADDRESS:
			l.MAC = append(net.HardwareAddr(nil), value...)
		case unix.IFLA_MTU:
			l.MTU = int(number(value))
		case unix.IFLA_TXQLEN:
			l.QueueLength = int(number(value))
		case unix.IFLA_OPERSTATE:
			l.OperState = uint8(number(value))
		case unix.IFLA_MASTER:
			l.Port.Master = int(number(value))
		case unix.IFLA_LINK:
			l.Peer.Index = int(number(value))
		case unix.IFLA_LINK_NETNSID:
			l.Peer.Elsewhere, l.Peer.NetNS = true, int(int32(number(value)))
		case unix.IFLA_PROP_LIST:
			others = value
		case unix.IFLA_AF_SPEC:
			settings = value
		case unix.IFLA_LINKINFO:
			info = value
		default:
			l.Hardware.parse(typ, value)
		}
	})
	if err := errors.Join(err, l.parseInfo(info), l.Settings.parse(settings), l.parseOthers(others)); err != nil {
		return Link{}, err
	}
	return l, nil
}

// parseOthers reads an IFLA_PROP_LIST.
func (l *Link) parseOthers(list []byte) error {
	return eachAttr(list, func(typ uint16, value []byte) {
		if typ == unix.IFLA_ALT_IFNAME {
			l.Others = append(l.Others, unix.ByteSliceToString(value))
		}
	})
}

// parse reads an attribute if it describes the device.
func (h *Hardware) parse(typ uint16, value []byte) {
	switch typ {
	case unix.IFLA_PERM_ADDRESS:
		if slices.ContainsFunc(value, func(b byte) bool { return b != 0 }) { // all zero: it has none
			h.MAC = append(net.HardwareAddr(nil), value...)
		}
	case unix.IFLA_PARENT_DEV_NAME:
		h.Name = unix.ByteSliceToString(value)
	case unix.IFLA_PARENT_DEV_BUS_NAME:
		h.Bus = unix.ByteSliceToString(value)
	}
}

// parseInfo reads an IFLA_LINKINFO: the kind, its own data, and a port's data.
func (l *Link) parseInfo(info []byte) error {
	var data, port []byte
	err := eachAttr(info, func(typ uint16, value []byte) {
		switch typ {
		case unix.IFLA_INFO_KIND:
			l.Kind = unix.ByteSliceToString(value)
		case unix.IFLA_INFO_DATA:
			data = value
		case unix.IFLA_INFO_SLAVE_DATA:
			port = value
		}
	})
	if err != nil {
		return err
	}
	if err := l.Type.parse(data); err != nil || l.Port.Master == 0 {
		return err
	}
	return eachAttr(port, func(typ uint16, value []byte) {
		if typ == unix.IFLA_BRPORT_NO {
			l.Port.Number = int(number(value))
		}
		l.Port.PortMode.parse(typ, value)
	})
}

// parse reads an IFLA_INFO_DATA.
func (k *Type) parse(data []byte) error {
	return eachAttr(data, func(typ uint16, value []byte) {
		switch {
		case k.Kind == "bridge" && typ == unix.IFLA_BR_VLAN_FILTERING:
			k.VLANFiltering = number(value) != 0
		case k.Kind == "bridge" && typ == unix.IFLA_BR_VLAN_DEFAULT_PVID:
			k.DefaultVLAN = uint16(number(value))
		case k.Kind == "macvlan" && typ == unix.IFLA_MACVLAN_MODE:
			k.MacvlanMode = number(value)
		}
	})
}

// Change lists changes of an interface. Zero fields change nothing.
type Change struct {
	Set, Clear  uint32 // IFF_*
	Name        string
	Alias       *string
	MAC         net.HardwareAddr
	MTU         int
	QueueLength *int
}

// Change changes an interface.
func (c *Conn) Change(index int, change Change) error {
	return c.execute(changeMessage(index, change), nil)
}

// Up sets an interface up.
func (r *Requests) Up(index int) {
	r.add(changeMessage(index, Change{Set: unix.IFF_UP}), nil, "set the interface up")
}

// Down sets an interface down.
func (r *Requests) Down(index int) {
	r.add(changeMessage(index, Change{Clear: unix.IFF_UP}), nil, "set the interface down")
}

func changeMessage(index int, change Change) *message {
	m := newMessage(unix.RTM_NEWLINK, unix.NLM_F_ACK, ifinfo(index, change.Set, change.Set|change.Clear))
	if change.Name != "" {
		m.str(unix.IFLA_IFNAME, change.Name)
	}
	if change.Alias != nil {
		m.attr(unix.IFLA_IFALIAS, []byte(*change.Alias))
	}
	if change.MAC != nil {
		m.attr(unix.IFLA_ADDRESS, change.MAC)
	}
	if change.MTU != 0 {
		m.u32(unix.IFLA_MTU, uint32(change.MTU))
	}
	if change.QueueLength != nil {
		m.u32(unix.IFLA_TXQLEN, uint32(*change.QueueLength))
	}
	return m
}

// Delete deletes an interface, and ignores a missing one. The kernel waits for a
// grace period, about 20 ms.
func (c *Conn) Delete(index int) error {
	err := c.execute(newMessage(unix.RTM_DELLINK, unix.NLM_F_ACK, ifinfo(index, 0, 0)), nil)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// DeleteAndClose deletes an interface and closes the socket. It is for a deletion
// that waits in a batch: the socket keeps the namespace in existence until then.
func (c *Conn) DeleteAndClose(index int, name string) error {
	err := c.Delete(index)
	if err != nil {
		err = fmt.Errorf("delete interface %q: %w", name, err)
	}
	return errors.Join(err, c.Close())
}
