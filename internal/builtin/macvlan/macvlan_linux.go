// Package macvlan gives a container an interface of its own on a network that
// the host has: one that shares the host's interface, the master, under another
// MAC address. It takes the configuration of the reference plugin macvlan
// (v1.9.1).
//
// Other machines are on that network, and one of them may have an address that
// the IPAM plugin considers free. The kernel detects duplicate IPv6 addresses,
// which takes 1 to 2 s. Add waits for that, and fails if an address is taken.
package macvlan

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Plugin is the plugin "macvlan".
type Plugin struct{}

// releaseTime is how long addresses may take to be given back after a failure.
const releaseTime = 10 * time.Second

// Add makes the interface, while the IPAM plugin, if there is one, looks for
// addresses.
func (Plugin) Add(ctx context.Context, r *plugin.Request) (_ *types100.Result, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	c, err := parse(r)
	if err != nil {
		return nil, err
	}
	created := false
	defer func() {
		if err != nil && created {
			err = errors.Join(err, remove(ctx, r, func(delete func() error) error { return delete() }))
		}
	}()
	create := func() (err error) {
		created, err = c.create(ctx, r)
		return err
	}
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	if c.IPAM.Type == "" {
		err = create()
	} else {
		result, err = ipam.Add(ctx, r, c.IPAM.Type, create)
	}
	if err != nil {
		return nil, fmt.Errorf("network %q: %w", r.Name, err)
	}
	i, err := configure(ctx, r, c, result)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("network %q: interface %q: %w", r.Name, r.IfName, err), ipam.Del(ctx, r, c.IPAM.Type))
	}
	for _, ip := range result.IPs {
		ip.Interface = types100.Int(0)
	}
	return &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{i}, IPs: result.IPs, Routes: result.Routes, DNS: c.DNS,
	}, nil
}

// create makes the interface, and tells whether it did.
func (c *config) create(ctx context.Context, r *plugin.Request) (created bool, err error) {
	conn, err := links.Borrow(ctx, c.masterNS(r))
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	master, err := c.master(conn)
	if err != nil {
		return false, err
	}
	err = links.Macvlan{
		Name: r.IfName, Parent: master.Index, Mode: c.mode, MAC: c.mac, MTU: c.MTU, BroadcastQueue: c.BcQueueLen,
	}.Create(conn, r.Container)
	return err == nil, err
}

// configure sets the interface up, with the addresses of a result if it has
// any, and describes it.
func configure(ctx context.Context, r *plugin.Request, c *config, result *types100.Result) (_ *types100.Interface, err error) {
	var sysctls []links.Sysctl
	if c.IPAM.Type != "" {
		if sysctls, err = ipam.Sysctls(r.IfName, result); err != nil {
			return nil, err
		}
		// Routers may give it IPv6 addresses even if the IPAM plugin gives it
		// none.
		sysctls = append(sysctls, ipam.Announced(r.IfName))
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
	do := conn.Requests()
	if c.IPAM.Type == "" {
		do.Up(own.Index)
	} else if err := ipam.Configure(do, own.Index, result, ipam.How{Announce: true, Detect: true}); err != nil {
		return nil, err
	}
	if err = do.Send(); err == nil && c.IPAM.Type != "" {
		// The master existed before: without a carrier, it is not plugged in.
		err = ipam.Detect(ctx, r.Container, conn, own.Index, result, 0)
	}
	return &types100.Interface{Name: r.IfName, Mac: own.MAC.String(), Sandbox: r.NetNS}, err
}

// Del gives the addresses back and deletes the interface.
func (Plugin) Del(ctx context.Context, r *plugin.Request) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var c config
	if err := r.Decode(&c); err != nil {
		return err
	}
	err := ipam.Del(ctx, r, c.IPAM.Type)
	if r.Container != nil {
		err = errors.Join(err, remove(ctx, r, func(delete func() error) error {
			return batch.Later(ctx, func(context.Context) error { return delete() })
		}))
	}
	if err != nil {
		return fmt.Errorf("network %q: %w", r.Name, err)
	}
	return nil
}

// remove deletes the interface, if it is a macvlan. How the deletion itself,
// which waits for the kernel, is run is up to the caller.
func remove(ctx context.Context, r *plugin.Request, run func(delete func() error) error) error {
	conn, err := links.Borrow(ctx, r.Container)
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
	return run(func() error {
		err := conn.Delete(own.Index)
		if err != nil {
			err = fmt.Errorf("delete interface %q: %w", name, err)
		}
		return errors.Join(err, conn.Close())
	})
}

// Status fails if the master is missing, or the IPAM plugin has no addresses.
func (Plugin) Status(ctx context.Context, r *plugin.Request) (err error) {
	c, err := parse(r)
	if err != nil {
		return err
	}
	if !c.InNetNS {
		conn, err := links.Borrow(ctx, r.Host)
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

// GC has the IPAM plugin give back what belongs to no attachment. Interfaces go
// with their namespaces.
func (Plugin) GC(ctx context.Context, r *plugin.Request, _ []types.GCAttachment) error {
	var c config
	if err := r.Decode(&c); err != nil {
		return err
	}
	return ipam.GC(ctx, r, c.IPAM.Type)
}
