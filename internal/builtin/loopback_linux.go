package builtin

import (
	"context"
	"errors"
	"fmt"
	"net"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// loopback is the plugin "loopback", which sets the loopback interface up. The interface is
// lo, whatever CNI_IFNAME is.
type loopback struct{}

const (
	loName  = "lo"
	loIndex = 1 // LOOPBACK_IFINDEX of the kernel: the first in every namespace
)

// Add sets the interface up. It returns a previous result unchanged.
func (loopback) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	var before links.Link
	var addrs []links.Address
	err := inContainer(ctx, r, func(c *links.Conn) (err error) {
		if before, err = c.Link(loName); err != nil {
			return err
		}
		if err := c.Up(loIndex); err != nil {
			return err
		}
		addrs, err = c.Addresses(loIndex)
		return err
	})
	if err != nil {
		return nil, err
	}
	if before.Up() {
		if err := contract.NoteLoWasUp(contract.From(ctx).Record); err != nil {
			return nil, err
		}
	}
	if r.PrevResult != nil {
		return r.Chained()
	}
	result := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{{Name: loName, Mac: "00:00:00:00:00:00", Sandbox: r.NetNS}},
	}
	seen := make(map[bool]bool) // by family; the kernel lists IPv4 first
	for _, a := range addrs {
		if !a.Addr().IsLoopback() {
			return nil, fmt.Errorf("interface lo has the address %s, which is not a loopback address", a.Addr())
		}
		if v6 := a.Addr().Is6(); !seen[v6] {
			ip := net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())}
			result.IPs = append(result.IPs, &types100.IPConfig{Interface: types100.Int(0), Address: ip})
			seen[v6] = true
		}
	}
	return result, nil
}

// Del sets the interface down, unless it was up before Add, because then
// somebody else uses it. Without a namespace there is nothing to do.
func (loopback) Del(ctx context.Context, r *plugin.Request) error {
	if r.Container == nil || contract.LoWasUp(contract.From(ctx).Record) {
		return nil
	}
	return inContainer(ctx, r, func(c *links.Conn) error { return c.Down(loIndex) })
}

// Check returns an error unless the interface is up.
func (p loopback) Check(ctx context.Context, r *plugin.Request) error {
	return contract.Check(ctx, r, p)
}

// Compare reports whether the interface is up.
func (loopback) Compare(_ context.Context, r *plugin.Request, v *contract.View) ([]contract.Difference, error) {
	lo, err := v.Container.Link(loName)
	if err != nil {
		return nil, fmt.Errorf("interface lo: %w", err)
	}
	if lo.Up() {
		return nil, nil
	}
	return []contract.Difference{{
		Kind: contract.Interface, Inside: true, Object: loName, Wanted: "up", Found: "down",
		Err: errors.New("loopback interface is down"),
		Fix: func(ctx context.Context) error {
			return inContainer(ctx, r, func(c *links.Conn) error { return c.Up(loIndex) })
		},
	}}, nil
}

// inContainer calls do with a socket in the container.
func inContainer(ctx context.Context, r *plugin.Request, do func(*links.Conn) error) error {
	if err := contract.On(ctx, r.Container, do); err != nil {
		return fmt.Errorf("interface lo: %w", err)
	}
	return nil
}
