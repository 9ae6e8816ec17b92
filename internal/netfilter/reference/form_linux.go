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

	fakes []tool    // of tests: instead of iptables' tools
	fake  ruleTable // of tests: instead of nftables
}

// in runs fn on a thread in the namespace, where processes are started.
func (f Form) in(fn func() error) error { return nft.In(f.Sockets.NS, fn) }

// tool is a variant of iptables for one family.
type tool struct {
	xtables
	v6, legacy bool
}

// xtables is an [iptables.Tool].
type xtables interface {
	// Name returns the name of the tool: "ip6tables-legacy".
	Name() string

	// Save returns the output of iptables-save if one of the chains exists, and may
	// return nothing if none does. With an error, the output is incomplete.
	Save(ctx context.Context, chains []iptables.ChainID) (string, error)

	// Restore applies the input of iptables-restore --noflush, each table's part as
	// a whole or not at all.
	Restore(ctx context.Context, text string) error
}

// tools are both variants of both families.
func (f Form) tools() []tool {
	if f.fakes != nil {
		return f.fakes
	}
	var all []tool
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, legacy := range []bool{false, true} {
			x := iptables.Tool{Family: family, Legacy: legacy, Sockets: f.Sockets}
			if f.Held != nil {
				x.Held = []*os.File{f.Held}
			}
			all = append(all, tool{x, x.V6(), legacy})
		}
	}
	return all
}

// Find returns the rules of the target that exist. With an error, it returns all others
// that it found.
func (f Form) Find(ctx context.Context, t fwrules.Target) ([]fwrules.Found, error) {
	all, err := f.findSaved(ctx, t)
	more, moreErr := f.findNFTables(ctx, t)
	return append(all, more...), errors.Join(err, moreErr)
}
