package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/claims"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/record"
)

// GCOptions configures GC.
type GCOptions struct {
	// Keep lists the wanted containers.
	Keep []string
	// KeepNone allows an empty Keep, which removes every container. Without it an
	// empty Keep is refused, because it is more often a mistake.
	KeepNone bool
	// DryRun reports what GC would remove, and removes nothing.
	DryRun bool
}

// GC removes, as Remove does, every container that this owner has recorded and
// that is not in Keep. Of the containers in Keep it removes the attachments
// whose removal has failed before. Then it removes the leftovers of containers
// that this owner once recorded but that are no longer on record, as after a
// power cut: the addresses that host-local holds for them and, if the record was
// lost rather than deleted, all leftovers of the reference plugins. Last it runs
// GC of the plugins of the loaded networks of version 1.1.0 and later, unless
// the network sets disableGC. The plugins then remove everything that belongs to
// no attachment on record, of any owner.
//
// GC releases only reservations of host-local that this owner's ledger names by
// container, interface and address, and whose address is on no record: other
// programs and administrators have reservations in the same directories. GC
// tells an executable host-local that those are valid. If a reservation names no
// attachment, GC cannot do that: then it does not ask the network's plugins, and
// lists the reservation in Report.Left. While a record cannot be read, nothing
// is released.
//
// No ADD or DEL runs during GC, in this or another process. GC waits for running
// ones, so give ctx a deadline. New ones wait until GC has finished. While GC
// itself waits, it holds them up for at most two seconds at a time, and then
// lets them pass for four times as long.
//
// The report has the outcome for each container. The error joins the errors of
// the plugins' GC; GC asks all of them.
func (r *Runtime) GC(ctx context.Context, o GCOptions) (report *Report, err error) {
	if len(o.Keep) == 0 && !o.KeepNone {
		return nil, fmt.Errorf("collect garbage: Keep is empty, and KeepNone is not set: %w", ErrInvalidArgument)
	}
	s := r.current.Load()
	report = &Report{}
	if o.DryRun {
		if err := s.collectDry(ctx, o, report); err != nil {
			return report, fmt.Errorf("collect garbage: %w", err)
		}
		return report, nil
	}
	held, err := s.lockBarrier(ctx)
	if err != nil {
		return nil, fmt.Errorf("collect garbage: %w", err)
	}
	defer func() { err = join(err, held.Release()) }() // after a panic too: every ADD and DEL waits for it
	if err = s.collect(ctx, o, report); err != nil {
		err = fmt.Errorf("collect garbage: %w", err)
	}
	return report, err
}

// collectDry reports what collect would remove, except for the plugins' GC.
func (s *snapshot) collectDry(ctx context.Context, o GCOptions, report *Report) error {
	mine, err := s.owned(true)
	if err != nil {
		return err
	}
	for _, f := range mine {
		id := string(f.Record.ContainerID)
		if err := untouchable(s.Records, f); err != nil {
			report.add(outcome{id: nameOf(f), adopted: slices.Contains(o.Keep, id), skipped: err})
		} else if id != "" && !slices.Contains(o.Keep, id) {
			report.Removed = append(report.Removed, id)
		}
	}
	g, err := s.garbage(o, report)
	if err != nil {
		return err
	}
	return s.reclaim(ctx, g, true, report)
}

func (s *snapshot) collect(ctx context.Context, o GCOptions, report *Report) error {
	mine, err := s.owned(false)
	if err != nil {
		return err
	}
	adopted := o.Keep
	for _, f := range mine {
		id := string(f.Record.ContainerID)
		left := untouchable(s.Records, f)
		if id == "" && left == nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		keep := slices.Contains(o.Keep, id)
		if keep && left == nil && !s.unsettled(f) {
			continue
		}
		became := outcome{id: nameOf(f), adopted: keep, skipped: left}
		if left == nil {
			became.setAside(s.removeAgain(ctx, f.Record.ContainerID, keep))
		}
		report.add(became)
		if keep {
			adopted = slices.DeleteFunc(slices.Clone(adopted), func(a string) bool { return a == id })
		}
	}
	report.Adopted = append(report.Adopted, adopted...)
	slices.Sort(report.Adopted)
	err = s.Tidy()
	g, gerr := s.garbage(o, report)
	if gerr != nil { // anything may be attached
		return join(err, gerr)
	}
	return join(err, s.reclaim(ctx, g, false, report), s.collectByPlugins(ctx, g, report))
}

// unsettled reports whether a container has attachments of this owner that must
// be removed.
func (s *snapshot) unsettled(f record.Found) bool {
	return f.Err == nil && slices.ContainsFunc(f.Record.Attachments, func(n record.Attachment) bool {
		return f.Record.OwnerOf(&n) == s.owner && (n.State == record.Deleting || n.State != record.Deleted && n.Failures > 0)
	})
}

// removeAgain removes a container or, with keep, only the attachments that were
// being removed before.
func (s *snapshot) removeAgain(ctx context.Context, id record.ID, keep bool) error {
	op, err := s.beginTeardown(ctx, id, container.Access{Waiting: container.Hurried, HasBarrier: true})
	if err != nil {
		return err
	}
	defer op.end()
	if err := op.recallOwn(); err != nil {
		return err
	}
	if op.Record == nil || keep && op.Damaged {
		return nil // removed since it was listed, or not legible enough
	}
	going := op.attachments
	if keep {
		going = slices.DeleteFunc(slices.Clone(going), func(a *attachment) bool {
			n := op.Record.Find(a.IfName)
			return n.State != record.Deleting && n.Failures == 0
		})
	}
	return op.finish(ctx, going)
}

// collectByPlugins runs GC for each loaded network, unless one of its plugins
// would release another program's reservation.
func (s *snapshot) collectByPlugins(ctx context.Context, g *claims.Garbage, report *Report) (err error) {
	valid, err := s.validAttachments()
	if err != nil {
		return err
	}
	host, err := s.Hosts.Open(s.hostNetNS)
	if err != nil {
		return err
	}
	defer func() { err = join(err, host.Close()) }()
	op := &operation{snapshot: s, Container: s.New("", host), garbage: g}
	var errs []error
	for _, n := range s.networks {
		if n.config.Name == "" {
			continue // no container can be attached to it
		}
		a := op.about(n)
		reserved, left, err := s.reservedFor(n, g)
		if left != "" {
			report.Left = append(report.Left, left)
		}
		if left != "" || err != nil {
			errs = append(errs, err)
			continue
		}
		all := withAttachments(valid[n.config.Name], reserved)
		errs = append(errs, a.errors("GC", a.chain().GC(ctx, all)))
	}
	return join(errs...)
}

// validAttachments returns all attachments on this host by network: those on
// record, of every owner, and those that only libcni's cache knows, because GC
// must keep the attachments of other runtimes.
func (s *snapshot) validAttachments() (map[string][]types.GCAttachment, error) {
	valid := map[string][]types.GCAttachment{}
	add := func(network, id, ifName string) {
		a := types.GCAttachment{ContainerID: id, IfName: ifName}
		if !slices.Contains(valid[network], a) {
			valid[network] = append(valid[network], a)
		}
	}
	found, err := s.Records.List()
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		if f.Err != nil && (!errors.Is(f.Err, record.ErrBad) || len(f.Record.Attachments) == 0) {
			return nil, fmt.Errorf("the list of attachments is incomplete: %w", f.Err)
		}
		for _, n := range f.Record.Attachments {
			switch {
			case n.State == record.Deleted:
			case n.Network != "":
				add(n.Network, string(f.Record.Plugins()), n.IfName)
			default: // of a damaged record, which may be any network's
				for _, loaded := range s.networks {
					add(loaded.config.Name, string(f.Record.Plugins()), n.IfName)
				}
			}
		}
	}
	cached, err := chain.AllCached(s.stateDir, "")
	if err != nil {
		return nil, err
	}
	for _, c := range cached {
		add(c.Network, c.ContainerID, c.IfName)
	}
	return valid, nil
}
