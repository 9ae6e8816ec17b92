package netfilter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/kernel/iptables"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/nft"
	"github.com/embedcni/cni/netns"
)

// Firewalls are the packet filters of a network namespace: nftables, and iptables and
// ip6tables, each in the variants nf_tables and legacy. They own the options of one
// attachment and the way into the namespace. They are safe for concurrent use.
type Firewalls struct {
	Options
	sockets  nft.Sockets
	snapshot *snapshot // nil: the kernel
}

// Open returns the packet filters of the namespace, or with nil those of the
// network namespace of the thread that calls a method; a goroutine that is not
// locked to its thread has that of the process. It opens nothing, so there is
// nothing to close. The handle must stay open.
func Open(ns *netns.Handle, o Options) *Firewalls {
	if o.Siblings == nil {
		o.Siblings = func() Siblings { return Siblings{} }
	}
	if o.Notes == nil {
		o.Notes = noNotes{}
	}
	return &Firewalls{Options: o, sockets: nft.Sockets{Pool: o.Sockets, NS: ns}}
}

// noNotes remember nothing.
type noNotes struct{}

func (noNotes) Fact(string) json.RawMessage { return nil }
func (noNotes) Note(string, any) error      { return nil }

// Usable returns an error unless rules can be made: the kernel has nf_tables, or the
// host's iptables is of the legacy variant.
func (fw *Firewalls) Usable(ctx context.Context) error {
	err := fw.sockets.Do(ctx, func(c *nft.Conn) error {
		_, err := c.Generation()
		return err
	})
	if errors.Is(err, nft.ErrNotSupported) {
		system := iptables.Tool{Family: "iptables"}
		if detectErr := system.Detect(ctx); detectErr == nil && system.Legacy {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("packet filter: %w", err)
	}
	return nil
}

// Detect returns DetectedIPTables if the host has the program, so that iptables may drop
// packets, and else DetectedNative.
func Detect() string {
	if _, err := iptables.LookPath("iptables"); err != nil {
		return DetectedNative
	}
	return DetectedIPTables
}

// Find returns the rules of t's attachment that exist, and nothing else.
//
// It passes over a variant of iptables if the kernel has no chain of the
// attachment in it, whether or not its tools are installed. If the kernel has one
// and the tools are missing, that is an error (exec.ErrNotFound), and so is a
// table that iptables-save hides because it has rules of nft's. With an error, the
// plan holds everything else that was found.
func Find(ctx context.Context, fw *Firewalls, t Target) (plan Plan, err error) {
	if t, err = t.Normal(); err != nil {
		return plan, err
	}
	var errs []error
	add := func(some []found, err error) {
		plan.found, errs = append(plan.found, some...), append(errs, err)
	}
	errs = append(errs, nft.In(fw.sockets.NS, func() error {
		for _, tool := range iptables.Variants(fw.sockets, fw.Held) {
			add(findSaved(ctx, tool, t))
		}
		return nil
	}))
	add(fw.findListed(ctx, t))
	add(fw.findForwarding(ctx, t, t.InNetwork))
	add(fw.findElements(ctx, t))
	return plan, joined.Errors(errs...)
}
