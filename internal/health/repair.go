package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/parallel"
)

// The reasons why a difference remains. The reason can also be the error of its Fix.
var (
	// ErrNotAsked: it is in the container's namespace.
	ErrNotAsked = errors.New("it is in the container's namespace, where nothing is changed unless the caller asks for it")
	// ErrNotWanted: the caller of this repair does not want it.
	ErrNotWanted = errors.New("this repair leaves it")
	// ErrNotAddable: adding something does not repair it.
	ErrNotAddable = errors.New("adding what is missing does not repair it")
	// ErrReturned: it was repaired, and is missing again.
	ErrReturned = errors.New("it was repaired, and was missing again at once: something else removes it")
	// ErrNotVerified: the repair ended before the last comparison.
	ErrNotVerified = errors.New("not known to be repaired")
)

// Outcome is the result of a repair.
type Outcome struct {
	Repaired []compare.Difference // that were missing, and are verified to be there again
	Left     []Left
	// Err is the reason why the attachment could not be compared with its record to the
	// end. The rest is valid with it.
	Err error
}

// Left is a difference that remains, and why.
type Left struct {
	compare.Difference
	Reason error
	Failed bool // Reason is the error of its Fix
}

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

// Repair repairs attachments together. Nobody else changes their records meanwhile. One
// that cannot be repaired does not keep the others from it.
func Repair(ctx context.Context, all []*Repairing) {
	for _, r := range all {
		r.grouped = len(all) > 1
		r.parts, r.took = make(map[key]*attempts), make(map[string]time.Duration)
	}
	for active := all; len(active) > 0; {
		compareAll(ctx, active)
		var going, ended []*Repairing
		for _, r := range active {
			if r.take(); r.ended {
				ended = append(ended, r)
			} else {
				going = append(going, r)
			}
		}
		each(ended, func(r *Repairing) { r.announceAgain(ctx) })
		fix(ctx, going)
		active = going
	}
}

// atOnce is the number of attachments in whose repairs Fix is called at the same time.
const atOnce = 16

// fix repairs what the attachments are to do now. The failure of one thing does not keep
// the others from being repaired.
func fix(ctx context.Context, all []*Repairing) {
	made := make(map[key]bool)
	for _, r := range all {
		r.fixShared(ctx, made)
	}
	each(all, func(r *Repairing) { r.fixOwn(ctx) })
	delaying := slices.DeleteFunc(slices.Clone(all), func(r *Repairing) bool { return len(r.delayed) == 0 })
	for i, err := range apply(ctx, delaying) {
		if r := delaying[i]; err == nil {
			r.made = append(r.made, r.delayed...)
		} else {
			r.fixDelayed(ctx)
		}
	}
	each(all, func(r *Repairing) { r.note(ctx) })
}

// each calls do for all of the attachments, several at once.
func each(all []*Repairing, do func(*Repairing)) {
	parallel.Each(len(all), atOnce, func(i int) { do(all[i]) })
}

// same reports whether two comparisons found the same differences.
func same(a, b []compare.Difference) bool {
	return slices.EqualFunc(a, b, func(a, b compare.Difference) bool { return keyOf(a) == keyOf(b) })
}

// key identifies a difference in successive comparisons.
type key struct {
	plugin         string
	kind           compare.Kind
	inside         bool
	object, wanted string
}

func keyOf(d compare.Difference) key { return key{d.Plugin, d.Kind, d.Inside, d.Object, d.Wanted} }

// progress is that of the repair of one attachment.
type progress struct {
	grouped bool // with others
	ended   bool
	rounds  int
	now     *Part // the result of this round's comparison
	parts   map[key]*attempts
	order   []*attempts // those tried, in the order of the first attempts

	todo, delayed []compare.Difference // of this round
	made          []compare.Difference
	announced     []compare.Difference // of all rounds

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

// part returns the attempts to repair a difference.
func (r *Repairing) part(d compare.Difference) *attempts {
	k := keyOf(d)
	if r.parts[k] == nil {
		r.parts[k] = &attempts{Difference: d}
	}
	return r.parts[k]
}

// take takes a comparison in, and decides what to repair now.
func (r *Repairing) take() {
	before := r.differences()
	if r.Err != nil {
		r.end(before)
		return
	}
	r.Last = r.now
	found := r.differences()
	stuck := r.rounds > 0 && len(r.made) == 0 // a Fix that failed may have made a part of it
	r.todo = r.choose(found)
	if r.rounds == mostRounds || len(r.todo) == 0 || stuck && same(found, before) {
		r.end(found)
		return
	}
	r.rounds++
	r.delayed, r.made = nil, nil
}

// differences returns those that the last comparison has found.
func (r *Repairing) differences() []compare.Difference {
	if r.Last == nil {
		return nil
	}
	return r.Last.Differences
}

// choose returns the differences to repair now. The order stays: the plugins of a chain
// rely on those before them.
func (r *Repairing) choose(found []compare.Difference) []compare.Difference {
	var todo []compare.Difference
	for _, d := range found {
		switch part := r.part(d); {
		case d.Fix == nil, d.Inside && !r.Inside, part.fixed >= mostAttempts:
		case errors.Is(part.err, errSlow): // once is enough for the others
		case r.Want == nil || r.Want(d):
			todo = append(todo, d)
		}
	}
	return todo
}

// fixShared repairs what all attachments share, unless another one of the group has. It
// precedes what each has for itself: a bridge its ports. The second time each tries: one
// that knows better may succeed.
func (r *Repairing) fixShared(ctx context.Context, made map[key]bool) {
	for _, d := range r.todo {
		k := keyOf(d)
		k.plugin = "" // bridge and portmap may both want a setting of the bridge
		switch {
		case !d.Shared:
		case made[k] && r.part(d).fixed == 0:
			r.made = append(r.made, d)
		case r.attempt(ctx, d, false):
			made[k] = true
			r.made = append(r.made, d)
		}
	}
}

// fixOwn repairs the rest, or delays it.
func (r *Repairing) fixOwn(ctx context.Context) {
	for _, d := range r.todo {
		if !d.Shared && r.attempt(ctx, d, true) {
			r.delayed = append(r.delayed, d)
		}
	}
}

// fixDelayed repairs what was delayed in vain. It is unknown which of the changes
// failed. Each can be repeated.
func (r *Repairing) fixDelayed(ctx context.Context) {
	for _, d := range r.delayed {
		if r.attempt(ctx, d, false) {
			r.made = append(r.made, d)
		}
	}
}

// attempt makes or delays the repair of one difference, unless ctx has ended.
func (r *Repairing) attempt(ctx context.Context, d compare.Difference, together bool) bool {
	part := r.part(d)
	if part.err = context.Cause(ctx); part.err == nil {
		if !part.tried {
			r.order, part.tried = append(r.order, part), true
		}
		part.err = r.fixIn(ctx, d, together)
	}
	return part.err == nil
}

// fixIn makes or delays the repair of one difference. Together, it may be delayed until
// apply.
func (r *Repairing) fixIn(ctx context.Context, d compare.Difference, together bool) error {
	if r.grouped {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, slow, errSlow)
		defer cancel()
	}
	var b *parallel.Batch
	if together {
		b = &r.batch
	}
	begun := time.Now()
	err := r.Runner.Fix(ctx, d, b)
	r.took[d.Plugin] += time.Since(begun)
	return err
}

// note notes what was repaired, and announces it.
func (r *Repairing) note(ctx context.Context) {
	told := make(map[string]bool)
	for _, d := range r.made {
		r.part(d).fixed++
		if d.Announce == nil || told[d.Plugin] || ctx.Err() != nil {
			continue
		}
		told[d.Plugin] = true
		r.announced = append(r.announced, d)
		r.announce(ctx, d, false)
	}
}

// announceAgain has those asked again who have not answered by now: the other end of a
// pair may take a moment to notice that it can send.
func (r *Repairing) announceAgain(ctx context.Context) {
	told := make(map[string]bool)
	for _, d := range slices.Backward(r.announced) {
		if !told[d.Plugin] && ctx.Err() == nil {
			told[d.Plugin] = true
			r.announce(ctx, d, true)
		}
	}
}

// end sets the outcome after the last comparison, which found these differences. Later
// ones may exist if a later comparison has failed.
func (r *Repairing) end(found []compare.Difference) {
	r.ended = true
	remains := make(map[key]bool, len(found))
	for _, d := range found {
		remains[keyOf(d)] = true
		r.Left = append(r.Left, Left{d, r.reason(d), r.part(d).err != nil})
	}
	for _, d := range r.order {
		if !remains[keyOf(d.Difference)] {
			r.Repaired = append(r.Repaired, d.Difference)
		}
	}
}

// reason returns why a difference remains.
func (r *Repairing) reason(d compare.Difference) error {
	switch part := r.part(d); {
	case part.err != nil:
		return part.err
	case d.Fix == nil && d.Why != "":
		return fmt.Errorf("%w: %s", ErrNotAddable, d.Why)
	case d.Fix == nil:
		return ErrNotAddable
	case d.Inside && !r.Inside:
		return ErrNotAsked
	case r.Err != nil:
		return fmt.Errorf("%w: %w", ErrNotVerified, r.Err)
	case r.Want != nil && part.fixed == 0:
		return ErrNotWanted
	case part.fixed == 0:
		return fmt.Errorf("%w: it was found after the last of %d rounds", ErrNotVerified, mostRounds)
	}
	return ErrReturned
}
