package abandoned

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/shared"
)

// These limits keep the background work from slowing down calls. A round looks at all
// records. It reads for lookFor and then pauses for lookRest, so that reading takes a
// twentieth of the time; after work on a container it pauses workRest times as long. The
// next round begins after longestRest at most, or after restFor times the time of reading.
// A round stops waiting for a container after stuckFor, for example because an executable
// hangs. While mostStuck containers are stuck, no work is started.
const (
	lookFor      = 2 * time.Millisecond
	lookRest     = 40 * time.Millisecond
	workRest     = 10
	restFor      = 100
	shortestRest = 100 * time.Millisecond
	longestRest  = 10 * time.Second
	endsFor      = 2 * time.Second
	stuckFor     = 2 * time.Second
	mostStuck    = 4
)

// Search looks for the abandoned containers of one directory of records.
type Search struct {
	*rounds // the process's, or the Search's own
}

var allRounds shared.Values[Alike, rounds]

// Open returns a Search that shares its rounds with those of all Runtimes that are alike.
// Each round reads all records, and a program may have a Runtime for each container.
func Open(a Alike) *Search {
	return &Search{allRounds.Get(a, func() *rounds { return &rounds{} })}
}

// New returns a Search that shares nothing.
func New() *Search { return &Search{rounds: &rounds{}} }

// Request asks for a scan of all records in the background; setup says that Setup
// asks, before which no scan begins. It does not wait. Plugins run in the recorded
// host namespace, or else in host, which the Search opens once more.
func (s *Search) Request(r Runtime, host *hostns.NetNS, setup bool) {
	wait, yes := s.want(r, setup)
	if !yes {
		return
	}
	own, err := host.Dup()
	if err != nil {
		s.more(0, true)
		r.Logger.Warn("look for abandoned containers", "error", err)
		return
	}
	s.roundAfter(wait, own)
}

// roundAfter makes a round after a time, and another while one is wanted. Between two
// rounds a timer runs, but no goroutine.
func (s *Search) roundAfter(wait time.Duration, host *hostns.NetNS) {
	time.AfterFunc(wait, func() {
		r := &round{Runtime: s.begin(), rounds: s.rounds, host: host, rests: true}
		err := r.all()
		if err != nil {
			r.Logger.Warn("look for abandoned containers", "error", err)
		}
		if wait, yes := s.more(r.read, err != nil); yes {
			s.roundAfter(wait, host)
			return
		}
		if err := host.Close(); err != nil {
			r.Logger.Error("close network namespace", "error", err)
		}
	})
}

// Round makes a round in the foreground, without pauses, after the one that is under
// way.
func (s *Search) Round(ctx context.Context, by Runtime, host *hostns.NetNS) error {
	for started := false; !started; {
		if s.idle() { // otherwise want would request another round behind it
			_, started = s.want(by, true)
			continue
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
	for {
		r := &round{Runtime: s.begin(), rounds: s.rounds, host: host}
		err := r.all()
		if _, yes := s.more(0, err != nil); !yes {
			return err
		}
	}
}

// round is one look at all records.
type round struct {
	Runtime
	rounds *rounds
	host   *hostns.NetNS
	rests  bool          // in the background
	read   time.Duration // that reading has taken

	watch  *links.Listener      // nil until there is work
	ending map[*candidate][]int // whose namespaces were let go, and the interfaces that vanish with them
}

// candidate is a container that needs work, as a look at its record found it.
type candidate struct {
	file string
	rec  *record.Record
	by   Containers // the Runtime that tends it
}

// all looks at all records, lets go of the namespaces of abandoned containers, and removes
// the containers whose namespaces end in time.
func (r *round) all() error {
	host, err := r.host.Dup() // for its sockets
	if err != nil {
		return err
	}
	r.host, r.ending = host, make(map[*candidate][]int)
	err = guarded(r.scan)
	if r.watch != nil {
		err = errors.Join(err, r.watch.Close())
	}
	return errors.Join(err, host.Close())
}

// guarded calls f and returns a panic of it as an error. f runs on a goroutine of the
// library, where the program could not recover from the panic.
func guarded(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return f()
}

func (r *round) scan() error {
	files, err := r.Records.Files()
	if err != nil {
		return err
	}
	r.rounds.forget(files)
	view, begun := nsfind.View(), time.Now() // of any thread: Tend judges each container again
	for _, file := range files {
		c := r.needsWork(file, view)
		took := time.Since(begun)
		if c != nil {
			r.read += took
			if err := r.work(c); err != nil {
				return err
			}
			begun = time.Now()
		} else if took > lookFor {
			r.read += took
			r.rest(lookRest)
			begun = time.Now()
		}
	}
	r.read += time.Since(begun)
	return r.await()
}

// rest pauses in the background, to leave the processors to calls. It waits for nothing.
func (r *round) rest(d time.Duration) {
	if r.rests {
		time.Sleep(d)
	}
}

// work does the next step for a container, unless too many are stuck.
func (r *round) work(c *candidate) (err error) {
	if r.rounds.addStuck(0) >= mostStuck {
		r.rounds.again()
		return nil
	}
	if r.watch == nil { // before anything vanishes
		if r.watch, err = links.WatchAddresses(r.host.Handle); err != nil {
			return err
		}
	}
	begun := time.Now()
	if step := r.tend(c); step.Again {
		r.ending[c] = step.Ends
	}
	r.rest(min(workRest*time.Since(begun), longestRest))
	return nil
}

// await removes containers as their namespaces end. Those that do not end in time are left
// to the next round.
func (r *round) await() error {
	ctx, cancel := context.WithTimeout(context.Background(), endsFor)
	defer cancel()
	for len(r.ending) > 0 {
		for c, ends := range r.ending {
			left, err := r.host.Lasting(ends)
			if err != nil {
				return err
			}
			if len(left) == 0 {
				delete(r.ending, c)
				if err := r.work(c); err != nil {
					return err
				}
			}
		}
		if len(r.ending) == 0 {
			break
		}
		if err := r.watch.Wait(ctx); err != nil {
			r.rounds.again()
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
	return nil
}

// needsWork returns the container of a record that needs work: it is abandoned, and either
// its namespace has not been let go, or the namespace has ended or may have. The work is
// for the Runtime of the last request, unless another still keeps the namespace.
func (r *round) needsWork(file, view string) *candidate {
	rec, err := r.Records.LoadFile(file)
	if err != nil || rec == nil || !isFrom(view, rec, r.Owner, r.Boot) || r.rounds.isReported(file, rec.Generation) {
		return nil
	}
	if rec.LetGo == nil || rec.Host != r.host.String() || r.Keeps(rec.ContainerID) {
		return &candidate{file, rec, r.Containers}
	}
	if by := r.rounds.keeper(rec.ContainerID); by != nil {
		return &candidate{file, rec, by}
	}
	if left, err := r.host.Lasting(rec.LetGo.Ends); len(left) > 0 || err != nil {
		return nil
	}
	return &candidate{file, rec, r.Containers}
}

// tend calls Tend on another goroutine. It logs the error, and stops waiting after
// stuckFor.
func (r *round) tend(c *candidate) Step {
	done := make(chan Step, 1)
	go func() {
		var step Step
		err := guarded(func() (err error) {
			step, err = c.by.Tend(c.file, r.host)
			return err
		})
		r.log(c, err)
		done <- step
	}()
	late := time.NewTimer(stuckFor)
	defer late.Stop()
	select {
	case step := <-done:
		return step
	case <-late.C:
		r.rounds.addStuck(1)
		go func() {
			<-done
			r.rounds.addStuck(-1)
		}()
		return Step{}
	}
}

// log reports that a container stays, or is left for later.
func (r *round) log(c *candidate, err error) {
	var none *NoEndError
	switch {
	case err == nil:
	case !errors.As(err, &none):
		r.Logger.Warn("an abandoned container is left for later", "record", c.file, "error", err)
	default: // and is not looked at again until its record changes
		r.rounds.report(c.file, c.rec.Generation)
		r.Logger.Warn("a container is abandoned, and stays as it is",
			"container", c.rec.ContainerID, "path", c.rec.NetNS.Path, "reason", none)
	}
}

// Is reports whether a record describes an abandoned container: all its attachments
// are the owner's, and its path certainly no longer leads to its namespace.
func Is(rec *record.Record, owner, boot string) (is bool) {
	nsfind.WithView(func(view string) { is = isFrom(view, rec, owner, boot) })
	return is
}

// isFrom is Is for a caller with this view. It is false unless the path was recorded
// in the same view.
func isFrom(view string, rec *record.Record, owner, boot string) bool {
	if rec.Boot != boot || boot == "" || view == "" || rec.NetNS.View != view ||
		rec.Warm || rec.NetNS.Ours || rec.NetNS.Ino == 0 {
		return false
	}
	attached := false
	for i := range rec.Attachments {
		if rec.Attachments[i].State == record.Deleted {
			continue
		}
		if rec.OwnerOf(&rec.Attachments[i]) != owner {
			return false
		}
		attached = true
	}
	return attached && nsfind.LeadsAway(rec.NetNS.Path, rec.NetNS.ID())
}
