package bandwidth

import (
	"context"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// onHostEnd calls do with the host's end of the container's veth pair.
func onHostEnd(ctx context.Context, r *plugin.Request, do func(*links.Conn, links.Link) error) error {
	return caller.On(ctx, r.Host, func(conn *links.Conn) error {
		var host links.Link
		err := caller.On(ctx, r.Container, func(container *links.Conn) (err error) {
			host, err = findHostEnd(r, container, conn)
			return err
		})
		if err != nil {
			return err
		}
		return do(conn, host)
	})
}

// findHostEnd looks the host's end up. It must be an interface in the result, because
// the limits are for interfaces of earlier plugins. The error is a [noPair] if an
// interface is not there, or is another.
func findHostEnd(r *plugin.Request, container, onHost compare.Net) (host links.Link, err error) {
	if r.PrevResult == nil {
		return host, plugin.Errorf(types.ErrInvalidNetworkConfig, "there is no previous result")
	}
	own, err := container.Link(r.IfName)
	if links.NotFound(err) {
		return host, noPair{fmt.Errorf("in the container: %w", err), true}
	}
	if err != nil {
		return host, fmt.Errorf("in the container: %w", err)
	}
	if own.Kind != "veth" {
		return host, plugin.Errorf(types.ErrInvalidNetworkConfig,
			"interface %q in the container is no end of a veth pair, but %q: bandwidth can limit no other", r.IfName, own.Kind)
	}
	host, err = onHost.LinkByIndex(own.Peer.Index)
	switch {
	case links.NotFound(err):
		err = noPair{err, false}
	case err != nil:
	case host.Kind != "veth" || host.Peer.Index != own.Index:
		err = noPair{fmt.Errorf("interface %q has its index, but is another: the pair does not end on this host", host.Name), false}
	case compare.OnHost(r, host.Name) == nil:
		err = noPair{fmt.Errorf("interface %q is not in the previous result", host.Name), false}
	}
	if err != nil {
		return host, fmt.Errorf("the host's end of interface %q: %w", r.IfName, err)
	}
	return host, nil
}

// noPair means that the container's interface, or the host's end of it, is gone or was
// replaced.
type noPair struct {
	error
	inside bool // the container's
}

func (n noPair) Unwrap() error { return n.error }
