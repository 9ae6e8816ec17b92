package backend

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/thick/server"
)

// DelegateAdd attaches one network.
func (b *Backend) DelegateAdd(ctx context.Context, r *server.Request, a *server.InterfaceAttributes) (types.Result, error) {
	var c requestConfig
	if err := json.Unmarshal(r.Config, &c); err != nil {
		return nil, invalid("%v", err)
	}
	if c.Delegates != nil { // its type is that of the client, which would ask here again
		return nil, invalid("one network is attached at a time, and it has delegates")
	}
	n := network{name: r.Network, network: r.Network, ifName: r.IfName, config: r.Config}
	if a != nil {
		if err := validate(a); err != nil {
			return nil, refused(fmt.Errorf("%w: %w", err, cni.ErrInvalidArgument))
		}
		n.ips, n.mac, n.cniArgs = a.IPs, a.MAC, a.CNIArgs
	}
	result, err := b.setUp(ctx, r, []network{n}, true)
	if err != nil {
		return nil, refused(err)
	}
	return result.Raw()[0], nil
}

// validate checks the addresses of a request, which a network may get in CNI_ARGS.
func validate(a *server.InterfaceAttributes) error {
	for _, ip := range a.IPs {
		addr, _, _ := strings.Cut(ip, "/")
		_, err := netip.ParseAddr(addr)
		if err == nil && addr != ip {
			_, err = netip.ParsePrefix(ip)
		}
		if err != nil {
			return err
		}
	}
	if a.MAC == "" {
		return nil
	}
	_, err := net.ParseMAC(a.MAC)
	return err
}

// DelegateDel detaches one interface that this package has attached, by DelegateAdd or
// with others by Add.
func (b *Backend) DelegateDel(ctx context.Context, r *server.Request) error {
	mine, others, err := b.recorded(r.ContainerID, func(a cni.Attachment) bool { return isInterface(a, r) })
	if err != nil {
		return refused(err)
	}
	return refused(b.remove(ctx, r, mine, len(others) > 0, func(r *server.Request) ([]network, error) {
		return []network{{name: r.Network, network: r.Network, ifName: r.IfName, config: r.Config}}, nil
	}))
}

// DelegateCheck checks one interface.
func (b *Backend) DelegateCheck(ctx context.Context, r *server.Request) error {
	return b.check(ctx, r, func(a cni.Attachment) bool { return isInterface(a, r) })
}

// isInterface reports whether an attachment is the interface of a request, and made by
// this package.
func isInterface(a cni.Attachment, r *server.Request) bool {
	return a.Metadata[keyNetwork] != "" && a.Network == r.Network && a.IfName == r.IfName
}
