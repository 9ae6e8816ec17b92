package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/thick/internal/wire"
)

// errDraining ends waits of ADDs, and of DELs in the queue, when the Server shuts down.
var errDraining = errors.New("the server is shutting down")

// tryLater is an error that tells a runtime to call again (code 11).
func tryLater(format string, args ...any) *types.Error {
	return types.NewError(types.ErrTryAgainLater, fmt.Sprintf(format, args...), "")
}

// refusal is the answer to a call that never ran.
func refusal(err error) error {
	if said := (*types.Error)(nil); errors.As(err, &said) {
		return neverRan{said, err}
	}
	return neverRan{tryLater("not started: %v", err), err}
}

// gate lets a number of calls run at once, and a number wait.
//
// ADDs, DELs and calls of other verbs have slots of their own: a DEL frees addresses, and must
// not wait for ADDs that wait for addresses; and a node whose STATUS is not answered counts as
// broken. In each of these classes the calls with the same [Use] are a flow. Its calls wait in
// the order of their arrival, and the flows take turns.
type gate struct {
	mu       sync.Mutex
	places   pool // of calls that wait
	overtime pool // of calls that have lost their slot, see slowAfter
	classes  map[string]*class
	slow     time.Duration
	draining <-chan struct{} // closed when ADDs and DELs of the queue are refused
}

// class are the calls that share slots.
type class struct {
	kind  kind // of their places
	slots pool
	late  int64          // calls that have lost their slot
	flows map[kind]*flow // those with calls that wait
	order []*flow        // the same, the next one first
}

// flow are calls that wait, the oldest first.
type flow struct {
	kinds []kind
	calls []chan struct{} // closed when the call has a slot
}

// Sizes of pools, in times of Limits.Concurrent and Limits.Queued. A flow that is alone has
// half of a pool, so it gets what the limit says.
const (
	slotsPerConcurrent    = 2
	overtimePerConcurrent = 4
	placesPerQueued       = 2
)

// slowAfter is how long a call keeps others from its slot. One that runs for longer waits for
// something else than this machine, and another may run beside it.
const slowAfter = 5 * time.Second

// otherVerbs is the class of CHECK, GC and STATUS.
const otherVerbs = "other verbs"

func newGate(l Limits, draining <-chan struct{}) *gate {
	concurrent := int64(l.Concurrent)
	g := &gate{
		places: newPool(placesPerQueued * int64(l.Queued)), overtime: newPool(overtimePerConcurrent * concurrent),
		classes: map[string]*class{}, slow: slowAfter, draining: draining,
	}
	for _, name := range []string{wire.Add, wire.Del, otherVerbs} {
		g.classes[name] = &class{kind: classKind(name), slots: newPool(slotsPerConcurrent * concurrent), flows: map[kind]*flow{}}
	}
	return g
}

// connections returns how many connections the calls need that run or wait.
func (l Limits) connections() int {
	return (3*slotsPerConcurrent+overtimePerConcurrent)*l.Concurrent + placesPerQueued*l.Queued
}

// turn is a call on its way: it sits down, enters, and leaves. The gate's lock guards it.
type turn struct {
	*gate
	class   *class
	queued  bool            // a DEL of the queue, which takes no client's place
	refused <-chan struct{} // closed when the call may wait no longer; nil if it always may
	begin   time.Time
	waited  time.Duration // until it had a slot, or left

	seat    []kind // of its place, while it has one
	kinds   []kind
	granted chan struct{} // closed when it has a slot; nil before it has asked for one
	late    bool          // it has lost the slot, and goes on
	left    bool
	timer   *time.Timer
}

func (g *gate) turn(verb string, queued bool) *turn {
	t := &turn{gate: g, class: g.classes[verb], queued: queued, begin: time.Now()}
	if t.class == nil {
		t.class = g.classes[otherVerbs]
	}
	if verb == wire.Add || queued {
		t.refused = g.draining
	}
	return t
}

// sit takes a place for a call of which only the verb is known. The error is a neverRan.
func (t *turn) sit() error {
	select {
	case <-t.refused:
		return refusal(errDraining)
	default:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.take(t.class.kind)
}

// take changes the call's place for one of these kinds.
func (t *turn) take(seat ...kind) error {
	t.rise()
	if t.queued {
		return nil
	}
	if !t.places.fits(1, seat...) {
		return refusal(tryLater("too many calls: %d are waiting", t.places.total-t.places.free))
	}
	t.places.take(1, seat...)
	t.seat = seat
	return nil
}

// rise gives the call's place back, if it has one.
func (t *turn) rise() {
	if t.seat != nil {
		t.places.give(1, t.seat...)
		t.seat = nil
	}
}

// enter waits for a slot. The error is a neverRan.
func (t *turn) enter(ctx context.Context, use Use) error {
	if err := t.apply(kindsOf(use, t.queued)); err != nil {
		return err
	}
	select {
	case <-t.granted:
	case <-t.refused:
	case <-ctx.Done():
	}
	select { // a slot that came at the same time is too late
	case <-t.refused:
		return refusal(errDraining)
	case <-ctx.Done():
		return refusal(context.Cause(ctx))
	default:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rise()
	t.waited = time.Since(t.begin)
	t.timer = time.AfterFunc(t.slow, t.overrun)
	return nil
}

// apply takes a slot if there is one for the call, and else joins its flow.
func (t *turn) apply(kinds []kind) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, name := t.class, kinds[0]
	f := c.flows[name]
	if f == nil && c.slots.fits(1, kinds...) { // the other flows that wait have no slot now
		c.slots.take(1, kinds...)
		t.kinds, t.granted = kinds, make(chan struct{})
		close(t.granted)
		return nil
	}
	if err := t.take(c.kind, name); err != nil {
		return err
	}
	if f == nil {
		f = &flow{kinds: kinds}
		c.flows[name], c.order = f, append(c.order, f)
	}
	t.kinds, t.granted = kinds, make(chan struct{})
	f.calls = append(f.calls, t.granted)
	return nil
}

// overrun takes the slot from a call that goes on, unless too many do already.
func (t *turn) overrun() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left || !t.overtime.fits(1, t.kinds...) {
		return
	}
	t.late = true
	t.class.late++
	t.overtime.take(1, t.kinds...)
	t.class.free(t.kinds)
}

// leave gives back what the call has, wherever it is on its way.
func (t *turn) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rise()
	t.left = true
	if t.timer == nil {
		t.waited = time.Since(t.begin)
	} else {
		t.timer.Stop()
	}
	if t.granted == nil {
		return
	}
	select {
	case <-t.granted:
	default:
		t.class.drop(t.kinds[0], t.granted)
		return
	}
	if t.late {
		t.class.late--
		t.overtime.give(1, t.kinds...)
	} else {
		t.class.free(t.kinds)
	}
}

// free gives a slot back, and slots to those that wait.
func (c *class) free(kinds []kind) {
	c.slots.give(1, kinds...)
	for i := 0; i < len(c.order) && c.slots.free > 0; {
		f := c.order[i]
		if !c.slots.fits(1, f.kinds...) {
			i++
			continue
		}
		c.slots.take(1, f.kinds...)
		close(f.calls[0])
		f.calls = f.calls[1:]
		c.order = slices.Delete(c.order, i, i+1)
		if len(f.calls) > 0 {
			c.order = append(c.order, f) // its next call comes after the other flows'
		} else {
			delete(c.flows, f.kinds[0])
		}
	}
}

// drop removes a call that waits no longer.
func (c *class) drop(name kind, call chan struct{}) {
	f := c.flows[name]
	f.calls = slices.DeleteFunc(f.calls, func(other chan struct{}) bool { return other == call })
	if len(f.calls) == 0 {
		delete(c.flows, name)
		c.order = slices.DeleteFunc(c.order, func(other *flow) bool { return other == f })
	}
}
