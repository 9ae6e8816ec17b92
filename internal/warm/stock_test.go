package warm

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

// TestAStockIsFilledUpToItsSize: what was taken keeps its room until it is dropped.
func TestAStockIsFilledUpToItsSize(t *testing.T) {
	begun, goOn := make(chan int), make(chan struct{})
	made := 0
	s := Fill(2, func(ctx context.Context) (int, error) {
		made++
		begun <- made
		select {
		case <-goOn:
			return made, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	})
	_, ok := s.Take()
	expect.Same(t, "nothing is ready", ok, false)
	for want := 1; want <= 2; want++ {
		expect.Same(t, "begun", expect.Await(t, "one that is begun", begun), want)
		goOn <- struct{}{}
		expect.Eventually(t, "it is ready", func() bool { return s.Len() == want })
	}
	one, ok := s.Take()
	expect.Same(t, "the first", ok && one == 1, true)
	s.Return(one)
	expect.Same(t, "ready", s.Len(), 2)
	one, _ = s.Take()
	expect.Same(t, "the oldest", one, 2)
	select {
	case n := <-begun:
		t.Errorf("%d is made without room", n)
	default:
	}
	s.Drop()
	expect.Same(t, "begun", expect.Await(t, "one more", begun), 3)
	s.Stop() // it fails
	expect.Same(t, "left", s.Len(), 1)
	one, ok = s.Take()
	expect.Same(t, "what is ready can be taken", ok && one == 1, true)
}

// TestAFailureMakesRoom, and another attempt follows.
func TestAFailureMakesRoom(t *testing.T) {
	attempts := make(chan int)
	n := 0
	s := Fill(1, func(context.Context) (int, error) {
		n++
		attempts <- n
		if n < 3 {
			return 0, errors.New("no")
		}
		return n, nil
	})
	defer s.Stop()
	for want := 1; want <= 3; want++ {
		expect.Same(t, "attempt", expect.Await(t, "attempt", attempts), want)
	}
	expect.Eventually(t, "it is ready", func() bool { return s.Len() == 1 })
}

// TestAStockIsStoppedWhileItWaits: the time after a failure, and for room.
func TestAStockIsStoppedWhileItWaits(t *testing.T) {
	attempt := make(chan struct{}, 100) // another may follow before Stop
	failing := Fill(1, func(context.Context) (int, error) {
		attempt <- struct{}{}
		return 0, errors.New("no")
	})
	expect.Await(t, "attempt", attempt)
	failing.Stop()
	full := Fill(1, func(context.Context) (int, error) { return 1, nil })
	expect.Eventually(t, "it is full", func() bool { return full.Len() == 1 })
	full.Stop()
}

func TestPause(t *testing.T) {
	for failures, want := range map[int]time.Duration{
		1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 5: 1600 * time.Millisecond,
		7: 6400 * time.Millisecond, 8: 10 * time.Second, 1000: 10 * time.Second,
	} {
		expect.Same(t, "pause", pause(failures), want)
	}
}

func TestFindSelectsByNetworkAndInterface(t *testing.T) {
	c := &Container{Made: []Made{{Network: "a", IfName: "eth0"}, {Network: "b", IfName: "eth1"}, {Network: "a", IfName: "eth2"}}}
	expect.Same(t, "found", c.Find("a", "eth2"), &c.Made[2])
	expect.Same(t, "not found", c.Find("b", "eth0"), nil)
}
