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

// Group is the attachments that are repaired together, by their numbers from 0. Nobody
// else changes their records meanwhile.
type Group interface {
	// Compare compares attachments with their records anew. The results are in the
	// order of the numbers.
	Compare(ctx context.Context, members []int) []Comparison
	// Fix calls the Fix of a difference that Compare returned last for an attachment.
	// If together, the change may be delayed until Apply. Fix is called for several
	// attachments at once, and for each one after the other.
	Fix(ctx context.Context, member int, d compare.Difference, together bool) error
	// Apply makes the delayed changes of attachments, all together. It returns an error
	// for each of them, in their order: if one is not nil, some of its changes may have
	// been made.
	Apply(ctx context.Context, members []int) []error
	// Announce calls the Announce of a difference. It reports an error itself: the
	// attachment is repaired without it.
	Announce(ctx context.Context, member int, d compare.Difference, unanswered bool)
}

// Comparison is the result of a comparison.
type Comparison struct {
	Differences []compare.Difference
	Err         error // it could not be compared
}

// RepairOptions configure a repair.
type RepairOptions struct {
	Inside bool // repair the container's namespace too
	// Want reports whether a difference that could be repaired is to be; nil: all are.
	Want func(compare.Difference) bool
}

// Outcome is the result of a repair.
type Outcome struct {
	Repaired []compare.Difference // that were missing, and are verified to be there again
	Left     []Left
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

// RepairResult is the result of the repair of one attachment of a group.
type RepairResult struct {
	Outcome
	// Err is the reason why the attachment could not be compared with its record to the
	// end. The outcome is valid with it.
	Err error
}

// Repair repairs the attachments of a group, whose options are in their order. One that
// cannot be repaired does not keep the others from it.
func Repair(ctx context.Context, g Group, options []RepairOptions) []RepairResult {
	var all, active []*run
	for i, o := range options {
		all = append(all, &run{Group: g, number: i, grouped: len(options) > 1, RepairOptions: o, tried: make(map[key]bool), fixed: make(map[key]int), failed: make(map[key]error)})
	}
	for active = all; len(active) > 0; {
		found := g.Compare(ctx, numbers(active))
		var going, ended []*run
		for i, r := range active {
			if r.take(found[i]); r.ended {
				ended = append(ended, r)
			} else {
				going = append(going, r)
			}
		}
		each(ended, func(r *run) { r.announceAgain(ctx) })
		fix(ctx, g, going)
		active = going
	}
	results := make([]RepairResult, len(all))
	for i, r := range all {
		results[i] = r.result
	}
	return results
}

func numbers(runs []*run) []int {
	all := make([]int, len(runs))
	for i, r := range runs {
		all[i] = r.number
	}
	return all
}

// atOnce is the number of attachments in whose repairs Fix is called at the same time.
const atOnce = 16

// fix repairs what the attachments are to do now. The failure of one thing does not keep
// the others from being repaired.
func fix(ctx context.Context, g Group, runs []*run) {
	made := make(map[key]bool)
	for _, r := range runs {
		r.fixShared(ctx, made)
	}
	each(runs, func(r *run) { r.fixOwn(ctx) })
	delaying := slices.DeleteFunc(slices.Clone(runs), func(r *run) bool { return len(r.delayed) == 0 })
	if len(delaying) > 0 {
		errs := g.Apply(ctx, numbers(delaying))
		for i, r := range delaying {
			if errs[i] == nil {
				r.made = append(r.made, r.delayed...)
			} else {
				r.fixDelayed(ctx)
			}
		}
	}
	each(runs, func(r *run) { r.note(ctx) })
}

// each calls do for all of the attachments, several at once.
func each(runs []*run, do func(*run)) {
	parallel.Each(len(runs), atOnce, func(i int) { do(runs[i]) })
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

// run is the repair of one attachment in progress.
type run struct {
	Group
	number  int
	grouped bool // with others
	RepairOptions
	rounds int
	last   []compare.Difference // of the last comparison
	order  []compare.Difference // that were to be fixed, each once
	tried  map[key]bool         // is in order
	fixed  map[key]int          // how often
	failed map[key]error        // of the last attempt

	todo, delayed []compare.Difference // of this round
	made          []compare.Difference
	announced     []compare.Difference // of all rounds

	ended  bool
	result RepairResult
}

// take takes a comparison in, and decides what to repair now.
func (r *run) take(c Comparison) {
	if c.Err != nil {
		r.end(r.last, c.Err)
		return
	}
	stuck := r.rounds > 0 && len(r.made) == 0 // a Fix that failed may have made a part of it
	r.todo = r.choose(c.Differences)
	if r.rounds == mostRounds || len(r.todo) == 0 || stuck && same(c.Differences, r.last) {
		r.end(c.Differences, nil)
		return
	}
	r.rounds++
	r.last, r.delayed, r.made = c.Differences, nil, nil
}

func (r *run) end(found []compare.Difference, unknown error) {
	r.ended = true
	r.result = RepairResult{r.outcome(found, unknown), unknown}
}

// choose returns the differences to repair now. The order stays: the plugins of a chain
// rely on those before them.
func (r *run) choose(found []compare.Difference) []compare.Difference {
	var todo []compare.Difference
	for _, d := range found {
		switch {
		case d.Fix == nil, d.Inside && !r.Inside, r.fixed[keyOf(d)] >= mostAttempts:
		case errors.Is(r.failed[keyOf(d)], errSlow): // once is enough for the others
		case r.Want == nil || r.Want(d):
			todo = append(todo, d)
		}
	}
	return todo
}

// fixShared repairs what all attachments share, unless another one of the group has. It
// precedes what each has for itself: a bridge its ports. The second time each tries: one
// that knows better may succeed.
func (r *run) fixShared(ctx context.Context, made map[key]bool) {
	for _, d := range r.todo {
		k := keyOf(d)
		k.plugin = "" // bridge and portmap may both want a setting of the bridge
		switch {
		case !d.Shared:
		case made[k] && r.fixed[keyOf(d)] == 0:
			r.made = append(r.made, d)
		case r.attempt(ctx, d, false):
			made[k] = true
			r.made = append(r.made, d)
		}
	}
}

// fixOwn repairs the rest, or delays it.
func (r *run) fixOwn(ctx context.Context) {
	for _, d := range r.todo {
		if !d.Shared && r.attempt(ctx, d, true) {
			r.delayed = append(r.delayed, d)
		}
	}
}

// fixDelayed repairs what was delayed in vain. It is unknown which of the changes
// failed. Each can be repeated.
func (r *run) fixDelayed(ctx context.Context) {
	for _, d := range r.delayed {
		if r.attempt(ctx, d, false) {
			r.made = append(r.made, d)
		}
	}
}

// attempt makes or delays the repair of one difference, unless ctx has ended.
func (r *run) attempt(ctx context.Context, d compare.Difference, together bool) bool {
	err := context.Cause(ctx)
	if err == nil {
		if k := keyOf(d); !r.tried[k] {
			r.order, r.tried[k] = append(r.order, d), true
		}
		err = r.fixIn(ctx, d, together)
	}
	if err != nil {
		r.failed[keyOf(d)] = err
	} else {
		delete(r.failed, keyOf(d))
	}
	return err == nil
}

func (r *run) fixIn(ctx context.Context, d compare.Difference, together bool) error {
	if r.grouped {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, slow, errSlow)
		defer cancel()
	}
	return r.Fix(ctx, r.number, d, together)
}

// note notes what was repaired, and announces it.
func (r *run) note(ctx context.Context) {
	told := make(map[string]bool)
	for _, d := range r.made {
		r.fixed[keyOf(d)]++
		if d.Announce == nil || told[d.Plugin] || ctx.Err() != nil {
			continue
		}
		told[d.Plugin] = true
		r.announced = append(r.announced, d)
		r.Announce(ctx, r.number, d, false)
	}
}

// announceAgain has those asked again who have not answered by now: the other end of a
// pair may take a moment to notice that it can send.
func (r *run) announceAgain(ctx context.Context) {
	told := make(map[string]bool)
	for _, d := range slices.Backward(r.announced) {
		if !told[d.Plugin] && ctx.Err() == nil {
			told[d.Plugin] = true
			r.Announce(ctx, r.number, d, true)
		}
	}
}

// outcome returns the outcome after the last comparison, which found these differences.
// Later ones may exist if unknown, the error of a later comparison, is not nil.
func (r *run) outcome(found []compare.Difference, unknown error) Outcome {
	var o Outcome
	remains := make(map[key]bool, len(found))
	for _, d := range found {
		remains[keyOf(d)] = true
		_, failed := r.failed[keyOf(d)]
		o.Left = append(o.Left, Left{d, r.reason(d, unknown), failed})
	}
	for _, d := range r.order {
		if !remains[keyOf(d)] {
			o.Repaired = append(o.Repaired, d)
		}
	}
	return o
}

// reason returns why a difference remains.
func (r *run) reason(d compare.Difference, unknown error) error {
	switch failed := r.failed[keyOf(d)]; {
	case failed != nil:
		return failed
	case d.Fix == nil && d.Why != "":
		return fmt.Errorf("%w: %s", ErrNotAddable, d.Why)
	case d.Fix == nil:
		return ErrNotAddable
	case d.Inside && !r.Inside:
		return ErrNotAsked
	case unknown != nil:
		return fmt.Errorf("%w: %w", ErrNotVerified, unknown)
	case r.Want != nil && r.fixed[keyOf(d)] == 0:
		return ErrNotWanted
	case r.fixed[keyOf(d)] == 0:
		return fmt.Errorf("%w: it was found after the last of %d rounds", ErrNotVerified, mostRounds)
	}
	return ErrReturned
}
