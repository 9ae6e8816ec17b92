package lan

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

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
