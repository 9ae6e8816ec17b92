package netfilter

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/netfilter/iptform"
	"github.com/embedcni/cni/internal/netfilter/native"
	"github.com/embedcni/cni/internal/netfilter/nftform"
	"github.com/embedcni/cni/internal/nft"
	"github.com/embedcni/cni/netns"
)

// Firewalls are the packet filters of a network namespace: iptables and
// ip6tables, each in the variants nf_tables and legacy, and nftables. They are
// safe for concurrent use.
type Firewalls struct {
	Options
	sockets  nft.Sockets
	iptables iptform.Form
	nftform  nftform.Form
	native   native.Form
	forms    []backend // in the order in which a plan lists their rules
}

// backend is a form and its name.
type backend struct {
	name fwrules.Backend
	form
}

// form is a way to write rules in a packet filter.
type form interface {
	// Add makes the rules, all or none. It can be repeated.
	Add(ctx context.Context, r fwrules.Rules) error
	// Remove deletes the rules that Add has made. It passes over rules that are gone,
	// and searches for those that cannot be computed, as an address is unknown.
	Remove(ctx context.Context, r fwrules.Rules) error
	// Missing returns the parts of the rules that do not exist.
	Missing(ctx context.Context, r fwrules.Rules) ([]fwrules.Missing, error)
	// Find returns the rules of the target that exist. With an error, it returns all
	// others that it found.
	Find(ctx context.Context, t fwrules.Target) ([]fwrules.Found, error)
}

// Open returns the packet filters of the namespace, or with nil those of the
// network namespace of the thread that calls a method; a goroutine that is not
// locked to its thread has that of the process. It opens nothing, so there is
// nothing to close. The handle must stay open.
func Open(ns *netns.Handle, o Options) *Firewalls {
	sockets := nft.Sockets{Pool: o.Sockets, NS: ns}
	ipt := iptform.Form{Sockets: sockets, Held: o.Held, Kept: o.Kept, Siblings: o.siblings, Fact: o.fact, Note: o.note}
	nftables := nftform.Form{Sockets: sockets, Siblings: o.siblings}
	own := native.Form{Sockets: sockets, Siblings: o.siblings}
	return &Firewalls{Options: o, sockets: sockets, iptables: ipt, nftform: nftables, native: own, forms: []backend{
		{fwrules.IPTables, ipt}, {fwrules.NFTables, nftables}, {fwrules.Native, own},
	}}
}

// form returns the form of a backend.
func (fw *Firewalls) form(b fwrules.Backend) (form, error) {
	for _, f := range fw.forms {
		if f.name == b {
			return f, nil
		}
	}
	return nil, b.Unknown()
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

// Detect returns the form of rules that have to be in iptables if the host has
// the program: DetectedIPTables or DetectedNative.
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
	for _, f := range fw.forms {
		found, err := f.Find(ctx, t)
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

// HasCommon is [iptform.Form.HasCommon].
func (fw *Firewalls) HasCommon(ctx context.Context, r fwrules.Rules) (bool, error) {
	return fw.iptables.HasCommon(ctx, r)
}

// Common holds the chains and rules that MakeCommon created.
type Common struct{ iptform.Common }

// MakeCommon is [iptform.Form.MakeCommon].
func (fw *Firewalls) MakeCommon(ctx context.Context, r fwrules.Rules) (Common, error) {
	made, err := fw.iptables.MakeCommon(ctx, r)
	return Common{made}, err
}

// RemoveCommon is [iptform.Form.RemoveCommon].
func (fw *Firewalls) RemoveCommon(ctx context.Context, c Common) error {
	return fw.iptables.RemoveCommon(ctx, c.Common)
}

// RemoveDuplicates is [iptform.Form.RemoveDuplicates].
func (fw *Firewalls) RemoveDuplicates(ctx context.Context, r fwrules.Rules) (int, error) {
	return fw.iptables.RemoveDuplicates(ctx, r)
}

// MissingSpoofCheck returns the rules as one part, without a backend and rules, if any
// of them does not exist.
func (fw *Firewalls) MissingSpoofCheck(ctx context.Context, s fwrules.SpoofCheck) ([]fwrules.Missing, error) {
	return fw.SpoofCheck(s.ContainerID, s.IfName).Missing(ctx, s.Port, s.MAC)
}

// SpoofCheck returns the rules against other MAC addresses of a container's interface.
func (fw *Firewalls) SpoofCheck(id, ifName string) nftform.SpoofCheck {
	return nftform.NewSpoofCheck(fw.sockets, id, ifName)
}
