package links

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Link is an interface as the kernel describes it.
type Link struct {
	Index     int
	Name      string
	Kind      string // "bridge", "veth"; empty for lo and hardware
	MAC       net.HardwareAddr
	MTU       int
	Flags     uint32 // IFF_*
	OperState uint8  // IF_OPER_*
	Master    int    // the index of the bridge, or 0
	// Peer is the index of a veth's other end, in the namespace that it is in.
	// PeerElsewhere is set if that is not the interface's own.
	Peer          int
	PeerElsewhere bool
	// Promiscuous is the flag that was set. An interface can be in that mode
	// without it, for a sniffer or because it is a port of a bridge.
	Promiscuous bool
	// VLANFiltering and DefaultVLAN are a bridge's: whether it keeps VLANs
	// apart, and the one that new ports are put in, or 0.
	VLANFiltering bool
	DefaultVLAN   uint16
	// Hairpin and Isolated are those of a bridge's port, and Port is its number:
	// the lowest that was free.
	Hairpin, Isolated bool
	Port              int
	// Settings are what /proc/sys has of it.
	Settings Settings
}

// Up tells whether the interface is set up. It may have no carrier.
func (l Link) Up() bool { return l.Flags&unix.IFF_UP != 0 }

// Running tells whether packets can pass: the carrier is there, and the kernel
// has acted on it (RFC 2863, section 3.1.14).
func (l Link) Running() bool { return l.OperState == operUp }

// Carrier reports whether the interface is up and has a carrier. The kernel may
// not have acted on it yet.
func (l Link) Carrier() bool { return l.Flags&unix.IFF_LOWER_UP != 0 }

const (
	operUp       = 6 // IF_OPER_UP, <linux/if.h>
	withoutStats = 8 // RTEXT_FILTER_SKIP_STATS, <linux/rtnetlink.h>
)

// Link looks an interface up by its name. The error is NotFound if there is
// none.
func (c *Conn) Link(name string) (Link, error) {
	if len(name) >= unix.IFNAMSIZ {
		return Link{}, fmt.Errorf("interface %q: %w: the name is too long", name, unix.ENODEV)
	}
	r := c.Requests()
	l := r.Link(name)
	err := r.Send()
	return *l, err
}

// validName refuses a name in which the kernel would put a number
// (dev_alloc_name): the interface would get another name than was asked for.
func validName(name string) error {
	if strings.Contains(name, "%") {
		return fmt.Errorf("%w: the name contains %%", unix.EINVAL)
	}
	return nil
}

// Link looks an interface up by its name, which is none that is too long.
// Errors among fine are none, but then there is no index.
func (r *Requests) Link(name string, fine ...error) *Link {
	m := newMessage(unix.RTM_GETLINK, 0, ifinfo(0, 0, 0))
	m.str(unix.IFLA_IFNAME, name)
	return r.link(m, fmt.Sprintf("interface %q", name), fine...)
}

// LinkByIndex looks an interface up by its index. Since Linux 6.8 the answer
// waits for what the kernel has yet to do about a change of the carrier.
func (c *Conn) LinkByIndex(index int) (Link, error) {
	r := c.Requests()
	l := r.LinkByIndex(index)
	err := r.Send()
	return *l, err
}

// LinkByIndex is as that of [Conn].
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

// ifinfo is a struct ifinfomsg (<linux/rtnetlink.h>) that changes the flags of
// the mask.
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
	l := Link{Index: int(native.Uint32(body[4:])), Flags: native.Uint32(body[8:])}
	l.Promiscuous = l.Flags&unix.IFF_PROMISC != 0
	var nested error
	var data, port, settings []byte
	err := eachAttr(body[unix.SizeofIfInfomsg:], func(typ uint16, value []byte) {
		switch typ {
		case unix.IFLA_IFNAME:
			l.Name = text(value)
		case unix.IFLA_ADDRESS:
			l.MAC = append(net.HardwareAddr(nil), value...)
		case unix.IFLA_MTU:
			l.MTU = int(number(value))
		case unix.IFLA_OPERSTATE:
			l.OperState = uint8(number(value))
		case unix.IFLA_MASTER:
			l.Master = int(number(value))
		case unix.IFLA_LINK:
			l.Peer = int(number(value))
		case unix.IFLA_LINK_NETNSID:
			l.PeerElsewhere = true
		case unix.IFLA_AF_SPEC:
			settings = value
		case unix.IFLA_LINKINFO:
			nested = eachAttr(value, func(typ uint16, value []byte) {
				switch typ {
				case unix.IFLA_INFO_KIND:
					l.Kind = text(value)
				case unix.IFLA_INFO_DATA:
					data = value
				case unix.IFLA_INFO_SLAVE_DATA:
					port = value
				}
			})
		}
	})
	if err := errors.Join(err, nested, l.Settings.parse(settings)); err != nil {
		return Link{}, err
	}
	return l, l.parseBridge(data, port)
}

// parseBridge reads what is a bridge's, and what is its port's.
func (l *Link) parseBridge(data, port []byte) error {
	if l.Kind == "bridge" {
		err := eachAttr(data, func(typ uint16, value []byte) {
			switch typ {
			case unix.IFLA_BR_VLAN_FILTERING:
				l.VLANFiltering = number(value) != 0
			case unix.IFLA_BR_VLAN_DEFAULT_PVID:
				l.DefaultVLAN = uint16(number(value))
			}
		})
		if err != nil {
			return err
		}
	}
	if l.Master == 0 {
		return nil
	}
	return eachAttr(port, func(typ uint16, value []byte) {
		switch typ {
		case nl.IFLA_BRPORT_NO:
			l.Port = int(number(value))
		case nl.IFLA_BRPORT_MODE:
			l.Hairpin = number(value) != 0
		case nl.IFLA_BRPORT_ISOLATED:
			l.Isolated = number(value) != 0
		}
	})
}

// Change is what is to change about an interface. What is zero stays.
type Change struct {
	Up          bool
	Promiscuous bool
	MAC         net.HardwareAddr
}

// Change changes an interface.
func (c *Conn) Change(index int, change Change) error {
	return c.execute(changeMessage(index, change), nil)
}

// Up sets an interface up.
func (r *Requests) Up(index int) {
	r.add(changeMessage(index, Change{Up: true}), nil, "set the interface up")
}

// Down sets an interface down.
func (r *Requests) Down(index int) {
	m := newMessage(unix.RTM_NEWLINK, unix.NLM_F_ACK, ifinfo(index, 0, unix.IFF_UP))
	r.add(m, nil, "set the interface down")
}

func changeMessage(index int, change Change) *message {
	var flags uint32
	if change.Up {
		flags |= unix.IFF_UP
	}
	if change.Promiscuous {
		flags |= unix.IFF_PROMISC
	}
	m := newMessage(unix.RTM_NEWLINK, unix.NLM_F_ACK, ifinfo(index, flags, flags))
	if change.MAC != nil {
		m.attr(unix.IFLA_ADDRESS, change.MAC)
	}
	return m
}

// Delete deletes an interface, which is fine if it is gone. It waits for what
// the kernel waits for, about 20 ms.
func (c *Conn) Delete(index int) error {
	err := c.execute(newMessage(unix.RTM_DELLINK, unix.NLM_F_ACK, ifinfo(index, 0, 0)), nil)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}
