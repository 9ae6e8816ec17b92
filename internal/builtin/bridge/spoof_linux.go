package bridge

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/netfilter/reference"
	"github.com/embedcni/cni/plugin"
)

// spoofCheck calls fn with the rules against other MAC addresses, and names the
// field of the configuration in its error.
func spoofCheck(g *caller.Given, r *plugin.Request, fn func(reference.SpoofCheck) error) error {
	if err := fn(g.Firewalls(r.Host).SpoofCheck(r.ContainerID, r.IfName)); err != nil {
		return spoofError(err)
	}
	return nil
}

func spoofError(err error) error {
	if errors.Is(err, reference.ErrLongComment) {
		return invalid(`"macspoofchk": %v`, err)
	}
	return fmt.Errorf(`"macspoofchk": %w`, err)
}

func removeSpoofCheck(ctx context.Context, g *caller.Given, r *plugin.Request) error {
	return spoofCheck(g, r, func(s reference.SpoofCheck) error { return s.Remove(ctx) })
}
