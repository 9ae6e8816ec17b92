// Package links creates and changes network interfaces, their addresses and
// routes over rtnetlink, from outside their namespace, and deletes UDP flows from
// conntrack. No other package does so: bandwidth alone uses netlink.Handle, for
// traffic control.
package links

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/netns"
)

// NotFound reports whether an error means that there is no such interface.
func NotFound(err error) bool { return errors.Is(err, unix.ENODEV) }

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
	// MacvlanMode is the Mode of a [Macvlan].
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
	return c.link(linkRequest(0, str(unix.IFLA_IFNAME, name)), fmt.Sprintf("interface %q", name))
}

// Missing returns the error of Link for a name that no interface has.
func Missing(name string) error {
	if len(name) >= unix.IFNAMSIZ {
		return fmt.Errorf("interface %q: %w: the name is too long", name, unix.ENODEV)
	}
	return fmt.Errorf("interface %q: %w", name, unix.ENODEV)
}

// validName refuses a name in which the kernel would insert a number
// (dev_alloc_name): the interface would get another name than requested.
func validName(name string) error {
	if strings.Contains(name, "%") {
		return fmt.Errorf("%w: the name contains %%", unix.EINVAL)
	}
	return nil
}

// LinkByIndex looks an interface up by its index. Since Linux 6.8 the answer
// comes only after the kernel has handled a change of the carrier.
func (c *Conn) LinkByIndex(index int) (Link, error) {
	return c.link(linkRequest(index), fmt.Sprintf("interface %d", index))
}

// linkRequest is a query for an interface.
func linkRequest(index int, attrs ...attribute) *nl.NetlinkRequest {
	return request(unix.RTM_GETLINK, 0, ifinfo(index, 0, 0), append(attrs, u32(unix.IFLA_EXT_MASK, withoutStats))...)
}

// linkList is a query for all interfaces.
func linkList(attrs ...attribute) *nl.NetlinkRequest {
	m := linkRequest(0, attrs...)
	m.Flags |= unix.NLM_F_DUMP
	return m
}

func (c *Conn) link(m *nl.NetlinkRequest, what string) (l Link, err error) {
	err = c.do(m, func(m message) { l = parseLink(m) }, what)
	return l, err
}

// PeerLink looks up the other end of a veth pair whose peer is elsewhere. If the kernel is
// about to delete the pair, because nothing refers to that namespace any more, NotFound is
// true of the error.
func PeerLink(c *Conn, l Link) (Link, error) {
	if l.Peer.NetNS < 0 { // a namespace gets a number unless it is ending
		return Link{}, Missing("the peer of " + l.Name)
	}
	peer, err := c.link(linkRequest(l.Peer.Index, u32(unix.IFLA_TARGET_NETNSID, uint32(l.Peer.NetNS))), fmt.Sprintf("the peer of %q", l.Name))
	if errors.Is(err, unix.EINVAL) { // of a number whose namespace is ending
		err = fmt.Errorf("%w: %w", Missing("the peer of "+l.Name), err)
	}
	return peer, err
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
	err := c.list(linkList(), func() { all = nil }, func(m message) { all = append(all, parseLink(m)) })
	return all, saying("list the interfaces", err)
}

// NetNS returns the number of another namespace in that of c, or -1 if it has
// none because no interface leads there.
func (c *Conn) NetNS(ns *netns.Handle) (id int, err error) {
	id = unix.NETNSA_NSID_NOT_ASSIGNED
	m := request(unix.RTM_GETNSID, 0, nl.NewRtGenMsg(), u32(unix.NETNSA_FD, uint32(ns.File().Fd())))
	err = c.do(m, func(m message) {
		if m.get(unix.NETNSA_NSID) != nil {
			id = m.int(unix.NETNSA_NSID)
		}
	}, fmt.Sprintf("number of namespace %s", ns.ID()))
	return id, err
}

// parseLink reads an RTM_NEWLINK.
func parseLink(m message) Link {
	fixed := nl.DeserializeIfInfomsg(m.body)
	l := Link{
		Index:       int(fixed.Index),
		Name:        m.str(unix.IFLA_IFNAME),
		Alias:       m.str(unix.IFLA_IFALIAS),
		State:       State{Flags: fixed.Flags, OperState: uint8(m.num(unix.IFLA_OPERSTATE))},
		MAC:         slices.Clone(m.get(unix.IFLA_ADDRESS)),
		MTU:         m.int(unix.IFLA_MTU),
		QueueLength: m.int(unix.IFLA_TXQLEN),
		Peer:        Peer{Index: m.int(unix.IFLA_LINK), Elsewhere: m.get(unix.IFLA_LINK_NETNSID) != nil, NetNS: m.int(unix.IFLA_LINK_NETNSID)},
		Port:        Port{Master: m.int(unix.IFLA_MASTER)},
		Hardware:    Hardware{Bus: m.str(unix.IFLA_PARENT_DEV_BUS_NAME), Name: m.str(unix.IFLA_PARENT_DEV_NAME)},
	}
	for typ, other := range m.nest(unix.IFLA_PROP_LIST).each {
		if typ == unix.IFLA_ALT_IFNAME {
			l.Others = append(l.Others, unix.ByteSliceToString(other))
		}
	}
	if mac := m.get(unix.IFLA_PERM_ADDRESS); slices.ContainsFunc(mac, func(b byte) bool { return b != 0 }) { // all zero: it has none
		l.Hardware.MAC = slices.Clone(mac)
	}
	l.Settings.parse(m.nest(unix.IFLA_AF_SPEC))
	l.parseInfo(m.nest(unix.IFLA_LINKINFO))
	return l
}

// parseInfo reads an IFLA_LINKINFO: the kind, its own data, and a port's data.
func (l *Link) parseInfo(info attributes) {
	l.Kind = info.str(unix.IFLA_INFO_KIND)
	switch own := info.nest(unix.IFLA_INFO_DATA); l.Kind {
	case "bridge":
		l.VLANFiltering = own.num(unix.IFLA_BR_VLAN_FILTERING) != 0
		l.DefaultVLAN = uint16(own.num(unix.IFLA_BR_VLAN_DEFAULT_PVID))
	case "macvlan":
		l.MacvlanMode = own.num(unix.IFLA_MACVLAN_MODE)
	}
	if l.Port.Master != 0 {
		port := info.nest(unix.IFLA_INFO_SLAVE_DATA)
		l.Port.Number = port.int(unix.IFLA_BRPORT_NO)
		l.Port.PortMode = portMode(port)
	}
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
func (c *Conn) Up(index int) error {
	return c.do(changeMessage(index, Change{Set: unix.IFF_UP}), nil, "set the interface up")
}

// Down sets an interface down.
func (c *Conn) Down(index int) error {
	return c.do(changeMessage(index, Change{Clear: unix.IFF_UP}), nil, "set the interface down")
}

func changeMessage(index int, change Change) *nl.NetlinkRequest {
	m := request(unix.RTM_NEWLINK, unix.NLM_F_ACK, ifinfo(index, change.Set, change.Set|change.Clear), mac(change.MAC), mtu(change.MTU))
	if change.Name != "" {
		m.AddData(str(unix.IFLA_IFNAME, change.Name))
	}
	if change.Alias != nil {
		m.AddData(data(unix.IFLA_IFALIAS, []byte(*change.Alias)...))
	}
	if change.QueueLength != nil {
		m.AddData(u32(unix.IFLA_TXQLEN, uint32(*change.QueueLength)))
	}
	return m
}

// Delete deletes an interface, and ignores a missing one. The kernel waits for a
// grace period, about 20 ms.
func (c *Conn) Delete(index int) error {
	err := c.execute(request(unix.RTM_DELLINK, unix.NLM_F_ACK, ifinfo(index, 0, 0)), nil)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// DeleteAndClose deletes an interface and closes the socket. It is for a deletion
// that waits in a batch: the socket keeps the namespace in existence until then.
func DeleteAndClose(c *Conn, index int, name string) error {
	err := saying(fmt.Sprintf("delete interface %q", name), c.Delete(index))
	return joined.Errors(err, c.Close())
}

// Move is the wanted state of an interface in the namespace that it is moved to.
type Move struct {
	Name  string
	Alias string // empty for none
	Up    bool
}

// Move moves an interface to another namespace with one message, so that it
// never appears there under an old name that is taken. Its index may change, and
// it loses its addresses and routes.
//
// After an error it may be in either namespace, under either name.
func (c *Conn) Move(index int, to *netns.Handle, how Move) error {
	what := fmt.Sprintf("move to namespace %s as %q", to.ID(), how.Name)
	if err := validName(how.Name); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	var flags uint32
	if how.Up {
		flags = unix.IFF_UP
	}
	m := request(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(index, flags, unix.IFF_UP),
		namespace(to.File().Fd()), str(unix.IFLA_IFNAME, how.Name), data(unix.IFLA_IFALIAS, []byte(how.Alias)...))
	return c.do(m, nil, what)
}
