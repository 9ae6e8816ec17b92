package cni

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// Recover is for the start of a program. It adopts each container of this owner
// that was attached in this boot of the machine and whose network namespace is
// alive, at its path or where it is kept, or as the host's end of its interface
// shows. If a container is not known to be healthy, it is in Report.Kept as well, with
// the reason. A CHECK that fails, times out or cannot run is never a reason to remove
// a container.
//
// Recover judges containers as Health does: from one look at the kernel for all of them,
// and by the CHECK of plugins that may know more, which take 30 seconds together at most. A
// configuration older than CHECK raises no doubt, nor does a CHECK that fails for healthy
// containers too. Recover adds missing parts, as Repair does with no options, except those
// that are held (see package guard): Report.Repaired has them. Parts that remain broken are
// the reason in Report.Kept.
//
// An abandoned container (see [WithoutReaping]) whose namespace the runtime no
// longer keeps alive, but somebody else may, is in Report.Skipped.
//
// Recover removes, as [Runtime.Remove] does, containers whose namespace is gone or of
// another boot, attachments of an unfinished Setup or Remove, and containers
// that a pool of an earlier version had made ahead of time. It kills plugins that a dead
// runtime has left running, after a grace period. A container that cannot be
// removed stays recorded, and is tried again after a time that grows with each
// failure.
//
// Containers are recovered in parallel. A container that another call has locked
// comes last, and is in Report.Skipped if it stays locked.
//
// The error is the reason why Recover could not examine the containers. The
// report has the outcome for each container.
func (r *Runtime) Recover(ctx context.Context) (*Report, error) {
	found, err := r.current.Load().eng.Recover(ctx)
	if err != nil {
		err = fmt.Errorf("recover: %w", err)
	}
	return found, err
}

// GCOptions configures GC.
type GCOptions struct {
	// Keep lists the wanted containers.
	Keep []string
	// KeepNone allows an empty Keep, which removes every container. Without it an
	// empty Keep is refused, because it is more often a mistake.
	KeepNone bool
	// KeepIf, if it is set, decides in place of Keep about each attachment of this owner's.
	// Those for which it returns false are removed; other attachments of their containers
	// stay. It is for callers that list pairs of container and interface, as CNI's GC does.
	// It may be called more than once for an attachment, and must not call the Runtime.
	//
	// A container of which attachments stay is in Report.Adopted. One with a damaged record
	// is in Report.Skipped. GC then does not search for leftovers of containers that are no
	// longer on record.
	KeepIf func(Attachment) bool
	// Configs are configurations of networks that need not be loaded, as those of
	// [WithNetworkConfig]. If there are any, GC asks the plugins of these networks alone, and
	// not those of the loaded ones: as a GC of CNI is of one network.
	Configs [][]byte
	// DryRun reports what GC would remove, and removes nothing.
	DryRun bool
}

// GC removes, as [Runtime.Remove] does, every container that this owner has recorded and
// that is not in Keep. Of the containers in Keep it removes the attachments
// whose removal has failed before. Then it removes the leftovers of containers
// that an earlier version of this library noted for this owner and that are no
// longer on record, as after a power cut: the addresses that host-local holds for
// them and, if the record was lost rather than deleted, all leftovers of the
// reference plugins. If libcni's cache
// still has such a container and it lives, or may, another program may have attached it:
// it stays, and is in Report.Left. So is each other container that only libcni's cache has,
// unless it lives for certain: GC cannot know whose it was. Last GC runs
// GC of the plugins of the loaded networks, or of those in Configs, of version 1.1.0
// and later, unless the network sets disableGC. The plugins then remove everything
// that belongs to no attachment on record, of any owner.
//
// GC releases only reservations of host-local that a record of this owner's names,
// or that an earlier version noted for it and whose address is on no record: other
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
func (r *Runtime) GC(ctx context.Context, o GCOptions) (*Report, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	l := r.current.Load()
	networks, err := parseOwn(o.Configs)
	if err != nil {
		return nil, fmt.Errorf("collect garbage: %w", err)
	}
	in := engine.GCOptions{Keep: o.Keep, Networks: networks, DryRun: o.DryRun}
	if o.KeepIf != nil {
		in.KeepIf = func(rec *record.Record, n *record.Attachment) bool { return o.KeepIf(attachmentOf(rec, n)) }
	}
	found, err := l.eng.GC(ctx, in)
	if err != nil {
		err = fmt.Errorf("collect garbage: %w", err)
	}
	return found, err
}

// check refuses options that contradict each other.
func (o *GCOptions) check() error {
	switch {
	case o.KeepIf != nil && (len(o.Keep) > 0 || o.KeepNone):
		return fmt.Errorf("collect garbage: KeepIf is set, and so is Keep or KeepNone: %w", ErrInvalidArgument)
	case o.KeepIf == nil && len(o.Keep) == 0 && !o.KeepNone:
		return fmt.Errorf("collect garbage: Keep is empty, and KeepNone is not set: %w", ErrInvalidArgument)
	}
	return nil
}

// RetryRemovals repeats the removals of this owner's attachments that failed in this boot
// of the machine, each after a time that grows with its failures. [Runtime.Recover] and GC do so
// too, but they look at all containers.
//
// Containers of which the attachments could be removed are in Report.Removed, and those of
// which they could not in Report.Failed. Report.Skipped has those whose time has not come,
// or that another call has locked ([ErrBusy]).
func (r *Runtime) RetryRemovals(ctx context.Context) (*Report, error) {
	found, err := r.current.Load().eng.RetryRemovals(ctx)
	if err != nil {
		err = fmt.Errorf("repeat removals: %w", err)
	}
	return found, err
}

// CleanUpTarget names the attachment for [Runtime.CleanUp].
type CleanUpTarget struct {
	ContainerID, Network, IfName string // all three must be set

	// Addresses are addresses of the container on the network that the caller
	// knows, if no record, cached result or file of host-local has them. The
	// plugin firewall identifies its rules only by addresses.
	Addresses []netip.Addr

	// Config is the network's configuration, one list as JSON. If it is empty,
	// [Runtime.CleanUp] uses that of the record, of libcni's cache or of the loaded
	// network. Without any of these, it looks for everything that the reference
	// plugins leave under computable names, and for addresses in host-local's
	// default directory.
	Config []byte

	// DryRun lists what would be removed, and removes nothing.
	DryRun bool
}

// CleanUp removes one attachment's leftovers of the reference plugins, and its
// record, without running a plugin. It is for attachments that Remove cannot
// end: the plugins or their configuration are gone for good, or the leftovers
// are another runtime's. No network need be loaded. The leftovers of other
// plugins stay, and no record names them afterwards, so call [Runtime.Remove] first.
//
// CleanUp returns the leftovers that it found, a line each, in the order of
// removal: rules as the commands that would delete them. A live container loses
// the attachment. Other attachments stay, even of the same container. If
// something could not be removed, or not be examined, the error is a
// *[LeftoverError] and the record stays.
//
// With the container's last attachment goes the namespace that [WithNewNetNS] has made.
// Remove is not needed afterwards: without a record it would ask the loaded plugins again.
//
// CleanUp excludes other calls for the container, and stops when ctx ends. It
// may be repeated, and may be called for an attachment that never existed.
func (r *Runtime) CleanUp(ctx context.Context, t CleanUpTarget) ([]string, error) {
	found, err := r.current.Load().eng.ForceCleanUp(ctx, engine.CleanUpTarget(t))
	if err != nil {
		return found, fmt.Errorf("clean up interface %q of container %q on network %q: %w", t.IfName, t.ContainerID, t.Network, err)
	}
	return found, nil
}

// Report lists the containers that [Runtime.Recover], [Runtime.GC] or
// [Runtime.RetryRemovals] has looked at, by ID: [outcome.Report] has its fields. Printed it has
// a line for each container and each leftover. Its method Err joins the failures, so that
// errors.Join(err, report.Err()) has all that the call has not done.
type Report = outcome.Report
