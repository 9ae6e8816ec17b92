package plugintest

import (
	"context"
	"errors"

	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// Extent is how far a repair goes.
type Extent int

const (
	OnlyCompare Extent = iota
	RepairHost
	RepairAll // the inside of the container too
)

// Compared compares an attachment with the kernel, and repairs it. It returns the
// differences, and those that are left, one a line.
func Compared(ctx context.Context, host *netns.Handle, lookup func(string) plugin.Plugin, c Call, extent Extent) (found, left string, err error) {
	err = Comparing(ctx, host, lookup, c, func(ctx context.Context, r *plugin.Request, p contract.Comparer) error {
		v, done, err := contract.Kernel(ctx, r)
		if err != nil {
			return err
		}
		all, err := p.Compare(ctx, r, v)
		found = Lines(all)
		if err == nil && extent != OnlyCompare {
			all, err = Repair(ctx, r, p, v, extent == RepairAll)
			left = Lines(all)
		}
		return errors.Join(err, done())
	})
	return found, left, err
}
