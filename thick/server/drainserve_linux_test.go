package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/internal/testhost/servertest"
	"github.com/embedcni/cni/thick/internal/delqueue"
	"github.com/embedcni/cni/thick/server"
)

// strict is a Ledger that refuses the ADD of what is attached, as a Runtime does. Its calls
// for some containers wait.
type strict struct {
	*servertest.Ledger
	entered chan string   // "DEL c1", of those that wait
	release chan struct{} // closed when they may go on
	waits   func(verb, id string) bool
}

func newStrict(waits func(verb, id string) bool) *strict {
	s := &strict{newLedger(), make(chan string, 100), make(chan struct{}), waits}
	s.Do = func(_ context.Context, verb string, r *server.Request) (types.Result, error) {
		if verb == "ADD" {
			found, err := s.Attachments(context.Background(), r.ContainerID)
			if err != nil || len(found) > 0 {
				return nil, types.NewError(999, "attached already", "")
			}
		}
		if s.waits(verb, r.ContainerID) {
			s.entered <- verb + " " + r.ContainerID
			<-s.release
		}
		return addressed("10.1.0.7/16"), s.Keep(verb, r)
	}
	return s
}

// TestDrainBesideServing: while a DEL hangs, the other DELs end and clients are served. An ADD
// of the same container waits, and is not ended.
func TestDrainBesideServing(t *testing.T) {
	hangs := true // the first DEL of c1 alone
	var mu sync.Mutex
	b := newStrict(func(verb, id string) bool {
		mu.Lock()
		defer mu.Unlock()
		waits := verb == "DEL" && id == "c1" && hangs
		hangs = hangs && !waits
		return waits
	})
	q := newQueue(t)
	d := serve(t, b, server.Options{Limits: server.Limits{Concurrent: 1}})
	server.SetSlow(d.Server, 10*time.Millisecond)
	for _, id := range []string{"c1", "c2", "c3"} {
		d.wants(t, "/cni", request("ADD", id), 200)
		q.put(t, id)
	}
	done := expect.Value(d.Drain(t.Context(), q.dir))(t)
	expect.Same(t, "hangs", expect.Await(t, "the DEL that hangs", b.entered), "DEL c1")
	expect.Eventually(t, "the other DELs end", func() bool { return slices.Equal(holders(b.Ledger), []string{"c1"}) })
	d.wants(t, "/cni", request("ADD", "c2"), 200) // attached anew
	d.wants(t, "/cni", request("ADD", "c4"), 200)
	d.wants(t, "/cni", request("DEL", "c4"), 200)
	again := d.dial(t)
	send(t, again, "/cni", request("ADD", "c1"))
	expect.Eventually(t, "the ADD of c1 waits", func() bool { return server.Waiting(d.Server) == 1 })
	gone := d.dial(t) // a client that leaves meanwhile
	send(t, gone, "/cni", request("ADD", "c1"))
	expect.Eventually(t, "another ADD of c1 waits", func() bool { return server.Waiting(d.Server) == 2 })
	gone.Close()
	expect.Eventually(t, "it has left", func() bool { return server.Waiting(d.Server) == 1 })
	close(b.release)
	wantAnswer(t, again, 200)
	wantDrained(t, expect.Await(t, "the end of the Drain", done), []string{"c1", "c2", "c3"}, nil, nil)
	expect.Same(t, "attached", holders(b.Ledger), []string{"c2", "c1"})
	expect.Same(t, "left", q.left(t), 0)
}

// TestADrainWaitsForAnADDThatIsUnderWay: it is later than the DEL, so this is dropped.
func TestADrainWaitsForAnADDThatIsUnderWay(t *testing.T) {
	b := newStrict(func(verb, id string) bool { return verb == "ADD" && id == "c1" })
	q := newQueue(t)
	d := serve(t, b, server.Options{})
	q.put(t, "c1")
	conn := d.dial(t)
	send(t, conn, "/cni", request("ADD", "c1"))
	expect.Await(t, "the ADD", b.entered)
	q.put(t, "c2")
	d.wants(t, "/cni", request("ADD", "c2"), 200)
	done := expect.Value(d.Drain(t.Context(), q.dir))(t)
	expect.Eventually(t, "the other DEL is dropped", func() bool { return q.left(t) == 1 })
	close(b.release)
	wantAnswer(t, conn, 200)
	r := expect.Await(t, "the end of the Drain", done)
	wantDrained(t, r, nil, []string{"c1", "c2"}, nil)
	for _, one := range r.Dropped {
		expect.Says(t, one.ContainerID, one.Err, "attached after the DEL")
	}
	expect.Same(t, "attached", holders(b.Ledger), []string{"c2", "c1"})
}

// TestAShutdownBesideADrain: the DEL that runs may end, an ADD that waits for it is refused, and
// a DEL that waits for a slot stays in the queue.
func TestAShutdownBesideADrain(t *testing.T) {
	b := newStrict(func(verb, id string) bool { return verb == "DEL" })
	q := newQueue(t)
	d := serve(t, b, server.Options{Limits: server.Limits{Concurrent: 1}})
	for _, id := range []string{"c1", "c2"} {
		d.wants(t, "/cni", request("ADD", id), 200)
		q.put(t, id)
	}
	done := expect.Value(d.Drain(t.Context(), q.dir))(t)
	_, runs, _ := strings.Cut(expect.Await(t, "a DEL", b.entered), " ")
	waits := map[string]string{"c1": "c2", "c2": "c1"}[runs]
	expect.Eventually(t, "the other DEL waits", func() bool { return server.Lined(d.Server) == 1 })
	conn := d.dial(t)
	send(t, conn, "/cni", request("ADD", runs))
	expect.Eventually(t, "the ADD waits", func() bool { return server.Waiting(d.Server) == 1 })
	shut := make(chan error, 1)
	go func() { shut <- d.Shutdown(context.Background()) }()
	wantAnswer(t, conn, 503, "shutting down")
	close(b.release)
	expect.NoError(t, expect.Await(t, "the end of the Shutdown", shut))
	r := expect.Await(t, "the end of the Drain", done)
	wantDrained(t, r, []string{runs}, nil, []string{waits})
	expect.Says(t, "the reason", r.Failed[0].Err, "shutting down")
	expect.Same(t, "left", q.left(t), 1)
}

// TestAShutdownThatGivesUpEndsADrain: its DELs stay in the queue.
func TestAShutdownThatGivesUpEndsADrain(t *testing.T) {
	b, q := newLedger(), newQueue(t)
	d := serve(t, b, server.Options{})
	attach(t, d.Server, "c1")
	q.put(t, "c1")
	entered := make(chan string, 2)
	b.Do = func(ctx context.Context, _ string, r *server.Request) (types.Result, error) {
		entered <- r.ContainerID
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	done := expect.Value(d.Drain(t.Context(), q.dir))(t)
	expect.Await(t, "the DEL", entered)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	err := d.Shutdown(ctx)
	expect.Says(t, "Shutdown", err, "1 calls were cancelled, 0 of them have not ended: enough")
	r := expect.Await(t, "the end of the Drain", done)
	wantDrained(t, r, nil, nil, []string{"c1"})
	expect.Same(t, "left", q.left(t), 1)
}

// exchange sends a request, and returns the status of the answer.
func exchange(conn net.Conn, body []byte) (status int, err error) {
	defer conn.Close()
	if _, err := conn.Write(append([]byte(head("/cni", len(body))), body...)); err != nil {
		return 0, err
	}
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	return r.StatusCode, r.Body.Close()
}

// TestNoNewerADDIsEnded: of many containers, whose earlier attachment has a DEL in the queue,
// and whose ADDs are there before the daemon serves. None of them is refused, although the queue
// is drained twice.
func TestNoNewerADDIsEnded(t *testing.T) {
	b, q := newStrict(func(string, string) bool { return false }), newQueue(t)
	s := newServer(t, b, server.Options{})
	const n = 60
	began := map[string]string{}
	for i := range n {
		id := fmt.Sprint("c", i)
		attach(t, s, id)
		q.put(t, id)
		began[id] = expect.Value(b.Attachments(t.Context(), id))(t)[0].Began
	}
	path := filepath.Join(t.TempDir(), "multus.sock")
	l := expect.Value(s.Listen(path))(t)
	asked := make(chan error, 1)
	go func() {
		asked <- testhost.InParallel(n, func(i int) error {
			conn, err := net.Dial("unix", path)
			if err != nil {
				return err
			}
			status, err := exchange(conn, request("ADD", fmt.Sprint("c", i)))
			if err == nil && status != 200 {
				err = fmt.Errorf("the ADD of c%d is refused with status %d", i, status)
			}
			return err
		})
	}()
	first, second := expect.Value(s.Drain(t.Context(), q.dir))(t), expect.Value(s.Drain(t.Context(), q.dir))(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	expect.NoError(t, expect.Await(t, "the ADDs", asked))
	for _, done := range []<-chan *server.DrainReport{first, second} {
		expect.Empty(t, "failed", expect.Await(t, "the end of a Drain", done).Failed)
	}
	expect.Same(t, "left", q.left(t), 0)
	for id, before := range began {
		found := expect.Value(b.Attachments(t.Context(), id))(t)
		if len(found) != 1 || found[0].Began == before {
			t.Errorf("%s: %v, attached before at %s", id, found, before)
			continue
		}
		then, now := expect.Value(delqueue.ParseMoment(before))(t), expect.Value(delqueue.ParseMoment(found[0].Began))(t)
		expect.That(t, now.Nanos > then.Nanos, "%s: %v is not later than %v", id, now, then)
	}
	expect.NoError(t, s.Shutdown(t.Context()))
	expect.Is(t, expect.Await(t, "the end of Serve", served), http.ErrServerClosed)
}
