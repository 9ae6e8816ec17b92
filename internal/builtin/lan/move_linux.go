package lan

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// moved is an interface that was moved into the container, with its former
// state.
type moved struct {
	hostName  string
	wasUp     bool
	unplugged bool // it was up without a carrier
}

// device returns the name of the interface on the host.
func (p HostDevice) device(c *deviceConfig, host *links.Conn) (string, error) {
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

// byMAC searches all interfaces of the host: the kernel has no shorter way.
func byMAC(c *deviceConfig, host *links.Conn) (string, error) {
	all, err := host.Links()
	if err != nil {
		return "", fmt.Errorf("hwaddr: %w", err)
	}
	for _, l := range all {
		if bytes.Equal(l.MAC, c.mac) {
			return l.Name, nil
		}
	}
	return "", fmt.Errorf("hwaddr: no interface of the host has the address %s", c.mac)
}

// moveIn moves the interface into the container, under its name there, and sets
// it up. It stores the former name in the alias.
func (p HostDevice) moveIn(ctx context.Context, c *deviceConfig, r *plugin.Request) (m moved, err error) {
	err = caller.On(ctx, r.Host, func(host *links.Conn) error {
		name, err := p.device(c, host)
		if err != nil {
			return err
		}
		return caller.On(ctx, r.Container, func(inside *links.Conn) error {
			m, err = move(r, name, host, inside)
			return err
		})
	})
	return m, err
}

func move(r *plugin.Request, name string, host, inside *links.Conn) (moved, error) {
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
	taken := err == nil // another interface in the container has the name
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

// retrieve undoes a failed move. The kernel moves first, so the renaming or
// setting up may have failed: the interface is in the container under one of
// these names, or has never left.
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
	return host.Change(dev.Index, links.Change{Set: unix.IFF_UP})
}

// errNoAlias means that the interface exists, but its alias does not contain its
// name on the host.
var errNoAlias = errors.New("it has no alias, which would be its name on the host")

// moveOut moves the interface back to the host, down, under the name in its
// alias. It ignores an interface that is gone, and one without an alias, which
// is another's unless the result lists it.
func moveOut(ctx context.Context, r *plugin.Request) error {
	return caller.On(ctx, r.Container, func(inside *links.Conn) error {
		own, err := inside.Link(r.IfName)
		switch {
		case links.NotFound(err), err == nil && own.Alias == "" && !reported(r, own):
			return nil
		case err == nil && own.Alias == "":
			return errNoAlias
		case err != nil:
			return err
		}
		err = caller.On(ctx, r.Host, func(host *links.Conn) error {
			_, err := host.Link(own.Alias)
			return err
		})
		if err == nil {
			return fmt.Errorf("it cannot go back to the host, which has an interface %q by now: rename that one: %w", own.Alias, unix.EEXIST)
		}
		if !links.NotFound(err) {
			return err
		}
		return inside.Move(own.Index, r.Host, links.Move{Name: own.Alias})
	})
}

// reported reports whether the result lists the interface in the container.
func reported(r *plugin.Request, own links.Link) bool {
	return r.PrevResult != nil && slices.ContainsFunc(r.PrevResult.Interfaces, func(i *types100.Interface) bool {
		return i.Name == r.IfName && i.Sandbox == r.NetNS && i.Mac == own.MAC.String()
	})
}
