package bridge

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/netfilter/reference"
	"github.com/embedcni/cni/plugin"
)

// spoofCheck returns the rules against other MAC addresses.
func spoofCheck(ctx context.Context, r *plugin.Request) reference.SpoofCheck {
	return caller.From(ctx).Firewalls(r.Host).SpoofCheck(r.ContainerID, r.IfName)
}

// spoofError names the field of the configuration in an error of the rules against other
// MAC addresses.
func spoofError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, reference.ErrLongComment):
		return invalid(`"macspoofchk": %v`, err)
	}
	return fmt.Errorf(`"macspoofchk": %w`, err)
}
