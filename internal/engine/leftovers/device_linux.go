package leftovers

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

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/kernel/proc"
	"github.com/embedcni/cni/netns"
)

// dialed calls fn with a connection of its own to a namespace.
func dialed(ns *netns.Handle, fn func(*links.Conn) error) error {
	var shared *links.Conns
	return shared.Do(ns, fn)
}

// Identify returns the identity of an interface in the container: one that was made there,
// on a parent that is there too, or on the host; or one that host-device has lent from the
// host, whose alias is its name there.
func Identify(conns *links.Conns, host, container *netns.Handle, name string, lent bool) (d *Device, err error) {
	err = conns.Do(container, func(conn *links.Conn) error {
		l, err := conn.Link(name)
		if err != nil {
			return err
		}
		d = &Device{Index: l.Index, Kind: kindOf(l), MAC: macOf(l), Parent: l.Peer.Index, OnHost: l.Peer.Elsewhere}
		if lent {
			d.OnHost = leadsTo(conn, l, host)
			d.PermMAC, d.Bus, d.Dev, d.HostName = l.Hardware.MAC.String(), l.Hardware.Bus, l.Hardware.Name, l.Alias
		}
		return nil
	})
	return d, err
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

// is reports whether an interface is the device: hardware by what nobody can change, another
// by its kind and its parent, if it is placed where the device is looked for.
func (d *Device) is(l links.Link, placed bool) bool {
	switch {
	case kindOf(l) != d.Kind:
		return false
	case d.Physical():
		return l.Hardware.MAC.String() == d.PermMAC && l.Hardware.Name == d.Dev && l.Hardware.Bus == d.Bus
	}
	return placed && l.Peer.Index == d.Parent
}

// isInside reports whether an interface of the container is the device. Name, alias and
// hardware address are the container's to change, and its index may, where it leaves and
// comes back.
func (d *Device) isInside(l links.Link) bool {
	return d.is(l, l.Index == d.Index || l.Peer.Elsewhere && d.like(l))
}

// isBack reports whether an interface of the host is the device.
func (d *Device) isBack(l links.Link) bool { return d.is(l, !l.Peer.Elsewhere) }

// isOutside reports whether an interface is the device in a namespace that is not its
// container's. host is the number that the host's namespace has there, or negative.
func (d *Device) isOutside(l links.Link, host int) bool {
	return d.is(l, l.Peer.Elsewhere && host >= 0 && l.Peer.NetNS == host && d.like(l))
}

// like reports whether an interface with the device's parent is the device: by
// the other end of the pair, or, for a macvlan, by its hardware address, which no
// two on one parent have. Others of a kind may be of another attachment.
func (d *Device) like(l links.Link) bool {
	return d.OnHost && (d.Kind == "veth" || d.Kind == "macvlan" && macOf(l) == d.MAC)
}

// onBus reports whether the bus still has the device, unless it is known by its
// address alone. A card that was pulled out of the machine is not waited for.
func (d *Device) onBus() bool {
	if d.Bus == "" || d.Dev == "" {
		return true
	}
	_, err := os.Stat(filepath.Join("/sys/bus", d.Bus, "devices", d.Dev))
	return !errors.Is(err, fs.ErrNotExist)
}

// find returns the first interface for which is returns true, or nil.
func find(all []links.Link, is func(links.Link) bool) *links.Link {
	if i := slices.IndexFunc(all, is); i >= 0 {
		return &all[i]
	}
	return nil
}

// Restore restores the device's name in the container, and the alias by which
// host-device finds it, before plugins look for it there. Another interface of that
// name gets another name, and so does one of a device that is not in the container, if
// it is known to be replaced. Found reports whether the device is there.
func (d *Device) Restore(container *netns.Handle, name string, replaced bool) (found bool, err error) {
	err = dialed(container, func(conn *links.Conn) error {
		named, err := conn.Link(name)
		if err != nil && !links.NotFound(err) {
			return err
		}
		taken := err == nil
		own := &named
		if !taken || named.Index != d.Index || !d.isInside(named) {
			all, err := conn.Links()
			if err != nil {
				return err
			}
			own = find(all, d.isInside)
		}
		found = own != nil
		if taken && (!found && replaced || found && own.Index != named.Index) {
			if err := rename(conn, named, fmt.Sprintf("cni-%d", named.Index)); err != nil {
				return err
			}
		}
		if !found {
			return nil
		}
		err = nil
		if own.Name != name {
			err = rename(conn, *own, name)
		}
		if d.HostName != "" && own.Alias != d.HostName {
			err = joined.Errors(err, conn.Change(own.Index, links.Change{Alias: &d.HostName}))
		}
		return err
	})
	return found, err
}

// rename renames an interface, which before Linux 6.2 must be down for that.
func rename(conn *links.Conn, l links.Link, name string) error {
	err := conn.Change(l.Index, links.Change{Name: name})
	if errors.Is(err, unix.EBUSY) {
		if err = conn.Change(l.Index, links.Change{Clear: unix.IFF_UP}); err == nil {
			err = joined.Errors(conn.Change(l.Index, links.Change{Name: name}), conn.Change(l.Index, links.Change{Set: unix.IFF_UP}))
		}
	}
	if err != nil {
		return fmt.Errorf("rename interface %q to %q: %w", l.Name, name, err)
	}
	return nil
}

// device finds the attachment's interface where a plugin has left it: in the
// container, elsewhere, or on the host under another name. It also finds one that is
// not where it should be, if it is known to exist and another attachment has not been
// lent it since.
func (t *Target) device() ([]Item, error) {
	d := t.Footprint.Interface.Device
	if t.Container != nil {
		inside, err := t.Conns.Links(t.Container)
		if err != nil {
			return nil, err
		}
		if l := find(inside, d.isInside); l != nil {
			return d.leaves(t.Host, t.Container, "in the container", *l), nil
		}
	}
	missing := false
	if d.HostName != "" {
		var items []Item
		var err error
		if items, missing, err = t.onHost(); !missing || err != nil {
			return items, err
		}
	}
	if t.How.Lost {
		if items, err := t.elsewhere(); len(items) > 0 || err != nil {
			return items, err
		}
	}
	if !missing {
		return nil, nil
	}
	if lent, err := t.Others.HaveDevice(d); lent || err != nil {
		return nil, err
	}
	text := fmt.Sprintf("interface %s of the host, which is neither there nor in the container as %s", d.HostName, t.Footprint.IfName)
	if id := strings.TrimSpace(strings.Join([]string{d.Bus, d.Dev, d.PermMAC}, " ")); id != "" {
		text += " (" + id + ")"
	}
	return []Item{{text, func(context.Context) error {
		return fmt.Errorf("%s: it may be in a network namespace that the container has made: end its processes and remove it again", text)
	}}}, nil
}

// leaves returns the item that deletes the device where it is, or gives it back to host.
func (d *Device) leaves(host, ns *netns.Handle, where string, l links.Link) []Item {
	to := d.HostName
	if to == "" {
		return []Item{deletion(ns, where, l.Name, l.Index)}
	}
	text := fmt.Sprintf("interface %s of the host, as %s %s", to, l.Name, where)
	return []Item{{text, func(context.Context) error {
		return dialed(ns, func(conn *links.Conn) (err error) {
			if ns == host { // which has it back already
				err = giveName(conn, l.Index, to)
			} else {
				err = conn.Move(l.Index, host, links.Move{Name: to})
			}
			switch {
			case links.NotFound(err):
				return nil
			case err != nil && ns == host:
				return fmt.Errorf("give %s its name back: %w", text, err)
			case err != nil:
				return fmt.Errorf("give %s back: %w", text, err)
			}
			return nil
		})
	}}}
}

// giveName gives an interface on the host the name that it had there.
func giveName(conn *links.Conn, index int, name string) error {
	if _, err := conn.LinkByIndex(index); err != nil {
		return err
	}
	var none string
	var errs []error
	for _, change := range []links.Change{{Clear: unix.IFF_UP}, {Name: name}, {Alias: &none}} {
		errs = append(errs, conn.Change(index, change))
	}
	return joined.Errors(errs...)
}

// onHost finds the device if it is on the host under another name, as the kernel
// leaves a physical one when its namespace goes. It reports whether it is missing:
// whether it exists, and is not there.
func (t *Target) onHost() (items []Item, missing bool, err error) {
	d := t.Footprint.Interface.Device
	if !d.Traceable() {
		return nil, false, nil
	}
	if l, err := t.Conns.Lookup(t.Host, d.HostName); err == nil && l != nil && d.isBack(*l) {
		return nil, false, nil
	}
	all, err := t.Conns.Links(t.Host)
	if err != nil {
		return nil, false, err
	}
	if l := find(all, d.isBack); l != nil {
		return d.leaves(t.Host, t.Host, "on the host", *l), false, nil
	}
	if d.Physical() {
		return nil, d.onBus(), nil
	}
	return nil, slices.ContainsFunc(all, func(l links.Link) bool { return l.Index == d.Parent && l.Kind == "veth" }), nil
}

// elsewhere looks for the device in the namespaces of all threads that can be
// seen: a container's root may have moved it into one of its own.
func (t *Target) elsewhere() (found []Item, err error) {
	seen := map[uint64]bool{}
	_, err = proc.Scan("/proc", proc.Thread, func(thread proc.Ref) (more bool) {
		if seen[thread.Inode] {
			return true
		}
		seen[thread.Inode] = true
		ns, err := netns.Open(thread.Path)
		if err != nil {
			return true // the thread has ended
		}
		if ns.ID() != t.Host.ID() && (t.Container == nil || ns.ID() != t.Container.ID()) {
			found = t.Footprint.Interface.Device.within(ns, t.Host)
		}
		if found == nil {
			_ = ns.Close() // was only looked into; else the item needs it, for as long as it is there itself
		}
		return found == nil
	})
	return found, err
}

// within finds the device in a namespace that is neither the container's nor host.
func (d *Device) within(ns, host *netns.Handle) (found []Item) {
	err := dialed(ns, func(conn *links.Conn) error {
		all, err := conn.Links()
		number, nerr := conn.NetNS(host)
		if nerr != nil {
			number = -1
		}
		if l := find(all, func(l links.Link) bool { return d.isOutside(l, number) }); l != nil {
			found = d.leaves(host, ns, "in the network namespace "+ns.ID().String(), *l)
		}
		return err
	})
	if err != nil {
		return nil
	}
	return found
}

// Settled reports whether the device is where it belongs: gone, or on the host.
func (t *Target) Settled() (bool, error) {
	items, err := t.device()
	return len(items) == 0, err
}
