// Package repair decides what to do about the differences of an attachment from its
// record: which of them are repaired, in which order, and when to stop. It touches no
// kernel.
//
//	compare ─► choose ─► fix, in order ─► compare again ─► … ─► what was repaired,
//	   ▲                     │                                   and what remains, why
//	   └── something fixed ──┘
//
// One round is often not enough: a comparison can see that a bridge is gone, but not
// that the new one will lack an address and a port.
package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/compare"
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

// Subject is an attachment under repair.
type Subject interface {
	// Compare compares the attachment with its record anew.
	Compare(ctx context.Context) ([]compare.Difference, error)
	// Fix calls the Fix of a difference that Compare returned last. If together, the
	// change may be delayed until Apply.
	Fix(ctx context.Context, d compare.Difference, together bool) error
	// Apply makes the delayed changes. If it fails, some of them may have been made.
	Apply(ctx context.Context) error
}

// Options configure a repair.
type Options struct {
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
)

// Run repairs an attachment. It returns the outcome with an error too, which is the
// reason why the attachment could not be compared with its record to the end.
func Run(ctx context.Context, s Subject, o Options) (Outcome, error) {
	r := &run{Subject: s, Options: o, fixed: make(map[key]int), failed: make(map[key]error)}
	var last []compare.Difference
	stuck := false
	for round := 0; ; round++ {
		found, err := s.Compare(ctx)
		if err != nil {
			return r.outcome(last, err), err
		}
		todo := r.choose(found)
		if round == mostRounds || len(todo) == 0 || stuck && same(found, last) {
			return r.outcome(found, nil), nil
		}
		last = found
		stuck = !r.fix(ctx, todo) // a Fix that failed may have made a part of it
	}
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

// run is a repair in progress.
type run struct {
	Subject
	Options
	order  []compare.Difference // that were to be fixed, each once
	fixed  map[key]int          // how often
	failed map[key]error        // of the last attempt
}

// choose returns the differences to repair now. The order stays: the plugins of a chain
// rely on those before them.
func (r *run) choose(found []compare.Difference) []compare.Difference {
	var todo []compare.Difference
	for _, d := range found {
		if d.Fix != nil && (r.Inside || !d.Inside) && r.fixed[keyOf(d)] < mostAttempts && (r.Want == nil || r.Want(d)) {
			todo = append(todo, d)
		}
	}
	return todo
}

// fix repairs differences, and reports whether it has repaired any. The failure of one
// does not keep the others from being repaired.
func (r *run) fix(ctx context.Context, todo []compare.Difference) (any bool) {
	var delayed []compare.Difference
	for _, d := range todo {
		if r.attempt(ctx, d, true) {
			delayed = append(delayed, d)
		}
	}
	if err := r.Apply(ctx); err == nil {
		r.note(delayed)
		return len(delayed) > 0
	}
	// It is unknown which of the changes failed. Each can be repeated.
	var made []compare.Difference
	for _, d := range delayed {
		if r.attempt(ctx, d, false) {
			made = append(made, d)
		}
	}
	r.note(made)
	return len(made) > 0
}

// attempt makes or delays the repair of one difference, unless ctx has ended.
func (r *run) attempt(ctx context.Context, d compare.Difference, together bool) bool {
	err := context.Cause(ctx)
	if err == nil {
		if !r.tried(d) {
			r.order = append(r.order, d)
		}
		err = r.Fix(ctx, d, together)
	}
	if err != nil {
		r.failed[keyOf(d)] = err
	} else {
		delete(r.failed, keyOf(d))
	}
	return err == nil
}

func (r *run) tried(d compare.Difference) bool {
	return slices.ContainsFunc(r.order, func(o compare.Difference) bool { return keyOf(o) == keyOf(d) })
}

func (r *run) note(made []compare.Difference) {
	for _, d := range made {
		r.fixed[keyOf(d)]++
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
