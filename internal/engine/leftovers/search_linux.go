package leftovers

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/store/record"
)

// These limits keep the background work from slowing down calls. A look reads all records.
// It works for lookFor and then pauses for lookRest, so that reading takes a twentieth of
// the time. The next look begins after restFor times the time that this one took, within
// limits. While mostStuck containers are stuck, for example because an executable hangs, no
// work is started.
const (
	lookFor      = 2 * time.Millisecond
	lookRest     = 40 * time.Millisecond
	restFor      = 5
	shortestRest = 100 * time.Millisecond
	longestRest  = 10 * time.Second
	stuckFor     = 2 * time.Second
	mostStuck    = 4
)

// Search looks for the abandoned containers of one directory of records: those of one owner
// whose recorded path certainly no longer leads to their namespace. It reads the records and
// paces the work; the runtime removes the containers that it finds. Each call that requests a
// look gets one that begins after the call. All calls may be concurrent.
type Search struct {
	mu      sync.Mutex
	begun   bool         // Setup has been called
	waiting bool         // a look will begin
	runtime Runtime      // of the last request: it has the newest configuration
	asked   []Containers // those of all requests since a look began: each may keep namespaces alive

	looking  sync.Mutex     // held during a look
	next     time.Time      // before which no look begins
	reported map[string]int // the generation of each record file that was reported
	stuck    atomic.Int32   // containers that no look waits for any more
}

var searches thread.Shared[string, Search]

// SearchOf returns the Search of all Runtimes of a process that are alike, by all that decides
// which containers they remove with which plugins. Each look reads all records, and a program
// may have a Runtime for each container. An empty text is like no other.
func SearchOf(alike string) *Search {
	if alike == "" {
		return &Search{}
	}
	return searches.Get(alike, func() *Search { return &Search{} })
}

// Request asks for a look at all records in the background; setup says that Setup
// asks, before which no look begins. It does not wait. Plugins run in the recorded
// host namespace, or else in host, which the Search opens once more.
func (s *Search) Request(r Runtime, host *container.Host, setup bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun = s.begun || setup; !s.begun {
		return
	}
	s.runtime = r
	if !slices.Contains(s.asked, r.Containers) {
		s.asked = append(s.asked, r.Containers)
	}
	if s.waiting {
		return
	}
	own, err := host.Dup()
	if err != nil {
		r.Logger.Warn("look for abandoned containers", "error", err)
		return
	}
	s.waiting = true
	time.AfterFunc(0, func() { s.inBackground(own) })
}

// inBackground looks once, after the look that is under way and the rest. Between two looks
// a timer runs, but no goroutine.
func (s *Search) inBackground(host *container.Host) {
	s.looking.Lock()
	defer s.looking.Unlock()
	if wait := time.Until(s.next); wait > 0 {
		time.AfterFunc(wait, func() { s.inBackground(host) })
		return
	}
	l, begun := s.begin(host), time.Now()
	if err := joined.Errors(thread.Try(l.all), host.Close()); err != nil {
		l.Logger.Warn("look for abandoned containers", "error", err)
	}
	s.next = time.Now().Add(restAfter(time.Since(begun)))
}

// restAfter returns the time from the end of a look to the next one.
func restAfter(took time.Duration) time.Duration {
	return min(max(restFor*took, shortestRest), longestRest)
}

// begin begins a look for those that have requested one, and forgets them: a Runtime must
// not be kept from being collected.
func (s *Search) begin(host *container.Host) *look {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &look{Runtime: s.runtime, search: s, asked: s.asked, host: host, rests: true}
	s.runtime, s.asked, s.waiting = Runtime{}, nil, false
	return l
}

// Look looks in the foreground, without pauses, after the look that is under way.
func (s *Search) Look(by Runtime, host *container.Host) error {
	s.looking.Lock()
	defer s.looking.Unlock()
	return thread.Try((&look{Runtime: by, search: s, host: host}).all)
}

// look is one look at all records.
type look struct {
	Runtime
	search *Search
	asked  []Containers
	host   *container.Host
	rests  bool // in the background
}

// all looks at all records, and removes the containers that are abandoned.
func (l *look) all() error {
	files, err := l.Records.Files()
	if err != nil {
		return err
	}
	maps.DeleteFunc(l.search.reported, func(file string, _ int) bool {
		_, exists := slices.BinarySearch(files, file)
		return !exists
	})
	view, begun := container.View(), time.Now() // of any thread: Tend judges each container again
	for _, file := range files {
		if rec, by := l.needsWork(file, view); by != nil {
			l.work(file, rec, by)
		}
		if l.rests && time.Since(begun) > lookFor {
			time.Sleep(lookRest) // a limit on the use of processors; there is no event to wait for
			begun = time.Now()
		}
	}
	return nil
}

// needsWork returns the record in a file, and the Runtime that is to tend the container if
// it needs work: it is abandoned, and either its namespace has not been let go, or the
// namespace has ended or may have. That is the Runtime of the last request, unless another
// still keeps the namespace.
func (l *look) needsWork(file, view string) (*record.Record, Containers) {
	rec, err := l.Records.LoadFile(file)
	if err != nil || rec == nil || !isAbandoned(view, rec, l.Owner, l.Boot) {
		return nil, nil
	}
	if before, ok := l.search.reported[file]; ok && before == rec.Generation {
		return nil, nil
	}
	if rec.LetGo == nil || rec.Host != l.host.String() || l.Keeps(rec.ContainerID) {
		return rec, l.Containers
	}
	if i := slices.IndexFunc(l.asked, func(c Containers) bool { return c.Keeps(rec.ContainerID) }); i >= 0 {
		return rec, l.asked[i]
	}
	if left, err := l.host.Lasting(rec.LetGo.Ends); len(left) > 0 || err != nil {
		return nil, nil
	}
	return rec, l.Containers
}

// work removes a container, unless too many are stuck. It logs why the container stays, or
// is left for later.
func (l *look) work(file string, rec *record.Record, by Containers) {
	if l.search.stuck.Load() >= mostStuck {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stuckFor)
	defer cancel()
	_, err := end(ctx, l.host, &l.search.stuck, func(_ context.Context, host *container.Host) (Step, error) {
		step, err := by.Tend(file, host)
		step.Ended = !step.Again // or it stays, until a later look
		return step, err
	})
	var none *NoEndError
	switch {
	case err == nil:
	case !errors.As(err, &none):
		l.Logger.Warn("an abandoned container is left for later", "record", file, "error", err)
	default: // and is not looked at again until its record changes
		if l.search.reported == nil {
			l.search.reported = make(map[string]int)
		}
		l.search.reported[file] = rec.Generation
		l.Logger.Warn("a container is abandoned, and stays as it is",
			"container", rec.ContainerID, "path", rec.NetNS.Path, "reason", none)
	}
}

// IsAbandoned reports whether a record describes an abandoned container: all its attachments
// are the owner's, and its path certainly no longer leads to its namespace.
func IsAbandoned(rec *record.Record, owner, boot string) (is bool) {
	container.WithView(func(view string) { is = isAbandoned(view, rec, owner, boot) })
	return is
}

// isAbandoned is IsAbandoned for a caller with this view. It is false unless the path was
// recorded in the same view.
func isAbandoned(view string, rec *record.Record, owner, boot string) bool {
	if rec.Boot != boot || boot == "" || view == "" || rec.NetNS.View != view ||
		rec.Warm || rec.NetNS.Ours || rec.NetNS.Ino == 0 {
		return false
	}
	return !rec.IsEmpty() && rec.IsOnly(owner) && container.LeadsAway(rec.NetNS.Path, rec.NetNS.ID())
}

// EndWithin limits the time for which End waits. Tests on a busy machine allow it more.
var EndWithin = time.Second

// mostSteps is the number of steps of End: a removal that was begun is finished, the
// namespace is let go, and the container is removed. One is to spare.
const mostSteps = 4

// End removes one abandoned container now, for a caller that needs something of it. It
// waits until the namespace that was let go has ended, and for a second in all; a plugin
// that takes longer goes on by itself. It returns false if the container stays: it is in
// use, or cannot be judged, or is not removed yet.
func End(ctx context.Context, host *container.Host, tend Tend) (ended bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, EndWithin)
	defer cancel()
	return end(ctx, host, &atomic.Int32{}, tend)
}

// end is End with another limit. It counts a step as stuck that takes longer.
func end(ctx context.Context, host *container.Host, stuck *atomic.Int32, tend Tend) (ended bool, err error) {
	for range mostSteps {
		step, err := tend.within(ctx, host, stuck)
		if step.Ended || err != nil {
			return step.Ended, err
		}
		if !step.Again {
			continue // a removal was finished, or it stays, as the next steps find too
		}
		vanished, err := host.Until(ctx, func() (bool, error) {
			left, err := host.Lasting(step.Ends)
			return len(left) == 0, err
		})
		if !vanished || err != nil {
			return false, err
		}
	}
	return false, nil
}

// within is one step on another goroutine, for which it does not wait when ctx ends.
func (tend Tend) within(ctx context.Context, host *container.Host, stuck *atomic.Int32) (Step, error) {
	own, err := host.Dup()
	if err != nil {
		return Step{}, err
	}
	type outcome struct {
		step Step
		err  error
	}
	done := make(chan outcome, 1)
	stuck.Add(1)
	go func() {
		defer stuck.Add(-1)
		var o outcome
		o.err = thread.Try(func() (err error) {
			o.step, err = tend(ctx, own)
			return err
		})
		done <- o
	}()
	select {
	case o := <-done:
		return o.step, o.err
	case <-ctx.Done():
		return Step{}, context.Cause(ctx)
	}
}
