package lan

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/plugin"
)

// fakeSys makes a sysfs with devices of all kinds, whose interfaces are named
// dev0.
func fakeSys(t *testing.T) string {
	t.Helper()
	sys := t.TempDir()
	for _, dir := range []string{
		"devices/pci0/net/dev0", "devices/pci1/virtio0/net/dev0", "devices/pci2", "devices/empty/net",
		"bus/pci/drivers/e1000", "bus/pci/drivers/vfio-pci", "bus/pci/devices", "bus/auxiliary/devices/sf.0/net/dev0",
	} {
		expect.NoError(t, os.MkdirAll(filepath.Join(sys, dir), 0o755))
	}
	for link, target := range map[string]string{
		"bus/pci/devices/0000:00": "../../../devices/pci0", "devices/pci0/driver": "../../bus/pci/drivers/e1000",
		"bus/pci/devices/0000:01": "../../../devices/pci1", "devices/pci1/driver": "../../bus/pci/drivers/e1000",
		"bus/pci/devices/0000:02": "../../../devices/pci2", "devices/pci2/driver": "../../bus/pci/drivers/vfio-pci",
		"bus/pci/devices/0000:03": "../../../devices/empty", "devices/empty/driver": "../../bus/pci/drivers/e1000",
	} {
		expect.NoError(t, os.Symlink(target, filepath.Join(sys, link)))
	}
	return sys
}

func TestDevice(t *testing.T) {
	sys := fakeSys(t)
	for config, want := range map[string]string{
		`"device": "eth7"`:                                       "eth7",
		`"device": "eth7", "pciBusID": "0000:00"`:                "eth7",
		`"pciBusID": "0000:00"`:                                  "dev0",
		`"pciBusID": "0000:01"`:                                  "dev0",
		`"pciBusID": "0000:02"`:                                  "user space",
		`"pciBusID": "0000:03"`:                                  "error: pciBusID: the device has no interface in SYS/bus/pci/devices/0000:03/net",
		`"pciBusID": "0000:09"`:                                  `error: network "n": pciBusID: driver of device "0000:09": lstat SYS/bus/pci/devices/0000:09: no such file or directory`,
		`"kernelpath": "SYS/devices/pci0"`:                       "dev0",
		`"kernelpath": "SYS/devices/../bus/pci/devices/0000:00"`: `error: kernelpath: "SYS/devices/../bus/pci/devices/0000:00" is not below SYS/devices`,
		`"kernelpath": "devices/pci0"`:                           `error: kernelpath: "devices/pci0" is not below SYS/devices`,
		`"kernelpath": "SYS/devices/none"`:                       "error: kernelpath: open SYS/devices/none/net: no such file or directory",
		`"runtimeConfig": {"deviceID": "0000:01"}`:               "dev0",
		`"runtimeConfig": {"deviceID": "sf.0"}`:                  "dev0",
		`"pciBusID": "x", "runtimeConfig": {"deviceID": "sf.0"}`: "dev0",
		`"runtimeConfig": {"deviceID": "sf.1"}`:                  `error: network "n": runtimeConfig.deviceID: there is no device "sf.1" on the buses pci and auxiliary`,
		`"runtimeConfig": {"deviceID": "../devices"}`:            `error: network "n": runtimeConfig.deviceID: there is no device "../devices" on the buses pci and auxiliary`,
		`"hwaddr": "x"`:                                          `error: network "n": hwaddr: address x: invalid MAC address`,
		`"x": 1`:                                                 `error: network "n": no device is named: set "device", "hwaddr", "kernelpath" or "pciBusID"`,
	} {
		p := HostDevice{sys: sys}
		c, err := p.parse(&plugin.Request{Name: "n", Type: "host-device", Config: []byte("{" + strings.ReplaceAll(config, "SYS", sys) + "}")})
		var got string
		switch {
		case err != nil:
		case c.userSpace:
			got = "user space"
		default:
			got, err = p.device(c, nil)
		}
		if err != nil {
			got = "error: " + strings.ReplaceAll(err.Error(), sys, "SYS")
		}
		expect.Same(t, config, got, want)
	}
}
