package sweep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/proc"
	"github.com/embedcni/cni/netns"
)

// Identify returns the identity of an interface that was made in the container, on a
// parent that is there too, or on the host.
func Identify(conns *links.Conns, container *netns.Handle, name string) (d *footprint.Device, err error) {
	conn, err := conns.Borrow(container)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	l, err := conn.Link(name)
	if err != nil {
		return nil, err
	}
	return &footprint.Device{Index: l.Index, Kind: l.Kind, MAC: l.MAC.String(), Parent: l.Peer.Index, OnHost: l.Peer.Elsewhere}, nil
}

// IdentifyLent returns the identity of an interface that host-device has moved into the
// container. Its alias is its name on the host.
func IdentifyLent(host, container *netns.Handle, name string) (d *footprint.Device, err error) {
	conn, err := links.Dial(container)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	l, err := conn.Link(name)
	if err != nil {
		return nil, err
	}
	return &footprint.Device{
		Index: l.Index, Kind: kindOf(l), MAC: macOf(l),
		Parent: l.Peer.Index, OnHost: leadsTo(conn, l, host),
		PermMAC: l.Hardware.MAC.String(), Bus: l.Hardware.Bus, Dev: l.Hardware.Name, HostName: l.Alias,
	}, nil
}

// leadsTo reports whether the interface below, or at the other end, is in ns.
func leadsTo(conn *links.Conn, l links.Link, ns *netns.Handle) bool {
	if !l.Peer.Elsewhere {
		return false
	}
	number, err := conn.NetNS(ns)
	return err == nil && number >= 0 && l.Peer.NetNS == number
}

// kindOf is the kind of an interface as records have it, which older versions
// wrote: "device" for hardware, and "tuntap".
func kindOf(l links.Link) string {
	switch l.Kind {
	case "":
		return "device"
	case "tun":
		return "tuntap"
	}
	return l.Kind
}

// macOf is the hardware address as records have it: none that is all zero.
func macOf(l links.Link) string {
	if !slices.ContainsFunc(l.MAC, func(b byte) bool { return b != 0 }) {
		return ""
	}
	return l.MAC.String()
}

// isThe reports whether an interface is the physical device, wherever it is.
func (d identity) isThe(l links.Link) bool {
	return d.Physical() && kindOf(l) == d.Kind &&
		l.Hardware.MAC.String() == d.PermMAC && l.Hardware.Name == d.Dev && l.Hardware.Bus == d.Bus
}

// identity finds a device among interfaces.
type identity struct{ *footprint.Device }

func (t *Target) identity() identity { return identity{t.Interface.Device} }

// in is the device in its container, or nil. Name, alias and hardware address are
// the container's to change, and its index may, where it leaves and comes back.
func (d identity) in(all []links.Link) *links.Link { return find(all, d.isInside) }

func (d identity) isInside(l links.Link) bool {
	if d.Physical() {
		return d.isThe(l)
	}
	return kindOf(l) == d.Kind && l.Peer.Index == d.Parent && (l.Index == d.Index || l.Peer.Elsewhere && d.like(l))
}

// find returns the first interface for which is returns true, or nil.
func find(all []links.Link, is func(links.Link) bool) *links.Link {
	if i := slices.IndexFunc(all, is); i >= 0 {
		return &all[i]
	}
	return nil
}

// like reports whether an interface with the device's parent is the device: by
// the other end of the pair, or, for a macvlan, by its hardware address, which no
// two on one parent have. Others of a kind may be of another attachment.
func (d identity) like(l links.Link) bool {
	return d.OnHost && (d.Kind == "veth" || d.Kind == "macvlan" && macOf(l) == d.MAC)
}

// outside is the device in a namespace that is not its container's, or nil. host
// is the number that the host's namespace has there, or negative.
func (d identity) outside(all []links.Link, host int) *links.Link {
	return find(all, func(l links.Link) bool {
		if d.Physical() {
			return d.isThe(l)
		}
		return kindOf(l) == d.Kind && l.Peer.Elsewhere && host >= 0 && l.Peer.NetNS == host && l.Peer.Index == d.Parent && d.like(l)
	})
}

// Restore restores the device's name in the container, and the alias by which
// host-device finds it, before plugins look for it there. Another interface of that
// name gets another name, and so does one of a device that is not in the container, if
// it is known to be replaced. Found reports whether the device is there.
func Restore(device *footprint.Device, container *netns.Handle, name string, replaced bool) (found bool, err error) {
	d := identity{device}
	conn, err := links.Dial(container)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	named, err := conn.Link(name)
	if err != nil && !links.NotFound(err) {
		return false, err
	}
	taken := err == nil
	own := &named
	if !taken || named.Index != d.Index || !d.isInside(named) {
		all, err := conn.Links()
		if err != nil {
			return false, err
		}
		own = d.in(all)
	}
	if taken && (own == nil && replaced || own != nil && own.Index != named.Index) {
		if err := rename(conn, named, fmt.Sprintf("cni-%d", named.Index)); err != nil {
			return own != nil, err
		}
	}
	if own == nil {
		return false, nil
	}
	err = nil
	if own.Name != name {
		err = rename(conn, *own, name)
	}
	if d.HostName != "" && own.Alias != d.HostName {
		err = errors.Join(err, conn.Change(own.Index, links.Change{Alias: &d.HostName}))
	}
	return true, err
}

// rename renames an interface, which before Linux 6.2 must be down for that.
func rename(conn *links.Conn, l links.Link, name string) error {
	err := conn.Change(l.Index, links.Change{Name: name})
	if errors.Is(err, unix.EBUSY) {
		if err = conn.Change(l.Index, links.Change{Clear: unix.IFF_UP}); err == nil {
			err = errors.Join(conn.Change(l.Index, links.Change{Name: name}), conn.Change(l.Index, links.Change{Set: unix.IFF_UP}))
		}
	}
	if err != nil {
		return fmt.Errorf("rename interface %q to %q: %w", l.Name, name, err)
	}
	return nil
}

// device finds the attachment's interface where a plugin has left it: in the
// container, elsewhere, or on the host under another name.
func (t *search) device() ([]Item, error) {
	d := t.identity()
	if t.Container != nil {
		inside, err := t.Conns.Links(t.Container)
		if err != nil {
			return nil, err
		}
		if l := d.in(inside); l != nil {
			return []Item{t.leaves(t.Container, "in the container", *l)}, nil
		}
	}
	if d.HostName != "" {
		item, err := t.onHost()
		if item != nil || err != nil || !t.missing {
			return listOf(item), err
		}
	}
	if t.How.Lost {
		if item, err := t.elsewhere(); item != nil || err != nil {
			return listOf(item), err
		}
	}
	return t.missed()
}

func listOf(item Item) []Item {
	if item == nil {
		return nil
	}
	return []Item{item}
}

// leaves returns the item that deletes the device where it is, or gives it back.
func (t *Target) leaves(ns *netns.Handle, where string, l links.Link) Item {
	found := link{ns: ns, where: where, name: l.Name, index: l.Index}
	if t.Interface.Device.HostName == "" {
		return found
	}
	return lent{link: found, host: t.Host, to: t.Interface.Device.HostName}
}

// onHost is the device if it is on the host under another name, as the kernel
// leaves a physical one when its namespace goes. It notes whether it is missing:
// whether it exists, and is not there.
func (t *search) onHost() (Item, error) {
	d := t.identity()
	t.missing = false
	if !d.Traceable() {
		return nil, nil
	}
	if l, err := t.Conns.Lookup(t.Host, d.HostName); err == nil && l != nil && d.isBack(*l) {
		return nil, nil
	}
	all, err := t.Conns.Links(t.Host)
	if err != nil {
		return nil, err
	}
	if l := find(all, d.isBack); l != nil {
		return t.leaves(t.Host, "on the host", *l), nil
	}
	if t.missing = d.onBus(); !d.Physical() {
		t.missing = slices.ContainsFunc(all, func(l links.Link) bool { return l.Index == d.Parent && l.Kind == "veth" })
	}
	return nil, nil
}

// isBack reports whether an interface of the host is the device.
func (d identity) isBack(l links.Link) bool {
	if d.Physical() {
		return d.isThe(l)
	}
	return kindOf(l) == d.Kind && l.Peer.Index == d.Parent && !l.Peer.Elsewhere
}

// onBus reports whether the bus still has the device, unless it is known by its
// address alone. A card that was pulled out of the machine is not waited for.
func (d identity) onBus() bool {
	if d.Bus == "" || d.Dev == "" {
		return true
	}
	_, err := os.Stat(filepath.Join("/sys/bus", d.Bus, "devices", d.Dev))
	return !errors.Is(err, fs.ErrNotExist)
}

// missed is the device that is not where it should be, if it is known to exist
// and another attachment has not been lent it since.
func (t *search) missed() ([]Item, error) {
	if !t.missing {
		return nil, nil
	}
	lent, err := false, error(nil)
	if t.Others != nil {
		lent, err = t.Others.HaveDevice(t.Interface.Device)
	}
	if lent || err != nil {
		return nil, err
	}
	return []Item{missing{t.Interface.Device, t.IfName}}, nil
}

// elsewhere looks for the device in the namespaces of all threads that can be
// seen: a container's root may have moved it into one of its own.
func (t *search) elsewhere() (Item, error) {
	var found Item
	seen := map[string]bool{}
	_, err := proc.EachTask("/proc", func(thread proc.Task) (more bool) {
		name, err := os.Readlink(thread.NetNS())
		if err != nil || seen[name] {
			return true // the thread has ended, or its namespace has been looked into
		}
		seen[name] = true
		ns, err := netns.Open(thread.NetNS())
		if err != nil {
			return true
		}
		if ns.ID() != t.Host.ID() && (t.Container == nil || ns.ID() != t.Container.ID()) {
			found = t.within(ns)
		}
		if found == nil {
			_ = ns.Close() // was only looked into; else the item needs it, for as long as it is there itself
		}
		return found == nil
	})
	return found, err
}

func (t *search) within(ns *netns.Handle) Item {
	conn, err := links.Dial(ns)
	if err != nil {
		return nil
	}
	all, err := conn.Links()
	host, herr := conn.NetNS(t.Host)
	if herr != nil {
		host = -1
	}
	own := t.identity().outside(all, host)
	if errors.Join(err, conn.Close()) != nil || own == nil {
		return nil
	}
	return t.leaves(ns, "in the network namespace "+ns.ID().String(), *own)
}

// Settled reports whether the device is where it belongs: gone, or on the host.
func Settled(t Target) (bool, error) {
	items, err := (&search{Target: t}).device()
	return len(items) == 0, err
}

// lent is an interface of the host's that is to go back there, under its name.
type lent struct {
	link
	host *netns.Handle
	to   string
}

func (l lent) String() string {
	return fmt.Sprintf("interface %s of the host, as %s %s", l.to, l.name, l.where)
}

func (l lent) Remove(context.Context) error {
	conn, err := links.Dial(l.ns)
	if err != nil {
		return err
	}
	if l.ns == l.host { // which has it back already
		err = l.rename(conn)
	} else if err = conn.Move(l.index, l.host, links.Move{Name: l.to}); err != nil {
		err = fmt.Errorf("give %s back: %w", l, err)
	}
	if links.NotFound(err) {
		err = nil
	}
	return errors.Join(err, conn.Close())
}

// rename gives the interface its name on the host.
func (l lent) rename(conn *links.Conn) error {
	if _, err := conn.LinkByIndex(l.index); err != nil {
		return err
	}
	var none string
	var errs []error
	for _, change := range []links.Change{{Clear: unix.IFF_UP}, {Name: l.to}, {Alias: &none}} {
		errs = append(errs, conn.Change(l.index, change))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("give %s its name back: %w", l, err)
	}
	return nil
}

// missing is an interface of the host's that exists, and is in none of the
// namespaces where it was looked for.
type missing struct {
	*footprint.Device
	ifName string
}

func (m missing) String() string {
	s := fmt.Sprintf("interface %s of the host, which is neither there nor in the container as %s", m.HostName, m.ifName)
	if id := strings.TrimSpace(strings.Join([]string{m.Bus, m.Dev, m.PermMAC}, " ")); id != "" {
		s += " (" + id + ")"
	}
	return s
}

func (m missing) Remove(context.Context) error {
	return fmt.Errorf("%s: it may be in a network namespace that the container has made: end its processes and remove it again", m)
}
