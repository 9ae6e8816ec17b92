package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/kernel/parallel"
	"github.com/embedcni/cni/internal/run/compare"
	"github.com/embedcni/cni/internal/run/hostns"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/netns"
)

// The reasons why a difference remains. The reason can also be the error of its Fix.
var (
	// errNotAsked: it is in the container's namespace.
	errNotAsked = &tagged{errors.New("it is in the container's namespace, where nothing is changed unless the caller asks for it"), ErrInContainer}
	// errNotWanted: the caller of this repair does not want it.
	errNotWanted = errors.New("this repair leaves it")
	// errNotAddable: adding something does not repair it.
	errNotAddable = &tagged{errors.New("adding what is missing does not repair it"), ErrNotRepairable}
	// errReturned: it was repaired, and is missing again.
	errReturned = &tagged{errors.New("it was repaired, and was missing again at once: something else removes it"), ErrNotRepairable}
	// errNotVerified: the repair ended before the last comparison.
	errNotVerified = errors.New("not known to be repaired")
)

// unrepaired is a difference that remains, and why.
type unrepaired struct {
	compare.Difference
	Reason error
	Failed bool // Reason is the error of its Fix
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
	// slow limits the time of one Fix in a group: the others wait for it with their
	// packet filters. By itself an attachment may take longer.
	slow = time.Second
)

// errSlow: a Fix in a group took too long.
var errSlow = errors.New("it takes too long for a repair of several containers at once")

// repairing is an attachment of a locked container that is repaired.
type repairing struct {
	a    *attachment
	held bool // nothing of it is wanted, since it is held

	runner    *runner.Runner
	host      *hostns.NetNS
	container *netns.Handle // nil if it is not open
	compare   func(context.Context, *compare.View) *part
	inside    bool // repair the container's namespace too
	// want reports whether a difference that could be repaired is to be; nil: all are.
	want func(compare.Difference) bool

	repaired []compare.Difference // that were missing, and are verified to be there again
	left     []unrepaired
	last     *part // the last comparison, or nil
	// err is the reason why the attachment could not be compared with its record to the
	// end. The rest is valid with it.
	err error

	grouped bool  // with others
	now     *part // the comparison of this round
	rounds  int
	parts   map[key]*attempts
	order   []*attempts // those tried, in the order of the first attempts

	todo, delayed, made []compare.Difference // in this round
	announced           []compare.Difference // in all rounds

	batch parallel.Batch           // delayed changes of packet filters
	took  map[string]time.Duration // the repair of the plugins' parts, by type
}

// attempts are those to repair one thing.
type attempts struct {
	compare.Difference
	tried bool
	fixed int   // how often
	err   error // of the last attempt
}

// key identifies a difference in successive comparisons.
type key struct {
	plugin         string
	kind           compare.Kind
	inside         bool
	object, wanted string
}

func keyOf(d compare.Difference) key { return key{d.Plugin, d.Kind, d.Inside, d.Object, d.Wanted} }

// part returns the attempts to repair a difference.
func (r *repairing) part(d compare.Difference) *attempts {
	k := keyOf(d)
	if r.parts[k] == nil {
		r.parts[k] = &attempts{Difference: d}
	}
	return r.parts[k]
}

// mend repairs attachments together. Nobody else changes their records meanwhile. One
// that cannot be repaired does not keep the others from it.
func mend(ctx context.Context, all []*repairing) {
	for _, r := range all {
		r.grouped, r.parts, r.took = len(all) > 1, make(map[key]*attempts), make(map[string]time.Duration)
	}
	for active := all; len(active) > 0; {
		compareAll(ctx, active)
		var going, ended []*repairing
		for _, r := range active {
			if r.take() {
				going = append(going, r)
			} else {
				ended = append(ended, r)
			}
		}
		// The other end of a pair may take a moment to notice that it can send.
		each(ended, func(r *repairing) { r.announce(ctx, r.announced, true) })
		fix(ctx, going)
		active = going
	}
}

// each calls do for all of the attachments, several at once.
func each(all []*repairing, do func(*repairing)) {
	parallel.Each(len(all), atOnce, func(i int) { do(all[i]) })
}

// compareAll compares attachments with their records anew. The containers are locked, so
// that one look at the host is as good as a question for each.
func compareAll(ctx context.Context, all []*repairing) {
	one := func(i int, looks *compare.Looks) {
		r := all[i]
		r.err = parallel.Try(func() (err error) {
			r.now, err = r.look(ctx, looks)
			return err
		})
	}
	if len(all) < dumpFor {
		for i := range all {
			one(i, &compare.Looks{})
		}
		return
	}
	looks := compare.Dumps()
	parallel.Each(len(all), runtime.GOMAXPROCS(0), func(i int) { one(i, looks) })
	if err := looks.Close(); err != nil {
		all[0].runner.Runtime.Logger.Error("close network namespace", "error", err)
	}
}

func (r *repairing) look(ctx context.Context, looks *compare.Looks) (c *part, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if r.container == nil {
		return nil, fmt.Errorf("its network namespace is not open: %w", hostns.ErrInvalid)
	}
	v, err := looks.Open(ctx, r.host, r.container)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
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
func (r *repairing) take() bool {
	var before []compare.Difference
	if r.last != nil {
		before = r.last.Differences
	}
	if r.err != nil {
		r.end(before)
		return false
	}
	r.last = r.now
	found := r.now.Differences
	r.todo = slices.DeleteFunc(slices.Clone(found), func(d compare.Difference) bool { return !r.wants(d) })
	// A Fix that failed may have made a part of it.
	stuck := r.rounds > 0 && len(r.made) == 0 &&
		slices.EqualFunc(found, before, func(a, b compare.Difference) bool { return keyOf(a) == keyOf(b) })
	if r.rounds == mostRounds || len(r.todo) == 0 || stuck {
		r.end(found)
		return false
	}
	r.rounds++
	r.delayed, r.made = nil, nil
	return true
}

// wants reports whether a difference is to be repaired now.
func (r *repairing) wants(d compare.Difference) bool {
	part := r.part(d)
	return d.Fix != nil && (r.inside || !d.Inside) && part.fixed < mostAttempts &&
		!errors.Is(part.err, errSlow) && // once is enough for the others
		(r.want == nil || r.want(d))
}

// fix repairs what the attachments are to do now. The failure of one thing does not keep
// the others from being repaired.
func fix(ctx context.Context, all []*repairing) {
	if len(all) == 0 {
		return
	}
	shared := make(map[key]bool)
	for _, r := range all {
		r.fixShared(ctx, shared)
	}
	each(all, func(r *repairing) { r.delayed = r.fixEach(ctx, r.delayed, &r.batch) })
	var batches []*parallel.Batch
	for _, r := range all {
		batches = append(batches, &r.batch)
	}
	bound, cancel := all[0].runner.Runtime.Bound(ctx, "CHECK")
	defer cancel()
	for i, err := range parallel.FlushTogether(bound, batches) {
		r := all[i]
		if err != nil { // it is unknown which of the changes failed; each can be repeated
			r.delayed = r.fixEach(ctx, r.delayed, nil)
		}
		r.made = append(r.made, r.delayed...)
	}
	each(all, func(r *repairing) {
		for _, d := range r.made {
			r.part(d).fixed++
		}
		r.announced = append(r.announced, r.made...)
		r.announce(ctx, r.made, false)
	})
}

// fixShared repairs what all attachments share, unless another one of the group has, and
// puts off the rest. It precedes what each has for itself: a bridge its ports. The second
// time each tries: one that knows better may succeed.
func (r *repairing) fixShared(ctx context.Context, made map[key]bool) {
	for _, d := range r.todo {
		k := keyOf(d)
		k.plugin = "" // bridge and portmap may both want a setting of the bridge
		switch {
		case !d.Shared:
			r.delayed = append(r.delayed, d)
		case made[k] && r.part(d).fixed == 0, r.attempt(ctx, d, nil):
			made[k] = true
			r.made = append(r.made, d)
		}
	}
}

// fixEach repairs differences, or delays what goes into the batch, and returns those for
// which that succeeded.
func (r *repairing) fixEach(ctx context.Context, all []compare.Difference, b *parallel.Batch) []compare.Difference {
	return slices.DeleteFunc(all, func(d compare.Difference) bool { return !r.attempt(ctx, d, b) })
}

// attempt makes or delays the repair of one difference, unless ctx has ended.
func (r *repairing) attempt(ctx context.Context, d compare.Difference, b *parallel.Batch) bool {
	part := r.part(d)
	if part.err = context.Cause(ctx); part.err != nil {
		return false
	}
	if !part.tried {
		r.order, part.tried = append(r.order, part), true
	}
	if r.grouped {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, slow, errSlow)
		defer cancel()
	}
	begun := time.Now()
	part.err = r.runner.Fix(ctx, d, b)
	r.took[d.Plugin] += time.Since(begun)
	return part.err == nil
}

// announce calls the Announce of each plugin's differences, that of the last one. An error
// is reported to the log alone: the attachment is repaired without it.
func (r *repairing) announce(ctx context.Context, all []compare.Difference, unanswered bool) {
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
func (r *repairing) end(found []compare.Difference) {
	remains := make(map[key]bool, len(found))
	for _, d := range found {
		remains[keyOf(d)] = true
		r.left = append(r.left, unrepaired{d, r.reason(d), r.part(d).err != nil})
	}
	for _, d := range r.order {
		if !remains[keyOf(d.Difference)] {
			r.repaired = append(r.repaired, d.Difference)
		}
	}
}

// reason returns why a difference remains.
func (r *repairing) reason(d compare.Difference) error {
	switch part := r.part(d); {
	case part.err != nil:
		return part.err
	case d.Fix == nil && d.Why != "":
		return fmt.Errorf("%w: %s", errNotAddable, d.Why)
	case d.Fix == nil:
		return errNotAddable
	case d.Inside && !r.inside:
		return errNotAsked
	case r.err != nil:
		return fmt.Errorf("%w: %w", errNotVerified, r.err)
	case r.held && part.fixed == 0:
		return ErrHeld
	case r.want != nil && part.fixed == 0:
		return errNotWanted
	case part.fixed == 0:
		return fmt.Errorf("%w: it was found after the last of %d rounds", errNotVerified, mostRounds)
	}
	return errReturned
}

// observe reports the repairs of each plugin's part to the log and the observer.
func (r *repairing) observe(ctx context.Context) {
	for _, tried := range r.order {
		typ := tried.Plugin
		took, ok := r.took[typ]
		if !ok {
			continue // reported
		}
		delete(r.took, typ)
		var failed []error
		for _, left := range r.left {
			if left.Failed && left.Plugin == typ {
				failed = append(failed, left.Reason)
			}
		}
		r.runner.ReportRepair(ctx, typ, took, errors.Join(failed...))
	}
}
