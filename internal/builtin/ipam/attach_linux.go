package ipam

import (
	"context"
	"errors"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Config is the part of the configuration that all interface plugins share.
type Config struct {
	IPAM struct {
		Type string `json:"type"` // empty: the interface gets no address
	} `json:"ipam"`
	DNS types.DNS `json:"dns"`
}

// Maker makes the interface of one attachment; see [Attach].
type Maker interface {
	// Make makes the interface. It needs no address.
	Make(ctx context.Context) error
	// Configure assigns the addresses of the result, if there are any, to the
	// interface, and completes the result.
	Configure(ctx context.Context, result *types100.Result) error
	// Undo undoes Make and Configure as far as they got, even if the context has
	// ended.
	Undo(ctx context.Context) error
}

// Attach runs an ADD. It makes the interface while the IPAM plugin, if typ names
// one, reserves addresses. If anything fails, it removes the interface and
// releases the addresses.
func Attach(ctx context.Context, r *plugin.Request, typ string, m Maker) (*types100.Result, error) {
	leased, err := &types100.Result{}, error(nil)
	if typ == "" {
		err = m.Make(ctx)
	} else {
		leased, err = lease(ctx, r, typ, func() error { return m.Make(ctx) })
	}
	if err != nil {
		return nil, errors.Join(err, m.Undo(ctx))
	}
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, IPs: leased.IPs, Routes: leased.Routes, DNS: leased.DNS}
	if err := m.Configure(ctx, result); err != nil {
		return nil, errors.Join(err, m.Undo(ctx), release(ctx, r, typ))
	}
	return result, nil
}

// Apply sets the attachment's interface up, with the addresses of a result if
// typ names an IPAM plugin, and lists it as the only interface of the result. It
// waits for duplicate address detection if there is a carrier within the time;
// see [Detect].
func Apply(ctx context.Context, r *plugin.Request, typ string, result *types100.Result, how How, carrier time.Duration) error {
	var sysctls []links.Sysctl
	if typ != "" {
		var err error
		if sysctls, err = Sysctls(r.IfName, result); err != nil {
			return err
		}
		if how.Announce { // also the IPv6 addresses that come from routers
			sysctls = append(sysctls, Announced(r.IfName))
		}
	}
	return caller.On(ctx, r.Container, func(conn *links.Conn) error {
		own, err := conn.Link(r.IfName)
		if err != nil {
			return err
		}
		Only(r, result, own.MAC.String())
		if typ == "" {
			return conn.Up(own.Index)
		}
		if err := Configure(conn, own.Index, result, how); err != nil {
			return err
		}
		return Detect(ctx, r.Container, conn, own.Index, result, carrier)
	}, sysctls...)
}

// Only lists the attachment's interface as the only one of a result, with all of
// its addresses.
func Only(r *plugin.Request, result *types100.Result, mac string) {
	result.Interfaces = []*types100.Interface{{Name: r.IfName, Mac: mac, Sandbox: r.NetNS}}
	for _, ip := range result.IPs {
		ip.Interface = types100.Int(0)
	}
}
