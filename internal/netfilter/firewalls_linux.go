package netfilter

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/netfilter/native"
	"github.com/embedcni/cni/internal/netfilter/reference"
	"github.com/embedcni/cni/internal/nft"
	"github.com/embedcni/cni/netns"
)

// Firewalls are the packet filters of a network namespace: nftables, and iptables and
// ip6tables, each in the variants nf_tables and legacy. They are safe for concurrent use.
type Firewalls struct {
	Options
	sockets   nft.Sockets
	native    native.Form
	reference reference.Form
}

// Open returns the packet filters of the namespace, or with nil those of the
// network namespace of the thread that calls a method; a goroutine that is not
// locked to its thread has that of the process. It opens nothing, so there is
// nothing to close. The handle must stay open.
func Open(ns *netns.Handle, o Options) *Firewalls {
	sockets := nft.Sockets{Pool: o.Sockets, NS: ns}
	return &Firewalls{
		Options: o, sockets: sockets,
		native:    native.Form{Sockets: sockets, Siblings: o.siblings, Displace: o.displace},
		reference: reference.Form{Sockets: sockets, Held: o.Held},
	}
}

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
		return fwrules.DetectedNative
	}
	return fwrules.DetectedIPTables
}

// Find returns the rules of t's attachment that exist, and nothing else.
//
// It passes over a variant of iptables if the kernel has no chain of the
// attachment in it, whether or not its tools are installed. If the kernel has one
// and the tools are missing, that is an error (exec.ErrNotFound), and so is a
// table that iptables-save hides because it has rules of nft's. With an error, the
// plan holds everything else that was found.
func Find(ctx context.Context, fw *Firewalls, t fwrules.Target) (plan Plan, err error) {
	if t, err = t.Normal(); err != nil {
		return plan, err
	}
	var errs []error
	for _, find := range []func(context.Context, fwrules.Target) ([]fwrules.Found, error){
		fw.reference.Find, fw.findForwarding, fw.native.Find,
	} {
		found, err := find(ctx, t)
		plan.found = append(plan.found, found...)
		errs = append(errs, err)
	}
	return plan, errors.Join(errs...)
}

// Apply deletes the rules of the plan, and none that have come since. It may be
// repeated, and passes over rules that are gone. An error names packet filter, table,
// chain and rule of each that cannot be deleted; Apply deletes the others.
//
// It waits for the lock of legacy iptables until the context ends.
func (p Plan) Apply(ctx context.Context) error {
	var errs []error
	for _, f := range p.found {
		errs = append(errs, f.Apply(ctx))
	}
	return errors.Join(errs...)
}
