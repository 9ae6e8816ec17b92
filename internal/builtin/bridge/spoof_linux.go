package bridge

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/plugin"
)

// spoofCheck calls fn with the rules against other MAC addresses, and names the
// field of the configuration in its error.
func spoofCheck(ctx context.Context, r *plugin.Request, fn func(netfilter.SpoofCheck) error) error {
	err := fn(netfilter.Open(r.Host, caller.Netfilter(ctx)).SpoofCheck(r.ContainerID, r.IfName))
	switch {
	case errors.Is(err, netfilter.ErrLongComment):
		return invalid(`"macspoofchk": %v`, err)
	case err != nil:
		return fmt.Errorf(`"macspoofchk": %w`, err)
	}
	return nil
}

func removeSpoofCheck(ctx context.Context, r *plugin.Request) error {
	return spoofCheck(ctx, r, func(s netfilter.SpoofCheck) error { return s.Remove(ctx) })
}
