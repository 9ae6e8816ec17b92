package netfilter

import (
	"context"
	"errors"
	"github.com/embedcni/cni/internal/netfilter/fwrules"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/nft"
	"github.com/embedcni/cni/netns"
)

// Firewalls are the packet filters of a network namespace: iptables and
// ip6tables, each in the variants nf_tables and legacy, and nftables. They are
// safe for concurrent use.
type Firewalls struct {
	Options
	ns    *netns.Handle
	tools []tool
	fake  kernel // of tests: instead of the kernel
}

// tool is a variant of iptables and its family.
type tool struct {
	xtables
	v6 bool
}

// legacy reports whether the tool is of the legacy variant.
func (t tool) legacy() bool {
	x, ok := t.xtables.(iptables.Tool)
	return ok && x.Legacy
}

// Open returns the packet filters of the namespace, or with nil those of the
// network namespace of the thread that calls a method; a goroutine that is not
// locked to its thread has that of the process. It opens nothing, so there is
// nothing to close. The handle must stay open.
func Open(ns *netns.Handle, o Options) *Firewalls {
	fw := &Firewalls{Options: o, ns: ns}
	for _, v6 := range []bool{false, true} {
		fw.tools = append(fw.tools, tool{fw.xtables(v6, false), v6}, tool{fw.xtables(v6, true), v6})
	}
	return fw
}

func (fw *Firewalls) xtables(v6, legacy bool) iptables.Tool {
	x := iptables.Tool{Family: "iptables", Legacy: legacy, NS: fw.ns, Sockets: fw.Sockets, Held: fw.Held}
	if v6 {
		x.Family = "ip6tables"
	}
	return x
}

// do runs fn on a thread in the namespace, where processes are started.
func (fw *Firewalls) do(fn func() error) error { return nft.In(fw.ns, fn) }

// onSocket runs fn with a socket in the namespace.
func (fw *Firewalls) onSocket(ctx context.Context, fn func(*nft.Conn) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fw.Sockets.Do(fw.ns, fn)
}

// onKernel is onSocket for operations that tests replace by a fake.
func (fw *Firewalls) onKernel(ctx context.Context, fn func(kernel) error) error {
	if fw.fake != nil {
		return fn(fw.fake)
	}
	return fw.onSocket(ctx, func(c *nft.Conn) error { return fn(c) })
}

// Find returns the rules of t's attachment that exist, and nothing else.
//
// It passes over a variant of iptables if the kernel has no chain of the
// attachment in it, whether or not its tools are installed. If the kernel has one
// and the tools are missing, that is an error (exec.ErrNotFound), and so is a
// table that iptables-save hides because it has rules of nft's. With an error, the
// plan holds everything else that was found.
func Find(ctx context.Context, fw *Firewalls, t fwrules.Target) (Plan, error) {
	plan := Plan{fw: fw}
	t, err := t.Normal()
	if err != nil {
		return plan, err
	}
	err = fw.do(func() error {
		var errs []error
		whole := wholeFootprint(t)
		for _, tool := range fw.tools {
			commands, err := findIPTables(ctx, tool, tool.v6, whole)
			errs = append(errs, err)
			if len(commands) > 0 {
				plan.work = append(plan.work, iptablesWork{tool, commands})
			}
		}
		err := fw.onKernel(ctx, func(k kernel) error {
			for _, search := range append(formSearches(t.Everything(), t.Siblings), fw.SpoofCheck(t.ContainerID, t.IfName).search("")) {
				objects, err := search.findSteadily(ctx, k)
				errs = append(errs, err)
				if len(objects) > 0 {
					plan.work = append(plan.work, nftablesWork{fw, search.table, objects})
				}
			}
			elements, err := ownedByTarget(t).search(ctx, k)
			errs = append(errs, err)
			if len(elements) > 0 {
				plan.work = append(plan.work, nativeWork{fw, elements})
			}
			return nil
		})
		if !errors.Is(err, nft.ErrNotSupported) {
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	return plan, err
}

// Apply deletes the rules of the plan, and none that have come since. It may be
// repeated, and does not mind rules that are gone. An error names packet filter,
// table, chain and rule of each that cannot be deleted; the others are.
//
// It waits for the lock of legacy iptables until the context ends.
func (p Plan) Apply(ctx context.Context) error {
	if p.Empty() {
		return nil
	}
	return p.fw.do(func() error {
		var errs []error
		for _, w := range p.work {
			errs = append(errs, w.apply(ctx))
		}
		return errors.Join(errs...)
	})
}
