package veth

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

// Check returns the container's end of the pair, or an error unless it is as
// the result says, up if it should be, with all of its addresses and routes.
func (c Config) Check(ctx context.Context, r *plugin.Request, up bool) (link links.Link, err error) {
	if r.PrevResult == nil {
		return link, plugin.Errorf(types.ErrInvalidNetworkConfig, "prevResult is missing: there is nothing to check against")
	}
	var said *types100.Interface
	for _, i := range r.PrevResult.Interfaces {
		if i != nil && i.Name == r.IfName && i.Sandbox == r.NetNS {
			said = i
		}
	}
	if said == nil {
		return link, fmt.Errorf("prevResult has no interface %q in %s", r.IfName, r.NetNS)
	}
	conn, err := links.Borrow(ctx, r.Container)
	if err != nil {
		return link, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if link, err = conn.Link(r.IfName); err != nil {
		return link, fmt.Errorf("in the container: %w", err)
	}
	if err := c.same(link, said, up); err != nil {
		return link, fmt.Errorf("interface %q in the container: %w", r.IfName, err)
	}
	if err := ipam.Verify(conn, link.Index, own(r.PrevResult, r)); err != nil {
		return link, fmt.Errorf("interface %q in the container: %w", r.IfName, err)
	}
	return link, nil
}

// same compares an end with what the result says of it.
func (c Config) same(link links.Link, said *types100.Interface, up bool) error {
	switch {
	case link.Kind != "veth":
		return fmt.Errorf("it is not a veth interface, but %q", link.Kind)
	case said.Mac != "" && said.Mac != link.MAC.String():
		return fmt.Errorf("its address is %s, not %s", link.MAC, said.Mac)
	case c.MTU != 0 && link.MTU != c.MTU:
		return fmt.Errorf("its MTU is %d, not %d", link.MTU, c.MTU)
	case up && !link.Up():
		return errors.New("it is down")
	}
	return nil
}

// own is a result without the addresses of other interfaces.
func own(result *types100.Result, r *plugin.Request) *types100.Result {
	filtered := *result
	filtered.IPs = nil
	for _, ip := range result.IPs {
		if ip != nil && ip.Interface != nil {
			i := *ip.Interface
			if i < 0 || i >= len(result.Interfaces) || result.Interfaces[i] == nil || result.Interfaces[i].Name != r.IfName {
				continue
			}
		}
		filtered.IPs = append(filtered.IPs, ip)
	}
	return &filtered
}

// CheckHost returns the host's end of the pair, or an error unless it is the
// peer of the container's, up, and as the result says.
func (c Config) CheckHost(conn *links.Conn, r *plugin.Request, container links.Link) (links.Link, error) {
	said := HostInterface(r.PrevResult, r.IfName)
	if said.Name == "" {
		return links.Link{}, fmt.Errorf("prevResult has no interface of the host before %q", r.IfName)
	}
	link, err := conn.Link(said.Name)
	if err != nil {
		return link, fmt.Errorf("on the host: %w", err)
	}
	err = c.same(link, &said, true)
	if err == nil && (link.Peer != container.Index || container.Peer != link.Index) {
		err = fmt.Errorf("it is not the other end of the container's %q", container.Name)
	}
	if err != nil {
		return link, fmt.Errorf("interface %q on the host: %w", said.Name, err)
	}
	return link, nil
}

// runTime is how long the kernel may take to notice that both ends are up. It
// does so at once, but for old kernels under load.
const runTime = 3 * time.Second

// AwaitRunning waits until packets pass, and returns the interface. Since
// Linux 6.8 they do by the first answer.
func AwaitRunning(ctx context.Context, conn *links.Conn, index int) (links.Link, error) {
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	for {
		link, err := conn.LinkByIndex(index)
		if err != nil || link.Running() {
			return link, err
		}
		select {
		case <-ctx.Done():
			return link, fmt.Errorf("interface %q is up, but has no carrier (operational state %d): %w", link.Name, link.OperState, context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}
