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

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/tasks"
	"github.com/embedcni/cni/netns"
)

// Identify returns what identifies an interface that was made in the container,
// on a parent that is there too, or on the host.
func Identify(ctx context.Context, container *netns.Handle, name string) (d *Device, err error) {
	conn, err := links.Borrow(ctx, container)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	l, err := conn.Link(name)
	if err != nil {
		return nil, err
	}
	return &Device{Index: l.Index, Kind: l.Kind, MAC: l.MAC.String(), Parent: l.Peer, OnHost: l.PeerElsewhere}, nil
}

// IdentifyLent returns what identifies an interface that host-device has moved
// into the container. Its alias is its name on the host.
func IdentifyLent(host, container *netns.Handle, name string) (*Device, error) {
	nl, err := links.Open(container)
	if err != nil {
		return nil, err
	}
	defer nl.Close()
	l, err := nl.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("interface %q: %w", name, err)
	}
	a := l.Attrs()
	return &Device{
		Index: a.Index, Kind: l.Type(), MAC: a.HardwareAddr.String(),
		Parent: a.ParentIndex, OnHost: a.NetNsID >= 0 && a.NetNsID == numberOf(nl, host),
		PermMAC: a.PermHWAddr.String(), Bus: a.ParentDevBus, Dev: a.ParentDev, HostName: a.Alias,
	}, nil
}

// numberOf is the number that a namespace has in that of the socket; negative if
// no interface there leads to it.
func numberOf(nl *netlink.Handle, ns *netns.Handle) int {
	n, err := nl.GetNetNsIdByFd(int(ns.File().Fd()))
	if err != nil {
		return -1
	}
	return n
}

// traceable reports whether the device can be told from all others outside of its
// container too.
func (d *Device) traceable() bool { return d.physical() || d.Kind == "veth" && d.OnHost }

// isThe reports whether an interface is the physical device, wherever it is.
func (d *Device) isThe(l netlink.Link) bool {
	a := l.Attrs()
	return d.physical() && l.Type() == d.Kind &&
		a.PermHWAddr.String() == d.PermMAC && a.ParentDev == d.Dev && a.ParentDevBus == d.Bus
}

// in is the device in its container, or nil. Name, alias and hardware address are
// the container's to change, and its index may, where it leaves and comes back.
func (d *Device) in(all []netlink.Link) netlink.Link {
	i := slices.IndexFunc(all, func(l netlink.Link) bool {
		a := l.Attrs()
		if d.physical() {
			return d.isThe(l)
		}
		return l.Type() == d.Kind && a.ParentIndex == d.Parent && (a.Index == d.Index || a.NetNsID >= 0 && d.like(l))
	})
	if i < 0 {
		return nil
	}
	return all[i]
}

// like reports whether an interface with the device's parent is the device: by
// the other end of the pair, or, for a macvlan, by its hardware address, which no
// two on one parent have. Others of a kind may be of another attachment.
func (d *Device) like(l netlink.Link) bool {
	return d.OnHost && (d.Kind == "veth" || d.Kind == "macvlan" && l.Attrs().HardwareAddr.String() == d.MAC)
}

// outside is the device in a namespace that is not its container's, or nil. host
// is the number that the host's namespace has there.
func (d *Device) outside(all []netlink.Link, host int) netlink.Link {
	i := slices.IndexFunc(all, func(l netlink.Link) bool {
		a := l.Attrs()
		if d.physical() {
			return d.isThe(l)
		}
		return l.Type() == d.Kind && host >= 0 && a.NetNsID == host && a.ParentIndex == d.Parent && d.like(l)
	})
	if i < 0 {
		return nil
	}
	return all[i]
}

// Restore gives the device its name in the container back, and the alias that
// host-device goes by, before plugins look for it there. Another interface of
// that name gets another name. So does one where the device is not in the
// container, if it is known to be replaced. Found says whether it is there.
func (d *Device) Restore(container *netns.Handle, name string, replaced bool) (found bool, err error) {
	nl, err := links.Open(container)
	if err != nil {
		return false, err
	}
	defer nl.Close()
	named, err := nl.LinkByName(name)
	if err != nil && !links.NotFound(err) {
		return false, err
	}
	own := named
	if named == nil || named.Attrs().Index != d.Index || d.in([]netlink.Link{named}) == nil {
		all, err := nl.LinkList()
		if err != nil {
			return false, err
		}
		own = d.in(all)
	}
	if named != nil && (own == nil && replaced || own != nil && own.Attrs().Index != named.Attrs().Index) {
		if err := rename(nl, named, fmt.Sprintf("cni-%d", named.Attrs().Index)); err != nil {
			return own != nil, err
		}
	}
	if own == nil {
		return false, nil
	}
	if own.Attrs().Name != name {
		err = rename(nl, own, name)
	}
	if d.HostName != "" && own.Attrs().Alias != d.HostName {
		err = errors.Join(err, nl.LinkSetAlias(own, d.HostName))
	}
	return true, err
}

// rename renames an interface, which before Linux 6.2 must be down for that.
func rename(nl *netlink.Handle, l netlink.Link, name string) error {
	err := nl.LinkSetName(l, name)
	if errors.Is(err, unix.EBUSY) {
		if err = nl.LinkSetDown(l); err == nil {
			err = errors.Join(nl.LinkSetName(l, name), nl.LinkSetUp(l))
		}
	}
	if err != nil {
		return fmt.Errorf("rename interface %q to %q: %w", l.Attrs().Name, name, err)
	}
	return nil
}

// device finds the attachment's interface where a plugin has left it: in the
// container, elsewhere, or on the host under another name.
func (t *Target) device() ([]Item, error) {
	d := t.Device
	var all []netlink.Link
	if t.Container != nil {
		if err := list(t.Container, func(_ *netlink.Handle, found []netlink.Link) { all = found }); err != nil {
			return nil, err
		}
	}
	if l := d.in(all); l != nil {
		return []Item{t.leaves(t.Container, "in the container", l)}, nil
	}
	if d.HostName != "" {
		item, err := t.onHost()
		if item != nil || err != nil || !t.missing {
			return listOf(item), err
		}
	}
	if t.Lost {
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

// leaves is what is to be done with the device where it is.
func (t *Target) leaves(ns *netns.Handle, where string, l netlink.Link) Item {
	found := link{ns: ns, where: where, name: l.Attrs().Name, index: l.Attrs().Index}
	if t.Device.HostName == "" {
		return found
	}
	return lent{link: found, host: t.Host, to: t.Device.HostName}
}

// onHost is the device if it is on the host under another name, as the kernel
// leaves a physical one when its namespace goes. It notes whether it is missing:
// whether it exists, and is not there.
func (t *Target) onHost() (Item, error) {
	d := t.Device
	t.missing = false
	if !d.traceable() {
		return nil, nil
	}
	nl, err := links.Open(t.Host)
	if err != nil {
		return nil, err
	}
	defer nl.Close()
	if l, err := nl.LinkByName(d.HostName); err == nil && d.isBack(l) {
		return nil, nil
	}
	all, err := nl.LinkList()
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(all, d.isBack); i >= 0 {
		return t.leaves(t.Host, "on the host", all[i]), nil
	}
	if t.missing = d.onBus(); !d.physical() {
		t.missing = slices.ContainsFunc(all, func(l netlink.Link) bool { return l.Attrs().Index == d.Parent && l.Type() == "veth" })
	}
	return nil, nil
}

// isBack reports whether an interface of the host is the device.
func (d *Device) isBack(l netlink.Link) bool {
	if d.physical() {
		return d.isThe(l)
	}
	a := l.Attrs()
	return l.Type() == d.Kind && a.ParentIndex == d.Parent && a.NetNsID < 0
}

// onBus reports whether the bus still has the device, unless it is known by its
// address alone. Who has pulled a card out does not want its interface back.
func (d *Device) onBus() bool {
	if d.Bus == "" || d.Dev == "" {
		return true
	}
	_, err := os.Stat(filepath.Join("/sys/bus", d.Bus, "devices", d.Dev))
	return !errors.Is(err, fs.ErrNotExist)
}

// missed is the device that is not where it should be, if it is known to exist
// and another attachment has not been lent it since.
func (t *Target) missed() ([]Item, error) {
	if !t.missing {
		return nil, nil
	}
	lent, err := false, error(nil)
	if t.LentAgain != nil {
		lent, err = t.LentAgain()
	}
	if lent || err != nil {
		return nil, err
	}
	return []Item{missing{t.Device, t.IfName}}, nil
}

// elsewhere looks for the device in the namespaces of all threads that can be
// seen: a container's root may have moved it into one of its own.
func (t *Target) elsewhere() (Item, error) {
	var found Item
	seen := map[string]bool{}
	_, err := tasks.Each("/proc", func(thread tasks.Task) (more bool) {
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

func (t *Target) within(ns *netns.Handle) Item {
	var own netlink.Link
	err := list(ns, func(nl *netlink.Handle, all []netlink.Link) {
		own = t.Device.outside(all, numberOf(nl, t.Host))
	})
	if err != nil || own == nil {
		return nil
	}
	return t.leaves(ns, "in the network namespace "+ns.ID().String(), own)
}

// Settled reports whether the device is where it belongs: gone, or on the host.
func Settled(t Target) (bool, error) {
	items, err := t.device()
	return len(items) == 0, err
}

// list calls f with the interfaces of a namespace.
func list(ns *netns.Handle, f func(*netlink.Handle, []netlink.Link)) error {
	nl, err := links.Open(ns)
	if err != nil {
		return err
	}
	defer nl.Close()
	all, err := nl.LinkList()
	if err == nil {
		f(nl, all)
	}
	return err
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

func (l lent) Remove() error {
	if l.ns == l.host {
		return in(l.ns, unix.NETLINK_ROUTE, l.rename)
	}
	conn, err := links.Dial(l.ns)
	if err != nil {
		return err
	}
	err = conn.Move(l.index, l.host, links.Move{Name: l.to})
	if isGone(err) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("give %s back: %w", l, err)
	}
	return errors.Join(err, conn.Close())
}

// rename gives the interface its name, where the host has it back already.
func (l lent) rename(nl *netlink.Handle) error {
	own, err := nl.LinkByIndex(l.index)
	if links.NotFound(err) {
		return nil
	}
	if err == nil {
		err = errors.Join(nl.LinkSetDown(own), nl.LinkSetName(own, l.to), nl.LinkSetAlias(own, ""))
	}
	if err != nil {
		return fmt.Errorf("give %s its name back: %w", l, err)
	}
	return nil
}

// missing is an interface of the host's that exists, and is in none of the
// namespaces where it was looked for.
type missing struct {
	*Device
	ifName string
}

func (m missing) String() string {
	s := fmt.Sprintf("interface %s of the host, which is neither there nor in the container as %s", m.HostName, m.ifName)
	if id := strings.TrimSpace(strings.Join([]string{m.Bus, m.Dev, m.PermMAC}, " ")); id != "" {
		s += " (" + id + ")"
	}
	return s
}

func (m missing) Remove() error {
	return fmt.Errorf("%s: it may be in a network namespace that the container has made: end its processes and remove it again", m)
}
