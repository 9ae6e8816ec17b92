package lan

import (
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/plugin"
)

// deviceConfig is a configuration. If the device is named in several ways, the first
// that is set counts; the capability "deviceID" overrides pciBusID.
type deviceConfig struct {
	Device     string `json:"device"`
	HWAddr     string `json:"hwaddr"`
	KernelPath string `json:"kernelpath"`
	PCIBusID   string `json:"pciBusID"`
	ipam.Config
	RuntimeConfig struct {
		DeviceID string `json:"deviceID"`
	} `json:"runtimeConfig"`

	mac       net.HardwareAddr
	auxiliary string // a device of the auxiliary bus
	userSpace bool   // the device has a driver in user space (DPDK), and no interface
}

// parse reads the configuration of a request, and looks up the device in /sys.
func (p HostDevice) parse(r *plugin.Request) (*deviceConfig, error) {
	c := &deviceConfig{}
	if err := r.Decode(c); err != nil {
		return nil, err
	}
	if err := c.check(sysfs(p.sys)); err != nil {
		return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "network %q: %w", r.Name, err)
	}
	return c, nil
}

func (c *deviceConfig) check(sys sysfs) (err error) {
	if id := c.RuntimeConfig.DeviceID; id != "" {
		switch {
		case sys.has(pciBus, id):
			c.PCIBusID = id
		case sys.has(auxiliaryBus, id):
			c.PCIBusID, c.auxiliary = "", id
		default:
			return fmt.Errorf("runtimeConfig.deviceID: there is no device %q on the buses pci and auxiliary", id)
		}
	}
	if c.Device == "" && c.HWAddr == "" && c.KernelPath == "" && c.PCIBusID == "" && c.auxiliary == "" {
		return fmt.Errorf(`no device is named: set "device", "hwaddr", "kernelpath" or "pciBusID"`)
	}
	if c.mac, err = c.parseMAC(); err != nil {
		return err
	}
	if c.PCIBusID != "" {
		if c.userSpace, err = sys.userSpaceDriver(c.PCIBusID); err != nil {
			return fmt.Errorf("pciBusID: %w", err)
		}
	}
	return nil
}

// parseMAC returns the device's hardware address, or nil if the configuration
// does not name the device by one.
func (c *deviceConfig) parseMAC() (net.HardwareAddr, error) {
	if c.HWAddr == "" {
		return nil, nil
	}
	mac, err := net.ParseMAC(c.HWAddr)
	if err != nil {
		return nil, fmt.Errorf("hwaddr: %w", err)
	}
	return mac, nil
}
