// Package hostdevice moves an interface of the host into a container, and back
// in DEL. It takes the configuration of the reference plugin host-device
// (v1.9.1), and like that plugin keeps the interface's former name in its alias.
//
// Other machines may be on the interface's network, and one of them may have an
// address that the IPAM plugin considers free. The kernel detects duplicate IPv6
// addresses, which takes 1 to 2 s. Add waits for that, and fails if an address
// is taken.
//
// A PCI device whose driver gives it to a program (DPDK) has no interface to
// move; addresses are still reserved for it.
package hostdevice

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/plugin"
)

// Plugin is the plugin "host-device".
type Plugin struct {
	sys string // mount point of sysfs; empty is /sys
}

// Add moves the interface, and gives it addresses if there is an IPAM plugin.
func (p Plugin) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	c, err := p.parse(r)
	if err != nil {
		return nil, err
	}
	result, err := ipam.Attach(ctx, r, c.IPAM.Type, &attachment{config: c, plugin: p, r: r})
	if err != nil {
		return nil, fmt.Errorf("network %q: %w", r.Name, err)
	}
	return result, nil
}

// attachment is an attachment in progress.
type attachment struct {
	*config
	plugin Plugin
	r      *plugin.Request
	moved  *moved // nil if there is nothing to move back
}

// carrierTime limits the wait for the interface's carrier after the move:
// hardware negotiates a speed first. The reference plugin waits as long.
const carrierTime = 5 * time.Second

// Make moves the interface, up.
func (a *attachment) Make(ctx context.Context) error {
	if a.userSpace {
		return nil
	}
	m, err := a.plugin.moveIn(ctx, a.config, a.r)
	if err == nil {
		a.moved = &m
	}
	return err
}

// Configure assigns the addresses to the interface. If there are IPv6 addresses,
// it waits for the carrier if the interface had one before.
func (a *attachment) Configure(ctx context.Context, result *types100.Result) error {
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
	if err := ipam.Apply(ctx, a.r, a.IPAM.Type, result, ipam.How{Detect: true}, carrier); err != nil {
		return fmt.Errorf("interface %q: %w", a.r.IfName, err)
	}
	return nil
}

// Undo moves the interface back.
func (a *attachment) Undo(ctx context.Context) (err error) {
	if a.moved == nil {
		return nil
	}
	inside, err := caller.From(ctx).Conns.Borrow(a.r.Container)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inside.Close()) }()
	own, err := inside.Link(a.r.IfName)
	if err != nil {
		return err
	}
	return a.moved.back(a.r.Host, inside, own.Index)
}

// Del releases the addresses, and moves the interface back to the host, down,
// because its former state is unknown. If the namespace is gone, the kernel has
// already moved a physical device back to its first namespace, under its name in
// the container.
func (Plugin) Del(ctx context.Context, r *plugin.Request) error {
	// A configuration that Add refused must not prevent the rest of DEL, so Del
	// reads only the IPAM plugin from it.
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

// Status asks the IPAM plugin whether it has addresses. The device may be
// missing from the host because a container has it.
func (p Plugin) Status(ctx context.Context, r *plugin.Request) error {
	var c config
	if err := r.Decode(&c); err != nil {
		return err
	}
	// The caller may name the device only in an Add.
	if _, err := c.parseMAC(); err != nil {
		return plugin.Errorf(types.ErrInvalidNetworkConfig, "network %q: %w", r.Name, err)
	}
	return ipam.Status(ctx, r, c.IPAM.Type)
}

// GC lets the IPAM plugin release the addresses of attachments that are gone.
func (Plugin) GC(ctx context.Context, r *plugin.Request, _ []types.GCAttachment) error {
	var c config
	if err := r.Decode(&c); err != nil {
		return err
	}
	return ipam.GC(ctx, r, c.IPAM.Type)
}
