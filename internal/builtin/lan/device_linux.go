package lan

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// moved is an interface that was moved into the container, or may have been, with its
// former state.
type moved struct {
	hostName  string
	inside    []string // the names that it may have in the container
	wasUp     bool
	unplugged bool // it was up without a carrier
}

// onBoth calls do with sockets on the host and in the container.
func onBoth(ctx context.Context, r *plugin.Request, do func(host, inside *links.Conn) error) error {
	return contract.On(ctx, r.Host, func(host *links.Conn) error {
		return contract.On(ctx, r.Container, func(inside *links.Conn) error { return do(host, inside) })
	})
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
	return firstIn("runtimeConfig.deviceID", sys.path(auxiliaryBus, c.auxiliary, "net"))
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

// move moves the interface into the container, under its name there, and sets
// it up. It stores the former name in the alias. The kernel moves first, so the
// renaming or setting up may fail in the container.
func (a *hostDevice) move(host, inside *links.Conn) error {
	name, err := a.plugin.device(a.deviceConfig, host)
	if err != nil {
		return err
	}
	dev, err := host.Link(name)
	if err != nil {
		return fmt.Errorf("device: %w", err)
	}
	if _, err := inside.Link(a.r.IfName); err == nil {
		return fmt.Errorf("interface %q exists in the container already: %w", a.r.IfName, unix.EEXIST)
	} else if !links.NotFound(err) {
		return err
	}
	m := &moved{hostName: name, inside: []string{a.r.IfName}, wasUp: dev.Up(), unplugged: dev.Up() && !dev.Carrier()}
	if _, err := inside.Link(name); err != nil { // no other interface has the name
		m.inside = append(m.inside, name)
	}
	a.moved = m
	err = host.Move(dev.Index, a.r.Container, links.Move{Name: a.r.IfName, Alias: name, Up: true})
	if err != nil {
		return fmt.Errorf("device %q: %w", name, err)
	}
	return nil
}

// back moves the interface back to the host, as it was, after a failure. One that
// never left is set up again.
func (m *moved) back(to *netns.Handle, host, inside *links.Conn) error {
	for _, name := range m.inside {
		found, err := inside.Link(name)
		if err == nil {
			return inside.Move(found.Index, to, links.Move{Name: m.hostName, Up: m.wasUp})
		}
		if !links.NotFound(err) {
			return err
		}
	}
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
func moveOut(r *plugin.Request, host, inside *links.Conn) error {
	own, err := inside.Link(r.IfName)
	switch {
	case links.NotFound(err), err == nil && own.Alias == "" && !reported(r, own):
		return nil
	case err != nil:
		return err
	case own.Alias == "":
		return errNoAlias
	}
	if _, err = host.Link(own.Alias); err == nil {
		return fmt.Errorf("it cannot go back to the host, which has an interface %q by now: rename that one: %w", own.Alias, unix.EEXIST)
	}
	if !links.NotFound(err) {
		return err
	}
	return inside.Move(own.Index, r.Host, links.Move{Name: own.Alias})
}

// reported reports whether the result lists the interface in the container.
func reported(r *plugin.Request, own links.Link) bool {
	said, err := contract.Reported(r)
	return err == nil && said.Mac == own.MAC.String()
}

// sysfs is the mount point of sysfs; empty is /sys.
type sysfs string

// The buses of devices.
const (
	pciBus       = "bus/pci/devices"
	auxiliaryBus = "bus/auxiliary/devices"
)

func (s sysfs) path(elements ...string) string {
	root := cmp.Or(string(s), "/sys")
	return filepath.Join(append([]string{root}, elements...)...)
}

// has reports whether a device is on a bus. It refuses a name that is a path.
func (s sysfs) has(bus, id string) bool {
	if strings.ContainsRune(id, '/') || id == ".." || id == "." {
		return false
	}
	_, err := os.Stat(s.path(bus, id))
	return err == nil
}

// userSpaceDriver reports whether a PCI device's driver gives the device to a
// program, as DPDK needs it.
func (s sysfs) userSpaceDriver(id string) (bool, error) {
	driver, err := filepath.EvalSymlinks(s.path(pciBus, id, "driver"))
	if err != nil {
		return false, fmt.Errorf("driver of device %q: %w", id, err)
	}
	return slices.Contains([]string{"vfio-pci", "uio_pci_generic", "igb_uio"}, filepath.Base(driver)), nil
}

// ofPCI returns the name of a PCI device's interface. A virtio device's is one
// level below.
func (s sysfs) ofPCI(id string) (string, error) {
	dir := s.path(pciBus, id, "net")
	if _, err := os.Lstat(dir); err != nil {
		below, err := filepath.Glob(s.path(pciBus, id, "virtio*", "net"))
		if err != nil || len(below) == 0 {
			return "", fmt.Errorf("pciBusID: device %q has no interface: there is no %s", id, dir)
		}
		dir = below[0]
	}
	return firstIn("pciBusID", dir)
}

// ofPath returns the name of the interface of the device at a path below
// /sys/devices.
func (s sysfs) ofPath(path string) (string, error) {
	if clean := filepath.Clean(path); !strings.HasPrefix(clean, s.path("devices")+"/") {
		return "", fmt.Errorf("kernelpath: %q is not below %s", path, s.path("devices"))
	}
	return firstIn("kernelpath", filepath.Join(path, "net"))
}

// firstIn returns the name of a device's first interface.
func firstIn(field, dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("%s: %w", field, err)
	}
	if len(entries) == 0 {
		return "", fmt.Errorf("%s: the device has no interface in %s", field, dir)
	}
	return entries[0].Name(), nil
}
