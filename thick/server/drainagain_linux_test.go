package server_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost/servertest"
	"github.com/embedcni/cni/thick/internal/delqueue"
	"github.com/embedcni/cni/thick/server"
)

// faulty is a Ledger of which some DELs fail.
type faulty struct {
	*servertest.Ledger
	mu    sync.Mutex
	asked []string // "c1 eth0", the DELs so far
}

// newFaulty returns a faulty. fails returns the error of the nth DEL of an interface; nil lets it
// succeed.
func newFaulty(fails func(ctx context.Context, r *server.Request, nth int) error) *faulty {
	f := &faulty{Ledger: newLedger()}
	usual := f.Do
	f.Do = func(ctx context.Context, verb string, r *server.Request) (types.Result, error) {
		if verb == "DEL" {
			if err := fails(ctx, r, f.ask(r.ContainerID+" "+r.IfName)); err != nil {
				return nil, err
			}
		}
		return usual(ctx, verb, r)
	}
	return f
}

// ask notes a DEL, and returns how many there were of the interface before.
func (f *faulty) ask(name string) (before int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, other := range f.asked {
		if other == name {
			before++
		}
	}
	f.asked = append(f.asked, name)
	return before
}

// queued attaches containers and queues their DELs.
func (f *faulty) queued(t *testing.T, s *server.Server, ids ...string) *queue {
	t.Helper()
	q := newQueue(t)
	for _, id := range ids {
		attach(t, s, id)
		q.put(t, id)
	}
	return q
}

// hangs is the error of a plugin that answers when it is killed.
func hangs(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestADELThatFailsGoesBehindTheOthers.
func TestADELThatFailsGoesBehindTheOthers(t *testing.T) {
	release, first := make(chan struct{}), make(chan string, 1)
	f := newFaulty(func(_ context.Context, r *server.Request, _ int) error {
		select {
		case first <- r.ContainerID:
			<-release
			return errors.New("not now")
		default:
			return nil
		}
	})
	s := newServer(t, f, server.Options{Limits: server.Limits{Concurrent: 1}})
	server.SetSlow(s, time.Hour)
	q := f.queued(t, s, names("c%d", 5)...)
	done := expect.Value(s.Drain(t.Context(), q.dir))(t)
	expect.Eventually(t, "the others wait", func() bool { return server.Lined(s) == 4 })
	close(release)
	r := expect.Await(t, "the end of the Drain", done)
	wantDrained(t, r, names("c%d", 5), nil, nil)
	fails := expect.Await(t, "the one that fails", first) + " eth0"
	expect.Same(t, "first and last", []string{f.asked[0], f.asked[len(f.asked)-1]}, []string{fails, fails})
	expect.Same(t, "DELs", len(f.asked), 6)
	expect.Same(t, "left", q.left(t), 0)
}

// TestADELThatHangsOnce ends in its second turn.
func TestADELThatHangsOnce(t *testing.T) {
	var f *faulty
	var q *queue
	var report *server.DrainReport
	expect.Limited(100*time.Millisecond, func(limit time.Duration) bool {
		f = newFaulty(func(ctx context.Context, r *server.Request, nth int) error {
			if r.ContainerID == "c1" && nth == 0 {
				return hangs(ctx)
			}
			return nil
		})
		q = f.queued(t, newServer(t, f, server.Options{}), "c1", "c2")
		report = drain(t, newServer(t, f, server.Options{Limits: server.Limits{Deadline: limit}}), q)
		return len(report.Failed) > 0 // it has not begun in time
	})
	wantDrained(t, report, []string{"c1", "c2"}, nil, nil)
	expect.Empty(t, "attached", holders(f.Ledger))
	expect.Same(t, "left", q.left(t), 0)
}

// TestADELThatAlwaysFails has two turns, and stays. Later DELs of the container come after both,
// and each has two turns of its own. Those of other containers are as without it.
func TestADELThatAlwaysFails(t *testing.T) {
	f := newFaulty(func(_ context.Context, r *server.Request, nth int) error {
		if r.IfName == "net1" || r.IfName == "net2" && nth == 0 {
			return types.NewError(types.ErrTryAgainLater, "busy", "")
		}
		return nil
	})
	s := newServer(t, f, server.Options{})
	q := newQueue(t)
	for _, name := range []string{"net1", "net2", "eth0"} {
		success(t, post(s, "/cni", request("ADD", "c1", variable("CNI_IFNAME", name))), answered)
		q.put(t, "c1", func(e *delqueue.Entry) { e.Env["CNI_IFNAME"] = name })
	}
	attach(t, s, "c2")
	q.put(t, "c2")
	r := drain(t, s, q)
	wantDrained(t, r, []string{"c1", "c1", "c2"}, nil, []string{"c1"})
	expect.Says(t, "the reason", r.Failed[0].Err, "busy")
	var ofC1 []string
	for _, one := range f.asked {
		if name, is := strings.CutPrefix(one, "c1 "); is {
			ofC1 = append(ofC1, name)
		}
	}
	expect.Same(t, "DELs of c1", ofC1, []string{"net1", "net1", "net2", "net2", "eth0"})
	expect.Same(t, "left", q.left(t), 1)
	success(t, post(s, "/cni", request("ADD", "c2")), answered) // nobody waits any more
}

// TestDELsThatHangHoldUpNoOthers: of 200 in the queue the first 20 hang. The time that the other
// 180 take is printed.
func TestDELsThatHangHoldUpNoOthers(t *testing.T) {
	release := make(chan struct{})
	f := newFaulty(func(_ context.Context, r *server.Request, _ int) error {
		if strings.HasPrefix(r.ContainerID, "hangs") {
			<-release
		}
		return nil
	})
	s := newServer(t, f, server.Options{})
	server.SetSlow(s, time.Second) // in use it is five seconds
	q := f.queued(t, s, append(names("hangs%d", 20), names("c%d", 180)...)...)
	begin := time.Now()
	done := expect.Value(s.Drain(t.Context(), q.dir))(t)
	expect.Eventually(t, "the end of the others", func() bool { return len(holders(f.Ledger)) == 20 })
	t.Logf("180 DELs beside 20 that hang and keep their slots for 1s: %v", time.Since(begin).Round(time.Millisecond))
	expect.Eventually(t, "those that hang run alone", func() bool { return server.Running(s) == 20 })
	success(t, post(s, "/cni", request("ADD", "c0")), answered)
	close(release)
	expect.Same(t, "ended", len(expect.Await(t, "the end of the Drain", done).Ended), 200)
}
