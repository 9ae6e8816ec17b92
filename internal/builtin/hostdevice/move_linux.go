package hostdevice

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// moved is an interface that was moved into the container, and how to move it
// back.
type moved struct {
	hostName  string
	wasUp     bool
	unplugged bool // it was up without a carrier
}

// device is the name of the interface on the host.
func (p Plugin) device(c *config, host *netns.Handle) (string, error) {
	sys := sysfs(p.sys)
	switch {
	case c.Device != "":
		return c.Device, nil
	case c.mac != nil:
		return byMAC(c, host)
	case c.KernelPath != "":
		return sys.ofPath(c.KernelPath)
	case c.PCIBusID != "":
		return sys.ofPCI(c.PCIBusID)
	}
	return sys.ofAuxiliary(c.auxiliary)
}

// byMAC looks through all interfaces of the host: the kernel knows no shorter
// way.
func byMAC(c *config, host *netns.Handle) (string, error) {
	nl, err := links.Open(host)
	if err != nil {
		return "", err
	}
	defer nl.Close()
	all, err := nl.LinkList()
	if err != nil {
		return "", fmt.Errorf("hwaddr: list the interfaces: %w", err)
	}
	for _, l := range all {
		if bytes.Equal(l.Attrs().HardwareAddr, c.mac) {
			return l.Attrs().Name, nil
		}
	}
	return "", fmt.Errorf("hwaddr: no interface of the host has the address %s", c.mac)
}

// moveIn moves the interface into the container, under the name that it is to
// have there, and up. Its alias is the name that it had.
func moveIn(r *plugin.Request, name string) (_ moved, err error) {
	host, err := links.Dial(r.Host)
	if err != nil {
		return moved{}, err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	inside, err := links.Dial(r.Container)
	if err != nil {
		return moved{}, err
	}
	defer func() { err = errors.Join(err, inside.Close()) }()

	dev, err := host.Link(name)
	if err != nil {
		return moved{}, fmt.Errorf("device: %w", err)
	}
	if _, err := inside.Link(r.IfName); err == nil {
		return moved{}, fmt.Errorf("interface %q exists in the container already: %w", r.IfName, unix.EEXIST)
	} else if !links.NotFound(err) {
		return moved{}, err
	}
	_, err = inside.Link(name)
	taken := err == nil // in the container, by another interface
	m := moved{hostName: name, wasUp: dev.Up(), unplugged: dev.Up() && !dev.Carrier()}
	err = host.Move(dev.Index, r.Container, links.Move{Name: r.IfName, Alias: name, Up: true})
	if err == nil {
		return m, nil
	}
	candidates := []string{r.IfName}
	if !taken {
		candidates = append(candidates, name)
	}
	return moved{}, errors.Join(fmt.Errorf("device %q: %w", name, err), m.retrieve(r.Host, host, inside, candidates))
}

// retrieve undoes a move that failed. The kernel moves first; what has failed
// may be the name, or setting it up. So the interface is in the container,
// under one of these names, or has never left.
func (m moved) retrieve(to *netns.Handle, host, inside *links.Conn, names []string) error {
	for _, name := range names {
		found, err := inside.Link(name)
		if err == nil {
			return m.back(to, inside, found.Index)
		}
		if !links.NotFound(err) {
			return err
		}
	}
	return m.restore(host)
}

// back moves the interface back to the host, as it was, after a failure.
func (m moved) back(host *netns.Handle, inside *links.Conn, index int) error {
	return inside.Move(index, host, links.Move{Name: m.hostName, Up: m.wasUp})
}

// restore sets an interface that never left up again.
func (m moved) restore(host *links.Conn) error {
	dev, err := host.Link(m.hostName)
	if err != nil || !m.wasUp || dev.Up() {
		return err
	}
	return host.Change(dev.Index, links.Change{Up: true})
}

// errNoAlias means that the interface is there, but does not say what it was
// called on the host.
var errNoAlias = errors.New("it has no alias, which would be its name on the host")

// moveOut moves the interface back to the host, down, under the name that its
// alias says. One that is gone needs no moving.
func moveOut(r *plugin.Request) (err error) {
	own, err := lookup(r)
	if err != nil || own == nil {
		return err
	}
	alias := own.Attrs().Alias
	if alias == "" {
		return errNoAlias
	}
	host, err := links.Dial(r.Host)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	if _, err := host.Link(alias); err == nil {
		return fmt.Errorf("it cannot go back to the host, which has an interface %q by now: rename that one: %w", alias, unix.EEXIST)
	} else if !links.NotFound(err) {
		return err
	}
	inside, err := links.Dial(r.Container)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inside.Close()) }()
	return inside.Move(own.Attrs().Index, r.Host, links.Move{Name: alias})
}

// lookup is the interface in the container, or nil.
func lookup(r *plugin.Request) (netlink.Link, error) {
	nl, err := links.Open(r.Container)
	if err != nil {
		return nil, err
	}
	defer nl.Close()
	own, err := nl.LinkByName(r.IfName)
	if links.NotFound(err) {
		return nil, nil
	}
	return own, err
}
