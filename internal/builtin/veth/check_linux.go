package veth

import (
	"context"
	"errors"
	"fmt"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Check runs a CHECK. It checks the IPAM plugin, the container's end of the
// pair, which must be up if it should be and have all of its addresses and
// routes, and then calls onHost.
//
// It does not compare the MTU. A later plugin may have changed it without a word
// in the result: the reference plugin tuning reports it in no version of the
// specification.
func (c Config) Check(ctx context.Context, r *plugin.Request, up bool, onHost func(host *links.Conn, container links.Link) error) (err error) {
	if err := ipam.Check(ctx, r, c.IPAM.Type); err != nil {
		return err
	}
	container, err := checkContainer(ctx, r, up)
	if err != nil {
		return err
	}
	host, err := caller.From(ctx).Conns.Borrow(r.Host)
	if err != nil {
		return err
	}
	return errors.Join(onHost(host, container), host.Close())
}

func checkContainer(ctx context.Context, r *plugin.Request, up bool) (links.Link, error) {
	return ipam.CheckInterface(ctx, r, up, func(own links.Link, said *types100.Interface) error {
		if err := isVeth(own); err != nil {
			return err
		}
		return ipam.CompareMAC(own, said)
	})
}

func isVeth(link links.Link) error {
	if link.Kind != "veth" {
		return fmt.Errorf("it is not a veth interface, but %q", link.Kind)
	}
	return nil
}

// CheckHost returns the host's end of the pair. It returns an error unless that
// is up and the peer of the container's end. The kernel knows the peer: an
// administrator or udev may have changed its name and hardware address, and
// packets pass all the same.
func (c Config) CheckHost(conn *links.Conn, r *plugin.Request, container links.Link) (links.Link, error) {
	said := HostInterface(r.PrevResult, r.IfName)
	if said.Name == "" {
		return links.Link{}, fmt.Errorf("prevResult has no interface of the host before %q", r.IfName)
	}
	link, err := conn.LinkByIndex(container.Peer.Index)
	if err != nil {
		return link, fmt.Errorf("interface %q on the host: %w", said.Name, err)
	}
	err = isVeth(link)
	if err == nil && !link.Up() {
		err = errors.New("it is down")
	}
	if err == nil && link.Peer.Index != container.Index {
		err = fmt.Errorf("it is not the other end of the container's %q", container.Name)
	}
	if err != nil {
		return link, fmt.Errorf("interface %q on the host: %w", link.Name, err)
	}
	return link, nil
}

// runTime limits the time until the kernel notices that both ends are up. Only
// old kernels under load need any.
const runTime = 3 * time.Second

// AwaitRunning waits until packets pass the host's end. Since Linux 6.8 they do
// when the first answer arrives.
func (e *Ends) AwaitRunning(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	for !e.Host.Running() {
		link, err := e.OnHost.LinkByIndex(e.Host.Index)
		if err != nil || link.Running() {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("interface %q is up, but has no carrier (operational state %d): %w", link.Name, link.OperState, context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}
