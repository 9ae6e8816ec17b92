package lan

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// HostDevice is the plugin "host-device", which moves an interface of the host into a
// container, and back in DEL. Like the reference plugin it keeps the interface's former name in
// its alias. A PCI device whose driver gives it to a program (DPDK) has no interface to
// move; addresses are still reserved for it.
type HostDevice struct {
	ipam.Collector
	sys string // mount point of sysfs; empty is /sys
}

// Add moves the interface, and gives it addresses if there is an IPAM plugin.
func (p HostDevice) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	c, err := p.parse(r)
	if err != nil {
		return nil, err
	}
	return attach(ctx, r, c.IPAM.Type, &hostDevice{deviceConfig: c, plugin: p, r: r})
}

// hostDevice is an attachment in progress.
type hostDevice struct {
	*deviceConfig
	plugin HostDevice
	r      *plugin.Request
	moved  *moved // nil if there is nothing to move back
}

// carrierTime limits the wait for the interface's carrier after the move:
// hardware negotiates a speed first. The reference plugin waits as long.
const carrierTime = 5 * time.Second

// Make moves the interface, up.
func (a *hostDevice) Make(ctx context.Context) error {
	if a.userSpace {
		return nil
	}
	return onBoth(ctx, a.r, a.move)
}

// Configure assigns the addresses to the interface. If there are IPv6 addresses,
// it waits for the carrier if the interface had one before.
func (a *hostDevice) Configure(ctx context.Context, result *types100.Result) error {
	if a.IPAM.Type != "" {
		result.DNS = a.DNS
	}
	if a.userSpace {
		ipam.Only(a.r, result, "")
		return nil
	}
	carrier := carrierTime
	if a.moved.unplugged {
		carrier = 0
	}
	if err := (ipam.Interface{Up: true, Detect: true}).Apply(ctx, a.r, result, carrier); err != nil {
		return fmt.Errorf("interface %q: %w", a.r.IfName, err)
	}
	return nil
}

// Undo moves the interface back.
func (a *hostDevice) Undo(ctx context.Context) error {
	if a.moved == nil {
		return nil
	}
	return onBoth(ctx, a.r, func(host, inside *links.Conn) error { return a.moved.back(a.r.Host, host, inside) })
}

// Del releases the addresses, and moves the interface back to the host, down,
// because its former state is unknown. If the namespace is gone, the kernel has
// already moved a physical device back to its first namespace, under its name in
// the container.
func (HostDevice) Del(ctx context.Context, r *plugin.Request) error {
	// A configuration that Add refused must not prevent the rest of DEL, so Del
	// reads only what libcni has read.
	var c ipam.Config
	if err := r.Decode(&c); err != nil {
		return err
	}
	err := ipam.Del(ctx, r, c.IPAM.Type)
	if r.Container != nil {
		if back := onBoth(ctx, r, func(host, inside *links.Conn) error { return moveOut(r, host, inside) }); back != nil {
			err = joined.Errors(err, fmt.Errorf("interface %q: %w", r.IfName, back))
		}
	}
	return inNetwork(r, err)
}

// Status asks the IPAM plugin whether it has addresses. The device may be
// missing from the host because a container has it.
func (p HostDevice) Status(ctx context.Context, r *plugin.Request) error {
	var c deviceConfig
	if err := r.Decode(&c); err != nil {
		return err
	}
	// The caller may name the device only in an Add.
	if _, err := c.parseMAC(); err != nil {
		return plugin.Errorf(types.ErrInvalidNetworkConfig, "network %q: %w", r.Name, err)
	}
	return ipam.Status(ctx, r, c.IPAM.Type)
}

// Check returns an error unless the interface exists with the addresses of the
// result. It ignores the alias, which DEL needs but the container does not.
func (p HostDevice) Check(ctx context.Context, r *plugin.Request) error {
	return inNetwork(r, ipam.CheckWith(ctx, r, p))
}

// Compare compares the interface and its addresses with the attachment that Add
// made.
func (p HostDevice) Compare(_ context.Context, r *plugin.Request, v *contract.View) ([]contract.Difference, error) {
	var c deviceConfig
	if err := r.Decode(&c); err != nil {
		return nil, err
	}
	said, err := contract.Reported(r)
	if err != nil || p.inUserSpace(r, &c, said) {
		return nil, err
	}
	own := ipam.Interface{
		Up: true, Detect: true, Gone: "the device is not in the container: moving it there again needs Remove and Setup",
		Fits: func(own links.Link, said *types100.Interface) ([]contract.Difference, error) {
			return ipam.SameMAC(own, said), nil
		},
	}
	_, all, err := own.Compare(r, v)
	return all, err
}

// inUserSpace reports whether the device has no interface that could be missing.
// Either Add found none, and reported no hardware address of a device on a bus,
// whatever /sys shows now; or a driver of user space has taken it since.
func (p HostDevice) inUserSpace(r *plugin.Request, c *deviceConfig, said *types100.Interface) bool {
	onBus := c.PCIBusID != "" || c.RuntimeConfig.DeviceID != ""
	if onBus && said.Mac == "" {
		return true
	}
	now, err := p.parse(r)
	return err == nil && now.userSpace
}

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
