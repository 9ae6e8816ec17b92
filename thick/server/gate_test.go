package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/internal/wire"
)

// testGate is a gate whose calls keep their slots.
func testGate(concurrent, queued int) *gate {
	g := newGate(Limits{Concurrent: concurrent, Queued: queued}, nil)
	g.slow = time.Hour
	return g
}

// apply is an ADD that applies for a slot.
func (g *gate) apply(t *testing.T, networks ...string) *turn {
	t.Helper()
	one := g.turn(wire.Add, false)
	expect.NoError(t, one.sit(), one.apply(kindsOf(Use{Networks: networks}, false)))
	return one
}

func (t *turn) hasSlot() bool {
	select {
	case <-t.granted:
		return true
	default:
		return false
	}
}

// TestNetworksTakeTurns: one with few calls does not wait for all calls of another.
func TestNetworksTakeTurns(t *testing.T) {
	g := testGate(1, 100) // two slots, of which one network alone gets one
	calls := map[string]*turn{}
	for _, id := range []string{"x0", "y0", "many0", "many1", "many2", "many3", "few0", "few1", "one0"} {
		calls[id] = g.apply(t, id[:len(id)-1])
	}
	with := func() (ids []string) { // in the order of their names
		for _, id := range []string{"few0", "few1", "many0", "many1", "many2", "many3", "one0", "x0", "y0"} {
			if calls[id] != nil && calls[id].hasSlot() {
				ids = append(ids, id)
			}
		}
		return ids
	}
	expect.Same(t, "at the beginning", with(), []string{"x0", "y0"})
	for _, step := range []struct {
		ends string
		runs []string
	}{
		{"x0", []string{"many0", "y0"}},
		{"y0", []string{"few0", "many0"}},
		{"many0", []string{"few0", "one0"}},
		{"few0", []string{"many1", "one0"}},
		{"one0", []string{"few1", "many1"}},
		{"many1", []string{"few1", "many2"}},
		{"few1", []string{"many2"}}, // it leaves the other slot to others
		{"many2", []string{"many3"}},
		{"many3", nil},
	} {
		calls[step.ends].leave()
		delete(calls, step.ends)
		expect.Same(t, "after "+step.ends, with(), step.runs)
	}
}

// TestOthersPassANetworkThatHasItsShare, though it has waited for longer.
func TestOthersPassANetworkThatHasItsShare(t *testing.T) {
	g := testGate(1, 100)
	x, many := g.apply(t, "x"), g.apply(t, "many")
	again, few := g.apply(t, "many"), g.apply(t, "few")
	x.leave()
	expect.Same(t, "the next is", []bool{many.hasSlot(), again.hasSlot(), few.hasSlot()}, []bool{true, false, true})
	few.leave()
	expect.Same(t, "a slot is kept", again.hasSlot(), false)
	many.leave()
	expect.Same(t, "then it has its turn", again.hasSlot(), true)
}

// TestShares: what each kind has of 32 slots while its calls are all there are.
func TestShares(t *testing.T) {
	for _, c := range []struct {
		name string
		use  func(i int) Use // of call i
		most int
	}{
		{"one network", func(int) Use { return Use{Networks: []string{"a"}} }, 16},
		{"one network with others", func(i int) Use { return Use{Networks: []string{"a", fmt.Sprint(i)}} }, 24},
		{"networks of one plugin", func(i int) Use { return Use{Networks: []string{fmt.Sprint(i)}, Plugins: []string{"p"}} }, 28},
		{"two networks", func(i int) Use { return Use{Networks: []string{fmt.Sprint(i % 2)}} }, 22},
		{"networks of their own", func(i int) Use { return Use{Networks: []string{fmt.Sprint(i)}} }, 32},
	} {
		g, got := testGate(16, 1000), 0
		for i := range 100 {
			one := g.turn(wire.Add, false)
			expect.NoError(t, one.sit(), one.apply(kindsOf(c.use(i), false)))
			if one.hasSlot() {
				got++
			}
		}
		expect.Same(t, c.name, got, c.most)
	}
}

// TestTheGateLosesNothing: calls of random networks and verbs, of which some leave while they
// wait, and some run for long. In the end every slot and place is free, and nothing is kept of
// any flow.
func TestTheGateLosesNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	g := newGate(Limits{Concurrent: 2, Queued: 8}, nil)
	g.slow = time.Microsecond
	var all sync.WaitGroup
	for worker := range 50 {
		random := rand.New(rand.NewPCG(seed, uint64(worker)))
		all.Go(func() {
			for range 200 {
				visit(t, g, random)
			}
		})
	}
	all.Wait()
	for name, p := range map[string]pool{
		"places": g.places, "overtime": g.overtime, "ADD": g.classes[wire.Add].slots, "DEL": g.classes[wire.Del].slots, "others": g.classes[otherVerbs].slots,
	} {
		if p.free != p.total || len(p.used) > 0 {
			t.Errorf("%s: %d of %d are free, used %v", name, p.free, p.total, p.used)
		}
	}
	for name, c := range g.classes {
		if len(c.flows)+len(c.order) > 0 {
			t.Errorf("%s: left %v, %v", name, c.flows, c.order)
		}
	}
}

func visit(t *testing.T, g *gate, random *rand.Rand) {
	one := g.turn([]string{wire.Add, wire.Del, wire.Status}[random.IntN(3)], random.IntN(4) == 0)
	defer one.leave()
	if err := one.sit(); err != nil {
		return
	}
	if random.IntN(8) == 0 {
		return // what it needs could not be found out
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if random.IntN(3) == 0 {
		go cancel()
	}
	use := Use{Networks: names(random, "n"), Plugins: names(random, "p")}
	if err := one.enter(ctx, use); err != nil {
		if !errors.As(err, new(neverRan)) {
			t.Errorf("%v", err)
		}
		return
	}
	g.mu.Lock()
	for name, c := range g.classes {
		if c.slots.free < 0 || g.places.free < 0 || g.overtime.free < 0 {
			t.Errorf("%s: too much is given away", name)
		}
	}
	g.mu.Unlock()
	for range random.IntN(3) {
		runtime.Gosched() // the work of a call
	}
}

// names returns up to two of three names.
func names(random *rand.Rand, of string) (all []string) {
	for range random.IntN(3) {
		all = append(all, fmt.Sprint(of, random.IntN(3)))
	}
	return all
}

// TestNetworksThatCameBeforeLeaveSlots: each takes what it can get, one after the other.
func TestNetworksThatCameBeforeLeaveSlots(t *testing.T) {
	g := testGate(16, 1000)
	for i := range 40 {
		for range 20 {
			one := g.turn(wire.Add, false)
			expect.NoError(t, one.sit(), one.apply(kindsOf(Use{Networks: []string{fmt.Sprint("slow", i)}, Plugins: []string{"slow"}}, false)))
		}
	}
	for i := range 4 {
		one := g.turn(wire.Add, false)
		expect.NoError(t, one.sit(), one.apply(kindsOf(Use{Networks: []string{"normal"}, Plugins: []string{"normal"}}, false)))
		expect.That(t, one.hasSlot(), "call %d of another plugin waits", i)
		one.leave()
	}
}
