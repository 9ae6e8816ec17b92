package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/outcome"
)

// The reasons why a difference remains. The reason can also be the error of its Fix.
var (
	errNotAsked    error = &tagged{errors.New("it is in the container's namespace, where nothing is changed unless the caller asks for it"), outcome.ErrInContainer}
	errNotWanted         = errors.New("this repair leaves it")
	errNotAddable  error = &tagged{errors.New("adding what is missing does not repair it"), outcome.ErrNotRepairable}
	errReturned    error = &tagged{errors.New("it was repaired, and was missing again at once: something else removes it"), outcome.ErrNotRepairable}
	errNotVerified       = errors.New("not known to be repaired")
)

// remaining is a difference that remains, and why.
type remaining struct {
	contract.Difference
	reason error
	failed bool // reason is the error of its Fix
}

// dumpFor is the number of attachments from which one look at all of a host is cheaper
// than asking the kernel for the parts of each.
const dumpFor = 4

const (
	// mostRounds bounds the rounds of a repair. Two or three are usual: a bridge, its
	// address and port, and the rules that the bridge took along.
	mostRounds = 8
	// mostAttempts bounds how often one thing is repaired. The second time makes up for
	// the repair of another thing that has undone it.
	mostAttempts = 2
	// slowFix limits the time of one Fix in a group: the others wait for it with their
	// packet filters. By itself an attachment may take longer.
	slowFix = time.Second
)

// errSlow: a Fix in a group took too long.
var errSlow = errors.New("it takes too long for a repair of several containers at once")

// repairing is the repair of one attachment of a locked container. It owns what its rounds
// have collected; the namespaces and the sockets of the runner are the operation's.
type repairing struct {
	a      *attachment
	rs     *repairs       // it is one of these
	held   bool           // nothing of it is wanted, since it is held
	runner *runner.Runner // its Container is nil if that is not open
	// compare compares the attachment with its record.
	compare func(context.Context, *contract.View) *comparison

	repaired []contract.Difference // that were missing, and are verified to be there again
	left     []remaining
	last     *comparison // nil if none has succeeded
	// err is the reason why the attachment could not be compared with its record to the
	// end. The rest is valid with it.
	err error

	grouped bool // with others
	round   round
	tries   tries
}

// round is one round of a repair.
type round struct {
	number              int                   // the first is 1
	found               []contract.Difference // by the comparison at its beginning
	todo, delayed, made []contract.Difference
	batch               thread.Batch // delayed changes of packet filters
}

// tries is everything that the rounds have tried.
type tries struct {
	parts map[differenceKey]*attempts
	order []*attempts // those tried, in the order of the first attempts
	made  []contract.Difference
	took  map[string]time.Duration // the repair of the plugins' parts, by type
}

// attempts are those to repair one thing.
type attempts struct {
	contract.Difference
	tried bool
	fixed int   // how often
	err   error // of the last attempt
}

// differenceKey identifies a difference in successive comparisons.
type differenceKey struct {
	plugin         string
	kind           contract.Kind
	inside         bool
	object, wanted string
}

func keyOf(d contract.Difference) differenceKey {
	return differenceKey{d.Plugin, d.Kind, d.Inside, d.Object, d.Wanted}
}

// of returns the attempts to repair a difference.
func (t *tries) of(d contract.Difference) *attempts {
	k := keyOf(d)
	if t.parts[k] == nil {
		t.parts[k] = &attempts{Difference: d}
	}
	return t.parts[k]
}

// runRounds repairs attachments together:
//
//	compare ─► choose ─► fix, in order ─► compare again ─► … ─► what was repaired,
//	   ▲                     │                                   and what remains, why
//	   └── something fixed ──┘
//
// One round is often not enough: a comparison can see that a bridge is gone, but not that
// the new one will lack an address and a port. Nobody else changes the records meanwhile.
// One attachment that cannot be repaired does not keep the others from it.
func runRounds(ctx context.Context, all []*repairing) {
	for _, r := range all {
		r.grouped, r.tries = len(all) > 1, tries{parts: make(map[differenceKey]*attempts), took: make(map[string]time.Duration)}
	}
	for active := all; len(active) > 0; {
		now := compareAll(ctx, active)
		var going, ended []*repairing
		for i, r := range active {
			if r.take(now[i]) {
				going = append(going, r)
			} else {
				ended = append(ended, r)
			}
		}
		// The other end of a pair may take a moment to notice that it can send.
		each(ended, func(r *repairing) { r.announce(ctx, r.tries.made, true) })
		fix(ctx, going)
		active = going
	}
}

// each calls do for all of the attachments, several at once.
func each(all []*repairing, do func(*repairing)) {
	thread.Each(len(all), atOnce, func(i int) { do(all[i]) })
}

// compareAll compares attachments with their records anew, and sets err of those that
// cannot be compared. The containers are locked, so that one look at the host is as good as
// a question for each.
func compareAll(ctx context.Context, all []*repairing) []*comparison {
	now := make([]*comparison, len(all))
	one := func(i int, looks *contract.Looks) {
		r := all[i]
		r.err = thread.Try(func() (err error) {
			now[i], err = r.look(ctx, looks)
			return err
		})
	}
	if len(all) < dumpFor {
		for i := range all {
			one(i, &contract.Looks{})
		}
		return now
	}
	looks := contract.Dumps()
	thread.Each(len(all), runtime.GOMAXPROCS(0), func(i int) { one(i, looks) })
	if err := looks.Close(); err != nil {
		all[0].runner.Runtime.Logger.Error("close network namespace", "error", err)
	}
	return now
}

func (r *repairing) look(ctx context.Context, looks *contract.Looks) (c *comparison, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if r.runner.Container == nil {
		return nil, fmt.Errorf("its network namespace is not open: %w", outcome.ErrInvalidNetNS)
	}
	v, err := looks.Open(r.runner.Given.Conns, r.runner.Host, r.runner.Container)
	if err != nil {
		return nil, err
	}
	defer func() { err = Join(err, v.Close()) }()
	bound, cancel := r.runner.Runtime.Bound(ctx, "CHECK")
	defer cancel()
	c = r.compare(bound, v)
	if bound.Err() != nil { // then parts count as neither compared nor missing
		return nil, context.Cause(bound)
	}
	return c, nil
}

// take takes a comparison in, decides what to repair now, and reports whether there is
// anything. The order of the differences stays: the plugins of a chain rely on those before
// them.
func (r *repairing) take(now *comparison) bool {
	if r.err != nil {
		r.end(r.round.found)
		return false
	}
	r.last = now
	found := now.differences
	todo := slices.DeleteFunc(slices.Clone(found), func(d contract.Difference) bool { return !r.wants(d) })
	// A Fix that failed may have made a part of it.
	stuck := r.round.number > 0 && len(r.round.made) == 0 &&
		slices.EqualFunc(found, r.round.found, func(a, b contract.Difference) bool { return keyOf(a) == keyOf(b) })
	if r.round.number == mostRounds || len(todo) == 0 || stuck {
		r.end(found)
		return false
	}
	r.round = round{number: r.round.number + 1, found: found, todo: todo}
	return true
}

// wants reports whether a difference is to be repaired now.
func (r *repairing) wants(d contract.Difference) bool {
	part := r.tries.of(d)
	return d.Fix != nil && (r.rs.o.Inside || !d.Inside) && part.fixed < mostAttempts &&
		!errors.Is(part.err, errSlow) && // once is enough for the others
		!r.held && (r.rs.o.Want == nil || r.rs.o.Want(string(r.runner.ContainerID), r.difference(d)))
}

// fix repairs what the attachments are to do now. The failure of one thing does not keep
// the others from being repaired.
func fix(ctx context.Context, all []*repairing) {
	if len(all) == 0 {
		return
	}
	shared := make(map[differenceKey]bool)
	for _, r := range all {
		r.fixShared(ctx, shared)
	}
	each(all, func(r *repairing) { r.round.delayed = r.fixEach(ctx, r.round.delayed, &r.round.batch) })
	var batches []*thread.Batch
	for _, r := range all {
		batches = append(batches, &r.round.batch)
	}
	bound, cancel := all[0].runner.Runtime.Bound(ctx, "CHECK")
	defer cancel()
	for i, err := range thread.FlushTogether(bound, batches) {
		r := all[i]
		if err != nil { // it is unknown which of the changes failed; each can be repeated
			r.round.delayed = r.fixEach(ctx, r.round.delayed, nil)
		}
		r.round.made = append(r.round.made, r.round.delayed...)
	}
	each(all, func(r *repairing) {
		for _, d := range r.round.made {
			r.tries.of(d).fixed++
		}
		r.tries.made = append(r.tries.made, r.round.made...)
		r.announce(ctx, r.round.made, false)
	})
}

// fixShared repairs what all attachments share, unless another one of the group has, and
// puts off the rest. It precedes what each has for itself: a bridge its ports. The second
// time each tries: one that knows better may succeed.
func (r *repairing) fixShared(ctx context.Context, made map[differenceKey]bool) {
	for _, d := range r.round.todo {
		k := keyOf(d)
		k.plugin = "" // bridge and portmap may both want a setting of the bridge
		switch {
		case !d.Shared:
			r.round.delayed = append(r.round.delayed, d)
		case made[k] && r.tries.of(d).fixed == 0, r.attempt(ctx, d, nil):
			made[k] = true
			r.round.made = append(r.round.made, d)
		}
	}
}

// fixEach repairs differences, or delays what goes into the batch, and returns those for
// which that succeeded.
func (r *repairing) fixEach(ctx context.Context, all []contract.Difference, b *thread.Batch) []contract.Difference {
	return slices.DeleteFunc(all, func(d contract.Difference) bool { return !r.attempt(ctx, d, b) })
}

// attempt makes or delays the repair of one difference, unless ctx has ended.
func (r *repairing) attempt(ctx context.Context, d contract.Difference, b *thread.Batch) bool {
	part := r.tries.of(d)
	if part.err = context.Cause(ctx); part.err != nil {
		return false
	}
	if !part.tried {
		r.tries.order, part.tried = append(r.tries.order, part), true
	}
	if r.grouped {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, slowFix, errSlow)
		defer cancel()
	}
	begun := time.Now()
	part.err = r.runner.Fix(ctx, d, b)
	r.tries.took[d.Plugin] += time.Since(begun)
	return part.err == nil
}

// announce calls the Announce of each plugin's differences, that of the last one. An error
// is reported to the log alone: the attachment is repaired without it.
func (r *repairing) announce(ctx context.Context, all []contract.Difference, unanswered bool) {
	told := make(map[string]bool)
	for _, d := range slices.Backward(all) {
		if d.Announce == nil || told[d.Plugin] || ctx.Err() != nil {
			continue
		}
		told[d.Plugin] = true
		d.Fix = func(ctx context.Context) error { return d.Announce(ctx, unanswered) }
		if err := r.runner.Fix(ctx, d, nil); err != nil {
			r.runner.Runtime.Logger.Warn("the host and the container have not asked for each other's hardware address",
				"container", r.runner.ContainerID, "network", r.runner.Network.Name, "interface", r.runner.IfName, "error", err)
		}
	}
}

// end sets the outcome after the last comparison, which found these differences. Later
// ones may exist if a later comparison has failed.
func (r *repairing) end(found []contract.Difference) {
	remains := make(map[differenceKey]bool, len(found))
	for _, d := range found {
		remains[keyOf(d)] = true
		r.left = append(r.left, remaining{d, r.reason(d), r.tries.of(d).err != nil})
	}
	for _, d := range r.tries.order {
		if !remains[keyOf(d.Difference)] {
			r.repaired = append(r.repaired, d.Difference)
		}
	}
}

// reason returns why a difference remains.
func (r *repairing) reason(d contract.Difference) error {
	switch part := r.tries.of(d); {
	case part.err != nil:
		return part.err
	case d.Fix == nil && d.Why != "":
		return fmt.Errorf("%w: %s", errNotAddable, d.Why)
	case d.Fix == nil:
		return errNotAddable
	case d.Inside && !r.rs.o.Inside:
		return errNotAsked
	case r.err != nil:
		return fmt.Errorf("%w: %w", errNotVerified, r.err)
	case r.held:
		return outcome.ErrHeld
	case r.rs.o.Want != nil && part.fixed == 0:
		return errNotWanted
	case part.fixed == 0:
		return fmt.Errorf("%w: it was found after the last of %d rounds", errNotVerified, mostRounds)
	}
	return errReturned
}

// observe reports the repairs of each plugin's part to the log and the observer.
func (r *repairing) observe(ctx context.Context) {
	for _, tried := range r.tries.order {
		typ := tried.Plugin
		took, ok := r.tries.took[typ]
		if !ok {
			continue // reported
		}
		delete(r.tries.took, typ)
		var failed []error
		for _, left := range r.left {
			if left.failed && left.Plugin == typ {
				failed = append(failed, left.reason)
			}
		}
		r.runner.ReportRepair(ctx, typ, took, Join(failed...))
	}
}
