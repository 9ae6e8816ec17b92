// Package lan has the plugins that connect a container to a network of the host as a machine
// of its own: macvlan and host-device. They take the configuration of the reference plugins
// (v1.9.1).
//
// Other machines are on that network, and one of them may have an address that
// the IPAM plugin considers free. The kernel detects duplicate IPv6 addresses,
// which takes 1 to 2 s. Add waits for that, and fails if an address is taken.
package lan

import (
	"context"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/plugin"
)

func attach(ctx context.Context, r *plugin.Request, typ string, m ipam.Maker) (*types100.Result, error) {
	result, err := ipam.Attach(ctx, r, typ, m)
	return result, inNetwork(r, err)
}

// inNetwork names the network in an error, as the reference plugins do.
func inNetwork(r *plugin.Request, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("network %q: %w", r.Name, err)
}
