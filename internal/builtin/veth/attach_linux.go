package veth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Ends are the ends of an ADD's veth pair, with sockets in their namespaces.
type Ends struct {
	links.Pair  // made if the host's end has an index
	Request     *plugin.Request
	OnHost      *links.Conn
	InContainer *links.Conn // nil before EnterContainer
}

// Add runs an ADD that connects a container by a veth pair; see [ipam.Attach].
func Add(ctx context.Context, r *plugin.Request, typ string, maker func(*Ends) ipam.Maker) (result *types100.Result, err error) {
	host, err := caller.From(ctx).Conns.Borrow(r.Host)
	if err != nil {
		return nil, err
	}
	e := &Ends{Request: r, OnHost: host}
	defer func() { err = errors.Join(err, e.close()) }()
	return ipam.Attach(ctx, r, typ, maker(e))
}

// EnterContainer opens the socket in the container, and changes the settings
// there.
func (e *Ends) EnterContainer(ctx context.Context, sysctls ...links.Sysctl) (err error) {
	e.InContainer, err = caller.From(ctx).Conns.Borrow(e.Request.Container, sysctls...)
	return err
}

func (e *Ends) close() error {
	err := e.OnHost.Close()
	if e.InContainer != nil {
		err = errors.Join(e.InContainer.Close(), err)
	}
	return err
}

// MissingForwarding returns the settings that make the host forward for the families of
// the addresses, unless it does.
func MissingForwarding(host *links.Conn, addrs []netip.Prefix) (missing []links.Sysctl) {
	for _, v6 := range []bool{false, true} {
		if slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Addr().Is6() == v6 }) && !host.Forwarding(v6) {
			missing = append(missing, links.Forward(v6))
		}
	}
	return missing
}

// NoRA makes an interface of the host ignore router advertisements, because its routes
// come from here.
func NoRA(name string) links.Sysctl {
	return links.Sysctl{Path: "net/ipv6/conf/" + name + "/accept_ra", Value: "0", Optional: true}
}

// Undo deletes the pair, if it was made.
func (e *Ends) Undo(context.Context) error {
	if e.Host.Index == 0 {
		return nil
	}
	return e.OnHost.Delete(e.Host.Index)
}

// Interfaces returns the pair in the form of a result.
func (e *Ends) Interfaces() (host, container *types100.Interface) {
	return &types100.Interface{Name: e.Host.Name, Mac: e.Host.MAC.String()},
		&types100.Interface{Name: e.Container.Name, Mac: e.Container.MAC.String(), Sandbox: e.Request.NetNS}
}

// runTime limits the time until the kernel notices that both ends are up. Only
// old kernels under load need any.
const runTime = 3 * time.Second

// AwaitRunning waits until packets pass the host's end. Since Linux 6.8 they do
// when the first answer arrives.
func (e *Ends) AwaitRunning(ctx context.Context) error {
	if e.Host.Running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	return awaitRunning(ctx, e.OnHost, e.Host.Index)
}

// awaitRunning waits until an interface in the namespace of conn can send.
func awaitRunning(ctx context.Context, conn *links.Conn, index int) error {
	for {
		link, err := conn.LinkByIndex(index)
		if err != nil || link.Running() {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("interface %q is up, but has no carrier (operational state %d): %w", link.Name, link.OperState, context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}
