package links

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/netns"
)

// Veth is a veth pair to create, with one end in a container.
type Veth struct {
	// Name and MAC are those of the container's end. If MAC is nil, Create
	// chooses one.
	Name string
	MAC  net.HardwareAddr
	// MTU is that of both ends; 0 is the kernel's default.
	MTU int
	// Master is the index of the bridge for the host's end, or 0. Mode is that of the
	// port.
	Master int
	Mode   PortMode
}

// Pair is a created veth pair.
type Pair struct {
	Host, Container Link
}

// mostNames limits the attempts at a free random name. Each name in use takes
// one of 2³².
const mostNames = 10

// mostPorts is the number of ports that a bridge can have: they are numbered from 1, in
// ten bits (BR_MAX_PORTS, find_portno).
const mostPorts = 1<<10 - 1

// Create creates the pair with one message: the container's end in its
// namespace, named and down, and the host's end in the namespace of c, up, or on
// the bridge and then up. The host's end has a random name.
//
// A bridge port gets no link-local IPv6 address. Its packets are the bridge's;
// and thousands of ports would add thousands of routes to fe80::/64, which the
// kernel searches one by one for every packet.
//
// Each end has one queue for each direction. By default the kernel creates one
// for each possible CPU and disables all but one, which takes two grace periods
// (veth_init_queues).
//
// Create chooses the MAC addresses of both ends, because udev replaces addresses
// that the kernel chose.
func (v Veth) Create(c *Conn, container *netns.Handle) (Pair, error) {
	if err := validName(v.Name); err != nil {
		return Pair{}, fmt.Errorf("create interface %q: %w", v.Name, err)
	}
	if v.MAC == nil {
		v.MAC = randomMAC()
	}
	hostMAC := randomMAC()
	for range mostNames {
		name := randomName()
		host, err := v.create(c, container, name, hostMAC)
		if errors.Is(err, unix.EEXIST) {
			if err := absent(container, v.Name); err != nil {
				return Pair{}, err
			}
			continue
		}
		if err == nil && v.Master != 0 {
			err = setPortUp(c, host.Index, v.Mode)
		}
		if errors.Is(err, unix.EXFULL) {
			err = fmt.Errorf("%w: its bridge has %d interfaces, and the kernel takes no more; a network with another bridge has room", err, mostPorts)
		}
		if err != nil {
			return Pair{}, fmt.Errorf("create veth pair %q and %q: %w", name, v.Name, err)
		}
		return Pair{Host: host, Container: Link{Index: host.Peer.Index, Name: v.Name, Type: Type{Kind: "veth"}, MAC: v.MAC, MTU: host.MTU}}, nil
	}
	return Pair{}, fmt.Errorf("create a veth pair: %d random names were all taken", mostNames)
}

const addrGenNone = 1 // IN6_ADDR_GEN_MODE_NONE, <linux/if_link.h>

// setPortUp sets a new bridge port up, in its mode. If that fails, it deletes the
// interface. One message does it all, because each takes the kernel's lock on all
// interfaces. The kernel sets the mode first, and the end without a link-local address
// last, which is in time: the port has no carrier before the container's end is up.
func setPortUp(c *Conn, index int, mode PortMode) error {
	up := func(attrs ...attribute) error {
		if mode != (PortMode{}) {
			attrs = append(attrs, nest(unix.IFLA_LINKINFO, str(unix.IFLA_INFO_SLAVE_KIND, "bridge"), nest(unix.IFLA_INFO_SLAVE_DATA, mode.attributes()...)))
		}
		return c.execute(request(unix.RTM_NEWLINK, unix.NLM_F_ACK, ifinfo(index, unix.IFF_UP, unix.IFF_UP), attrs...), nil)
	}
	err := up(nest(unix.IFLA_AF_SPEC, nest(unix.AF_INET6, data(unix.IFLA_INET6_ADDR_GEN_MODE, addrGenNone))))
	// A kernel without IPv6 assigns no addresses. Nor does one that has disabled
	// IPv6 on the interface, for example because its MTU is too small.
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		err = up()
	}
	if err != nil {
		return joined.Errors(fmt.Errorf("set a bridge port up: %w", err), c.Delete(index))
	}
	return nil
}

// absent returns an error if there is an interface of this name.
func absent(ns *netns.Handle, name string) error {
	c, err := Dial(ns)
	if err != nil {
		return err
	}
	_, err = c.Link(name)
	if errors.Is(err, unix.ENODEV) {
		err = nil
	} else if err == nil {
		err = fmt.Errorf("interface %q exists in the container already: %w", name, unix.EEXIST)
	}
	return joined.Errors(err, c.Close())
}

func (v Veth) create(c *Conn, container *netns.Handle, name string, hostMAC net.HardwareAddr) (Link, error) {
	var up uint32
	if v.Master == 0 {
		up = unix.IFF_UP
	}
	end := func(its net.HardwareAddr, more ...attribute) []attribute {
		return append(more, mac(its), mtu(v.MTU), u32(unix.IFLA_NUM_TX_QUEUES, 1), u32(unix.IFLA_NUM_RX_QUEUES, 1))
	}
	peer := end(v.MAC, ifinfo(0, 0, 0).Serialize(), str(unix.IFLA_IFNAME, v.Name), namespace(container.File().Fd()))
	m := createMessage(up, name, end(hostMAC, info("veth", nest(nl.VETH_INFO_PEER, peer...)))...)
	if v.Master != 0 {
		m.AddData(u32(unix.IFLA_MASTER, uint32(v.Master)))
	}
	return create(c, m, name)
}

// createMessage creates an interface with these flags.
func createMessage(flags uint32, name string, attrs ...attribute) *nl.NetlinkRequest {
	return request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK|unix.NLM_F_ECHO, ifinfo(0, flags, flags), append(attrs, str(unix.IFLA_IFNAME, name))...)
}

// create creates an interface and returns it. Since Linux 6.2 the kernel answers
// with it; before, create looks it up.
func create(c *Conn, m *nl.NetlinkRequest, name string) (Link, error) {
	var l Link
	err := c.execute(m, func(m message) { l = parseLink(m) })
	if err != nil || l.Index != 0 {
		return l, err
	}
	return c.Link(name)
}

// randomName returns a name like those of the reference plugins: "veth" and
// eight hexadecimal digits.
func randomName() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // it does not fail
	return fmt.Sprintf("veth%x", b)
}

// randomMAC returns a locally administered unicast address (IEEE 802, section
// 8.4).
func randomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // it does not fail
	mac[0] = mac[0]&^1 | 2
	return mac
}

// Macvlan is an interface that shares another one, its parent, but has a MAC
// address of its own.
type Macvlan struct {
	Name   string
	Parent int              // the parent's index
	Mode   uint32           // nl.MACVLAN_MODE_*
	MAC    net.HardwareAddr // nil lets the kernel choose
	MTU    int              // 0 is the parent's
	// BroadcastQueue limits the waiting broadcasts; 0 is the kernel's default.
	BroadcastQueue uint32
}

// Create creates the interface in a container, down, on a parent in the
// namespace of c. The error wraps EEXIST if the container has an interface of
// that name.
//
// The kernel creates it in place under its name. Some kernels require that the
// name is free in the parent's namespace too; then Create uses a random name and
// renames it.
func (v Macvlan) Create(c *Conn, container *netns.Handle) error {
	err := validName(v.Name)
	if err == nil {
		err = v.create(c, container, v.Name)
	}
	if errors.Is(err, unix.EEXIST) {
		if err := absent(container, v.Name); err != nil {
			return err
		}
		err = v.createAndRename(c, container)
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("create interface %q: this kernel has none of type macvlan (CONFIG_MACVLAN), or the parent allows none: %w", v.Name, err)
	}
	return saying(fmt.Sprintf("create interface %q of type macvlan", v.Name), err)
}

func (v Macvlan) create(c *Conn, container *netns.Handle, name string) error {
	own := []attribute{u32(unix.IFLA_MACVLAN_MODE, v.Mode)}
	if v.BroadcastQueue != 0 {
		own = append(own, u32(unix.IFLA_MACVLAN_BC_QUEUE_LEN, v.BroadcastQueue))
	}
	return c.execute(createMessage(0, name, mac(v.MAC), mtu(v.MTU), u32(unix.IFLA_LINK, uint32(v.Parent)), namespace(container.File().Fd()), info("macvlan", own...)), nil)
}

func (v Macvlan) createAndRename(c *Conn, container *netns.Handle) (err error) {
	name := randomName()
	if err := v.create(c, container, name); err != nil {
		return err
	}
	inside, err := Dial(container)
	if err != nil {
		return err
	}
	defer func() { err = joined.Errors(err, inside.Close()) }()
	made, err := inside.Link(name)
	if err != nil {
		return err
	}
	if err := inside.Change(made.Index, Change{Name: v.Name}); err != nil {
		return joined.Errors(fmt.Errorf("rename interface %q: %w", name, err), inside.Delete(made.Index))
	}
	return nil
}
