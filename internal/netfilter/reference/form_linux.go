package reference

import (
	"context"
	"errors"
	"os"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// Form finds rules in both variants of iptables, and in nftables.
type Form struct {
	Sockets nft.Sockets
	Held    *os.File // open in all processes that it starts; nil: none is
}

// in runs fn on a thread in the namespace, where processes are started.
func (f Form) in(fn func() error) error { return nft.In(f.Sockets.NS, fn) }

// Find returns the rules of the target that exist. With an error, it returns all others
// that it found.
func (f Form) Find(ctx context.Context, t fwrules.Target) (all []fwrules.Found, err error) {
	err = f.in(func() error {
		var errs []error
		for _, tool := range iptables.Variants(f.Sockets, f.Held) {
			commands, err := find(ctx, tool, t)
			errs = append(errs, err)
			if len(commands) > 0 {
				all = append(all, saved{f, tool, t, commands})
			}
		}
		return errors.Join(errs...)
	})
	more, moreErr := f.findNFTables(ctx, t)
	return append(all, more...), errors.Join(err, moreErr)
}
