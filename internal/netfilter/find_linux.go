package netfilter

import (
	"context"
	"errors"
	"runtime"

	"github.com/embedcni/cni/internal/thread"
	"github.com/embedcni/cni/netns"
)

// Firewalls are the packet filters of a network namespace: iptables and
// ip6tables, each in the variants nf_tables and legacy, and nftables. They are
// safe for concurrent use.
type Firewalls struct {
	ns    *netns.Handle
	tools []tool
	nft   nftables
}

// tool is a variant of iptables and its family.
type tool struct {
	iptables
	v6 bool
}

// Open returns the packet filters of the namespace, or with nil those of the
// network namespace of the thread that calls Find or Apply; a goroutine that is
// not locked to its thread has that of the process. It opens nothing, so there
// is nothing to close. The handle must stay open.
func Open(ns *netns.Handle) *Firewalls {
	fw := &Firewalls{ns: ns, nft: nfnetlink{}}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, legacy := range []bool{false, true} {
			x := xtables{family, legacy}
			fw.tools = append(fw.tools, tool{x, x.v6()})
		}
	}
	return fw
}

// do runs fn on a thread in the namespace, where sockets are made and processes
// are started.
func (fw *Firewalls) do(fn func() error) error {
	if fw.ns != nil {
		return thread.In(fw.ns, fn)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return fn()
}

// Find returns what there is of t's attachment, and nothing else.
//
// A variant of iptables of which the kernel has no chain in question is passed
// over, whether or not its tools are installed. Where there is one, and the
// tools are missing, that is an error (exec.ErrNotFound), as it is not known
// what there is. So it is where iptables-save hides a table that has rules of
// nft's. With an error, the plan holds what else was found.
func Find(ctx context.Context, fw *Firewalls, t Target) (Plan, error) {
	plan := Plan{fw: fw}
	t, err := t.normal()
	if err != nil {
		return plan, err
	}
	err = fw.doOnSocket(ctx, func(ctx context.Context) error {
		var errs []error
		for _, tool := range fw.tools {
			commands, err := findIPTables(ctx, tool, tool.v6, t)
			errs = append(errs, err)
			if len(commands) > 0 {
				plan.work = append(plan.work, iptablesWork{tool, commands})
			}
		}
		for _, search := range nftSearches(t) {
			objects, err := search.find(ctx, fw.nft)
			errs = append(errs, err)
			if len(objects) > 0 {
				plan.work = append(plan.work, nftablesWork{fw.nft, search.table, objects})
			}
		}
		elements, err := ownedByTarget(t).search(ctx, fw.nft)
		errs = append(errs, err)
		if len(elements) > 0 {
			plan.work = append(plan.work, nativeWork{fw.nft, elements})
		}
		return errors.Join(errs...)
	})
	return plan, err
}

// Apply deletes what the plan says, and nothing that has come since. It may be
// repeated: what is gone is fine. What cannot be deleted is in the error, with
// packet filter, table, chain and rule, and does not keep the rest from being
// deleted.
//
// It waits for the lock of legacy iptables until the context ends.
func (p Plan) Apply(ctx context.Context) error {
	if p.Empty() {
		return nil
	}
	return p.fw.doOnSocket(ctx, func(ctx context.Context) error {
		var errs []error
		for _, w := range p.work {
			errs = append(errs, w.apply(ctx))
		}
		return errors.Join(errs...)
	})
}
