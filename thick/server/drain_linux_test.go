package server_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost/servertest"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/thick/internal/delqueue"
	"github.com/embedcni/cni/thick/server"
)

func newLedger() *servertest.Ledger { return servertest.NewLedger(addressed("10.1.0.7/16")) }

// holders returns the containers with an attachment.
func holders(l *servertest.Ledger) (names []string) {
	all, _ := l.Attachments(context.Background())
	for _, a := range all {
		names = append(names, a.ContainerID)
	}
	return names
}

// queue is a directory of DELs.
type queue struct {
	*delqueue.Queue
	dir string
}

func newQueue(t *testing.T) *queue {
	dir := filepath.Join(t.TempDir(), "dels")
	return &queue{delqueue.Open(dir), dir}
}

// put queues the DEL of a container that is asked for now.
func (q *queue) put(t *testing.T, id string, changes ...func(*delqueue.Entry)) *delqueue.Entry {
	t.Helper()
	e := &delqueue.Entry{
		Env:    map[string]string{"CNI_COMMAND": "DEL", "CNI_CONTAINERID": id, "CNI_IFNAME": "eth0", "CNI_NETNS": "/run/netns/" + id},
		Config: []byte(config), Network: "podnet", At: expect.Value(delqueue.Now())(t),
	}
	for _, change := range changes {
		change(e)
	}
	expect.NoError(t, q.Put(e))
	return e
}

// left returns how many entries there are.
func (q *queue) left(t *testing.T) int {
	t.Helper()
	return len(expect.Value(q.List())(t))
}

func drain(t *testing.T, s *server.Server, q *queue) *server.DrainReport {
	t.Helper()
	return expect.Await(t, "the end of the Drain", expect.Value(s.Drain(t.Context(), q.dir))(t))
}

// wantDrained compares the containers in a report.
func wantDrained(t *testing.T, r *server.DrainReport, ended, dropped, failed []string) {
	t.Helper()
	names := func(dels []server.QueuedDel) (names []string) {
		for _, d := range dels {
			names = append(names, d.ContainerID)
		}
		return names
	}
	expect.Same(t, "ended", names(r.Ended), ended)
	expect.Same(t, "dropped", names(r.Dropped), dropped)
	expect.Same(t, "failed", names(r.Failed), failed)
}

func attach(t *testing.T, s *server.Server, id string) {
	t.Helper()
	success(t, post(s, "/cni", request("ADD", id)), answered)
}

func TestDrainEndsWhatWasAttachedBefore(t *testing.T) {
	l, q := newLedger(), newQueue(t)
	s := newServer(t, l, server.Options{})
	wantDrained(t, drain(t, s, q), nil, nil, nil) // there is no queue yet
	for _, id := range []string{"c1", "c2", "stays"} {
		attach(t, s, id)
	}
	q.put(t, "c1")
	q.put(t, "c2")
	q.put(t, "never")
	attach(t, s, "later")
	r := drain(t, s, q)
	wantDrained(t, r, []string{"c1", "c2"}, []string{"never"}, nil)
	expect.Same(t, "reason", r.Dropped[0].Err.Error(), "the interface is not attached")
	expect.Same(t, "attached", holders(l), []string{"stays", "later"})
	expect.Same(t, "left", q.left(t), 0)
	wantDrained(t, drain(t, s, q), nil, nil, nil)
}

// TestDrainDropsWhatIsNotMeant: each reason.
func TestDrainDropsWhatIsNotMeant(t *testing.T) {
	own := expect.Value(netns.CurrentID())(t)
	for _, c := range []struct {
		name   string
		put    func(*delqueue.Entry)
		change func(*server.Attachment)
		why    string
	}{
		{"attached anew", func(e *delqueue.Entry) { e.At.Nanos -= int64(time.Hour) }, nil, "attached after the DEL"},
		{"another interface", func(e *delqueue.Entry) { e.Env["CNI_IFNAME"] = "net1" }, nil, "not attached"},
		{"another network", func(e *delqueue.Entry) {
			e.Config, e.Network = []byte(strings.ReplaceAll(config, "podnet", "other")), "other"
		}, nil, "not attached"},
		{"attached by an earlier version", nil, func(a *server.Attachment) { a.Began = "" }, "not known when"},
		{"attached by a later version", nil, func(a *server.Attachment) { a.Began = "?" }, "not a moment"},
		{"in another namespace", func(e *delqueue.Entry) { e.NetNS = netns.ID{Dev: own.Dev, Ino: own.Ino + 1} },
			func(a *server.Attachment) { a.NetNS = "/proc/thread-self/ns/net" }, "another namespace"},
		{"after a reboot", func(e *delqueue.Entry) { e.At.Boot = "before" }, nil, "after a reboot"},
	} {
		l, q := newLedger(), newQueue(t)
		s := newServer(t, l, server.Options{})
		attach(t, s, "c1")
		if c.put == nil {
			c.put = func(*delqueue.Entry) {}
		}
		if c.change != nil {
			c.change(&l.Attached[0])
		}
		q.put(t, "c1", c.put)
		r := drain(t, s, q)
		wantDrained(t, r, nil, []string{"c1"}, nil)
		if len(r.Dropped) == 1 && !strings.Contains(r.Dropped[0].Err.Error(), c.why) {
			t.Errorf("%s: %v", c.name, r.Dropped[0].Err)
		}
		expect.Same(t, c.name, holders(l), []string{"c1"})
		expect.Same(t, "left", q.left(t), 0)
	}
}

// TestDrainKeepsWhatFails for the next time, and goes on with the others. A DEL that is refused, and
// has nothing to end, is dropped: nobody could ever end it.
func TestDrainKeepsWhatFails(t *testing.T) {
	l, q := newLedger(), newQueue(t)
	s := newServer(t, l, server.Options{})
	attach(t, s, "c1")
	attach(t, s, "c2")
	attach(t, s, "c3")
	q.put(t, "c1")
	q.put(t, "c2")
	q.put(t, "c3", func(e *delqueue.Entry) { e.Config = []byte(`{"name": "podnet", "cniVersion": "7.0.0"}`) })
	attach(t, s, "c4")
	q.put(t, "c4", func(e *delqueue.Entry) { e.Env["CNI_COMMAND"] = "ADD" })
	q.put(t, "c/5")
	busy := types.NewError(types.ErrTryAgainLater, "busy", "")
	usual := l.Do
	l.Do = func(ctx context.Context, verb string, r *server.Request) (types.Result, error) {
		if r.ContainerID == "c2" {
			return nil, busy
		}
		return usual(ctx, verb, r)
	}
	r := drain(t, s, q)
	wantDrained(t, r, []string{"c1"}, []string{"c/5"}, []string{"c2", "c3", "c4"})
	for i, why := range []string{"busy", "incompatible CNI versions", "ADD instead of DEL"} {
		if !strings.Contains(r.Failed[i].Err.Error(), why) {
			t.Errorf("%s: %v, want %q", r.Failed[i].ContainerID, r.Failed[i].Err, why)
		}
	}
	expect.Is(t, r.Failed[0].Err, busy)
	expect.Same(t, "left", q.left(t), 3)
	l.Do = usual
	wantDrained(t, drain(t, s, q), []string{"c2"}, nil, []string{"c3", "c4"})
}

// TestDrainDropsWhatFailsOnceItIsRecovered: the DEL's interface is no longer on record.
func TestDrainDropsWhatFailsOnceItIsRecovered(t *testing.T) {
	l, q := newLedger(), newQueue(t)
	s := newServer(t, l, server.Options{})
	attach(t, s, "c1")
	q.put(t, "c1")
	l.Do = func(context.Context, string, *server.Request) (types.Result, error) { return nil, errors.New("no") }
	for range 2 {
		wantDrained(t, drain(t, s, q), nil, nil, []string{"c1"})
	}
	l.Attached = nil
	wantDrained(t, drain(t, s, q), nil, []string{"c1"}, nil)
	expect.Same(t, "left", q.left(t), 0)
}

// TestDrainOfADELWhosePathLeadsElsewhere: the Backend is not told the path.
func TestDrainOfADELWhosePathLeadsElsewhere(t *testing.T) {
	own := expect.Value(netns.CurrentID())(t)
	for name, c := range map[string]struct {
		was  netns.ID
		path string
		want string
	}{
		"the same namespace": {own, "/proc/thread-self/ns/net", "/proc/thread-self/ns/net"},
		"a later namespace":  {netns.ID{}, "/proc/thread-self/ns/net", ""},
		"none":               {netns.ID{}, "/run/netns/gone", "/run/netns/gone"},
		"none any more":      {own, "/run/netns/gone", "/run/netns/gone"},
	} {
		l, q := newLedger(), newQueue(t)
		s := newServer(t, l, server.Options{})
		attach(t, s, "c1")
		q.put(t, "c1", func(e *delqueue.Entry) { e.NetNS, e.Env["CNI_NETNS"] = c.was, c.path })
		wantDrained(t, drain(t, s, q), []string{"c1"}, nil, nil)
		expect.Same(t, name, l.Last().Request.NetNS, c.want)
	}
}

// TestDrainRunsContainersInParallel, and the DELs of one in their order.
func TestDrainRunsContainersInParallel(t *testing.T) {
	l, q := newLedger(), newQueue(t)
	s := newServer(t, l, server.Options{Limits: server.Limits{Concurrent: 2}})
	for _, id := range []string{"c1", "c2", "c3"} {
		attach(t, s, id)
		success(t, post(s, "/cni", request("ADD", id, variable("CNI_IFNAME", "net1"))), answered)
		q.put(t, id, func(e *delqueue.Entry) { e.Env["CNI_IFNAME"] = "net1" })
		q.put(t, id)
	}
	usual := l.Do
	var mu sync.Mutex
	running, most := 0, 0
	both := make(chan struct{})
	order := map[string][]string{}
	l.Do = func(ctx context.Context, verb string, r *server.Request) (types.Result, error) {
		mu.Lock()
		running++
		if most = max(most, running); running == 2 && len(order) < 2 {
			close(both)
		}
		order[r.ContainerID] = append(order[r.ContainerID], r.IfName)
		mu.Unlock()
		expect.Await(t, "another container", both)
		defer func() { mu.Lock(); running--; mu.Unlock() }()
		return usual(ctx, verb, r)
	}
	r := drain(t, s, q)
	if len(r.Ended) != 6 || most != 2 || len(holders(l)) != 0 {
		t.Errorf("%d ended, %d at once, left %v", len(r.Ended), most, holders(l))
	}
	for id, names := range order {
		expect.Same(t, id, names, []string{"net1", "eth0"})
	}
}

// TestDrainHasLimits: a DEL that hangs ends at the deadline, and all do with the context.
func TestDrainHasLimits(t *testing.T) {
	l, q := newLedger(), newQueue(t)
	for _, id := range []string{"c1", "c2"} {
		attach(t, newServer(t, l, server.Options{}), id)
		q.put(t, id)
	}
	s := newServer(t, l, server.Options{Limits: server.Limits{Deadline: 100 * time.Millisecond, Concurrent: 1}})
	usual := l.Do
	ctx, cancel := context.WithCancelCause(t.Context())
	l.Do = func(ctx context.Context, verb string, r *server.Request) (types.Result, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	r := drain(t, s, q)
	wantDrained(t, r, nil, nil, []string{"c1", "c2"})
	s = newServer(t, l, server.Options{Limits: server.Limits{Concurrent: 1}})
	stop := errors.New("stop")
	l.Do = func(ctx context.Context, verb string, r *server.Request) (types.Result, error) {
		cancel(stop)
		return usual(ctx, verb, r)
	}
	r = expect.Await(t, "the end of the Drain", expect.Value(s.Drain(ctx, q.dir))(t))
	if len(r.Ended) != 1 || len(r.Failed) != 1 {
		t.Fatalf("%+v", r)
	}
	expect.Is(t, r.Failed[0].Err, stop)
	expect.Same(t, "left", q.left(t), 1)
}

// TestDrainReportsWhatItCannotRead, and carries the rest out.
func TestDrainReportsWhatItCannotRead(t *testing.T) {
	l, q := newLedger(), newQueue(t)
	s := newServer(t, l, server.Options{})
	attach(t, s, "c1")
	q.put(t, "c1")
	expect.NoError(t, os.WriteFile(filepath.Join(q.dir, "x.del"), []byte("{"), 0o600))
	r := drain(t, s, q)
	wantDrained(t, r, []string{"c1"}, nil, nil)
	expect.Is(t, r.Unreadable, delqueue.ErrBad)
	r = drain(t, s, q)
	expect.Same(t, "a second report", r.Unreadable, nil)
}

// TestDrainGoesOnBesideAFileThatCannotBeRead, also if that is the only one: a daemon that did
// not start because of it would never start.
func TestDrainGoesOnBesideAFileThatCannotBeRead(t *testing.T) {
	l, q := newLedger(), newQueue(t)
	s := newServer(t, l, server.Options{})
	unreadable := filepath.Join(q.dir, "x.del")
	expect.NoError(t, os.Mkdir(q.dir, 0o700), os.Symlink(unreadable, unreadable)) // which root cannot open either
	for range 2 {
		r := drain(t, s, q)
		wantDrained(t, r, nil, nil, nil)
		expect.Is(t, r.Unreadable, syscall.ELOOP)
	}
	attach(t, s, "c1")
	q.put(t, "c1")
	r := drain(t, s, q)
	wantDrained(t, r, []string{"c1"}, nil, nil)
	expect.Is(t, r.Unreadable, syscall.ELOOP)
	expect.NoError(t, os.Remove(unreadable))
	expect.Same(t, "left", q.left(t), 0)
}

func TestDrainFails(t *testing.T) {
	q := newQueue(t)
	if r, err := newServer(t, &backend{}, server.Options{}).Drain(t.Context(), q.dir); err == nil || !strings.Contains(err.Error(), "Ledger") {
		t.Errorf("without a Ledger: %v, %v", r, err)
	}
	l := newLedger()
	s := newServer(t, l, server.Options{})
	attach(t, s, "c1")
	q.put(t, "c1")
	l.Failing = errors.New("no records")
	r := drain(t, s, q)
	wantDrained(t, r, nil, nil, []string{"c1"})
	expect.Is(t, r.Failed[0].Err, l.Failing)
	l.Failing = nil
	expect.NoError(t, os.Chmod(q.dir, 0o777))
	if r, err := s.Drain(t.Context(), q.dir); r != nil || !errors.Is(err, delqueue.ErrShared) {
		t.Errorf("a shared queue: %v, %v", r, err)
	}
	expect.Same(t, "attached", holders(l), []string{"c1"})
}
