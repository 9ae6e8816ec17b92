// Package macvlan gives a container an interface of its own on a network of the
// host: it shares the host's interface, the master, under another MAC address.
// It takes the configuration of the reference plugin macvlan (v1.9.1).
//
// Other machines are on that network, and one of them may have an address that
// the IPAM plugin considers free. The kernel detects duplicate IPv6 addresses,
// which takes 1 to 2 s. Add waits for that, and fails if an address is taken.
package macvlan

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Plugin is the plugin "macvlan".
type Plugin struct{}

// Add makes the interface, and gives it addresses if there is an IPAM plugin.
func (Plugin) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	c, err := parse(r)
	if err != nil {
		return nil, err
	}
	result, err := ipam.Attach(ctx, r, c.IPAM.Type, &attachment{config: c, r: r})
	if err != nil {
		return nil, fmt.Errorf("network %q: %w", r.Name, err)
	}
	return result, nil
}

// attachment is an attachment in progress.
type attachment struct {
	*config
	r    *plugin.Request
	made bool
}

// Make creates the interface, down.
func (a *attachment) Make(ctx context.Context) (err error) {
	conn, err := caller.From(ctx).Conns.Borrow(a.masterNS(a.r))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	master, err := a.master(conn)
	if err != nil {
		return err
	}
	err = links.Macvlan{
		Name: a.r.IfName, Parent: master.Index, Mode: a.mode, MAC: a.mac, MTU: a.MTU, BroadcastQueue: a.BcQueueLen,
	}.Create(conn, a.r.Container)
	a.made = err == nil
	return err
}

// Configure sets the interface up. The master existed before: if it has no
// carrier, it is not plugged in, and nobody can have the addresses.
func (a *attachment) Configure(ctx context.Context, result *types100.Result) error {
	if err := ipam.Apply(ctx, a.r, a.IPAM.Type, result, ipam.How{Announce: true, Detect: true}, 0); err != nil {
		return fmt.Errorf("interface %q: %w", a.r.IfName, err)
	}
	result.DNS = a.DNS
	return nil
}

// Undo deletes the interface.
func (a *attachment) Undo(ctx context.Context) error {
	if !a.made {
		return nil
	}
	return remove(ctx, a.r, func(delete func() error) error { return delete() })
}

// Del releases the addresses and deletes the interface.
func (Plugin) Del(ctx context.Context, r *plugin.Request) error {
	var c config
	if err := r.Decode(&c); err != nil {
		return err
	}
	err := ipam.Del(ctx, r, c.IPAM.Type)
	if r.Container != nil {
		err = errors.Join(err, remove(ctx, r, func(delete func() error) error {
			return caller.From(ctx).Batch.Later(ctx, func(context.Context) error { return delete() })
		}))
	}
	if err != nil {
		return fmt.Errorf("network %q: %w", r.Name, err)
	}
	return nil
}

// remove deletes the interface, if it is a macvlan. The caller decides how to
// run the deletion itself, which waits for the kernel.
func remove(ctx context.Context, r *plugin.Request, run func(delete func() error) error) error {
	conn, err := caller.From(ctx).Conns.Borrow(r.Container)
	if err != nil {
		return err
	}
	own, err := conn.Link(r.IfName)
	if err != nil || own.Kind != "macvlan" {
		if links.NotFound(err) {
			err = nil
		}
		return errors.Join(err, conn.Close())
	}
	name := r.IfName
	return run(func() error { return conn.DeleteAndClose(own.Index, name) })
}

// Status fails if the master is missing, or the IPAM plugin has no addresses.
func (Plugin) Status(ctx context.Context, r *plugin.Request) (err error) {
	c, err := parse(r)
	if err != nil {
		return err
	}
	if !c.InNetNS {
		conn, err := caller.From(ctx).Conns.Borrow(r.Host)
		if err != nil {
			return err
		}
		_, err = c.master(conn)
		if err := errors.Join(err, conn.Close()); err != nil {
			return plugin.Errorf(errNotAvailable, "network %q: %w", r.Name, err)
		}
	}
	return ipam.Status(ctx, r, c.IPAM.Type)
}

// errNotAvailable is "plugin not available", CNI specification 1.1.0, section 5.
const errNotAvailable = 50

// GC lets the IPAM plugin release the addresses of attachments that are gone.
// Interfaces end with their namespaces.
func (Plugin) GC(ctx context.Context, r *plugin.Request, _ []types.GCAttachment) error {
	var c config
	if err := r.Decode(&c); err != nil {
		return err
	}
	return ipam.GC(ctx, r, c.IPAM.Type)
}
