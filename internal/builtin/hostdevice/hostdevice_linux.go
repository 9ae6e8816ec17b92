// Package hostdevice moves an interface of the host into a container, and back
// in DEL. It takes the configuration of the reference plugin host-device
// (v1.9.1), and keeps the name that the interface had where that one does: in
// the interface's alias.
//
// Other machines may be on the interface's network, and one of them may have an
// address that the IPAM plugin considers free. The kernel detects duplicate
// IPv6 addresses, which takes 1 to 2 s. Add waits for that, and fails if an
// address is taken.
//
// A PCI device whose driver hands it to a program (DPDK) has no interface to be
// moved; addresses are reserved for it all the same.
package hostdevice

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Plugin is the plugin "host-device".
type Plugin struct {
	sys string // where sysfs is; empty is /sys
}

// teardownTime is how long an ADD that failed may take to be undone.
const teardownTime = 10 * time.Second

// Add moves the interface, while the IPAM plugin, if there is one, looks for
// addresses.
func (p Plugin) Add(ctx context.Context, r *plugin.Request) (_ *types100.Result, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	c, err := p.parse(r)
	if err != nil {
		return nil, err
	}
	var done *moved
	defer func() {
		if err != nil && done != nil {
			err = errors.Join(err, undo(ctx, r, *done))
		}
	}()
	move := func() error {
		if c.userSpace {
			return nil
		}
		m, err := p.moveIn(ctx, c, r)
		if err == nil {
			done = &m
		}
		return err
	}
	result := &types100.Result{}
	if c.IPAM.Type == "" {
		err = move()
	} else {
		result, err = ipam.Add(ctx, r, c.IPAM.Type, move)
	}
	if err != nil {
		return nil, fmt.Errorf("network %q: %w", r.Name, err)
	}
	carrier := carrierTime
	if done != nil && done.unplugged {
		carrier = 0
	}
	i, err := configure(ctx, r, c, result, carrier)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTime)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("network %q: interface %q: %w", r.Name, r.IfName, err), ipam.Del(ctx, r, c.IPAM.Type))
	}
	if c.IPAM.Type == "" {
		return &types100.Result{CNIVersion: types100.ImplementedSpecVersion, Interfaces: []*types100.Interface{i}}, nil
	}
	for _, ip := range result.IPs {
		ip.Interface = types100.Int(0)
	}
	result.Interfaces, result.DNS = []*types100.Interface{i}, c.DNS
	return result, nil
}

// carrierTime is how long an interface may take to get its carrier back after
// the move: hardware negotiates a speed first. The reference plugin waits as
// long.
const carrierTime = 5 * time.Second

// configure gives the interface the addresses of a result, if it has any, and
// describes it. If there are IPv6 addresses, it waits for a carrier.
func configure(ctx context.Context, r *plugin.Request, c *config, result *types100.Result, carrier time.Duration) (_ *types100.Interface, err error) {
	i := &types100.Interface{Name: r.IfName, Sandbox: r.NetNS}
	if c.userSpace {
		return i, nil
	}
	var sysctls []links.Sysctl
	if c.IPAM.Type != "" {
		if sysctls, err = ipam.Sysctls(r.IfName, result); err != nil {
			return nil, err
		}
	}
	conn, err := links.Borrow(ctx, r.Container, sysctls...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	own, err := conn.Link(r.IfName)
	if err != nil {
		return nil, err
	}
	i.Mac = own.MAC.String()
	if c.IPAM.Type == "" {
		return i, nil
	}
	do := conn.Requests()
	if err := ipam.Configure(do, own.Index, result, ipam.How{Detect: true}); err != nil {
		return nil, err
	}
	if err := do.Send(); err != nil {
		return nil, err
	}
	return i, ipam.Detect(ctx, r.Container, conn, own.Index, result, carrier)
}

// undo moves the interface back after a failure.
func undo(ctx context.Context, r *plugin.Request, m moved) (err error) {
	inside, err := links.Borrow(ctx, r.Container)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inside.Close()) }()
	own, err := inside.Link(r.IfName)
	if err != nil {
		return err
	}
	return m.back(r.Host, inside, own.Index)
}

// Del gives the addresses back, and the interface to the host, where it is down
// then: how it was before nobody knows. If the namespace is gone, the kernel
// has given a physical device back to its first namespace, under the name that
// it had in the container.
func (Plugin) Del(ctx context.Context, r *plugin.Request) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// What Add refused must not keep the rest from being undone: of the
	// configuration only what every plugin has is needed.
	var c struct {
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	if err := r.Decode(&c); err != nil {
		return err
	}
	err := ipam.Del(ctx, r, c.IPAM.Type)
	if r.Container != nil {
		if back := moveOut(ctx, r); back != nil {
			err = errors.Join(err, fmt.Errorf("interface %q: %w", r.IfName, back))
		}
	}
	if err != nil {
		return fmt.Errorf("network %q: %w", r.Name, err)
	}
	return nil
}

// Status has the IPAM plugin say whether it has addresses. The device may well
// be missing from the host: a container has it.
func (p Plugin) Status(ctx context.Context, r *plugin.Request) error {
	var c config
	if err := r.Decode(&c); err != nil {
		return err
	}
	// The caller may name the device in an Add only.
	if _, err := c.parseMAC(); err != nil {
		return plugin.Errorf(types.ErrInvalidNetworkConfig, "network %q: %w", r.Name, err)
	}
	return ipam.Status(ctx, r, c.IPAM.Type)
}

// GC has the IPAM plugin give back what belongs to no attachment.
func (Plugin) GC(ctx context.Context, r *plugin.Request, _ []types.GCAttachment) error {
	var c config
	if err := r.Decode(&c); err != nil {
		return err
	}
	return ipam.GC(ctx, r, c.IPAM.Type)
}
