package cni

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/nsfind"
)

// These limits keep the background work small enough not to slow down calls. One
// scan of all records is a round, and consists of passes. A pass reads records for
// lookFor, starts work on abandoned containers for workFor, and waits up to endsFor
// for the kernel to end the namespaces that it let go. After a pass there is a pause
// of restFor times the time that it read, so that reading takes a hundredth of the
// time, and of workRest times the time that it worked, but at most longestRest. A
// pass stops waiting for a container after stuckFor, for example because an
// executable hangs. While mostStuck containers are stuck, no work is started.
const (
	lookFor     = 2 * time.Millisecond
	workFor     = 100 * time.Millisecond
	endsFor     = 2 * time.Second
	restFor     = 100
	workRest    = 10
	longestRest = 10 * time.Second
	stuckFor    = 2 * time.Second
	mostStuck   = 4
)

// reaper has the state of the search for abandoned containers. Snapshots with the
// same records share a reaper.
//
// Each call that requests a round gets one that begins after the call. Between two
// passes a timer runs, but no goroutine. After the last pass neither does.
type reaper struct {
	mu     sync.Mutex
	begun  bool           // Setup has been called
	busy   bool           // a pass runs, or a timer will start one
	wanted bool           // a new round has been requested
	stuck  int            // containers that passes no longer wait for
	next   time.Time      // the earliest time of the next pass
	round  []string       // record files that this round has not looked at yet
	first  []string       // record files that the next pass begins with
	said   map[string]int // the generation of each record file that was reported
	asked  *snapshot      // the last that requested a round: it has the newest configuration
}

// want requests a round. It reports whether the caller must start a pass, and after
// which time.
func (r *reaper) want(s *snapshot, setup bool) (wait time.Duration, yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun, r.asked = r.begun || setup, s
	if !r.begun || r.busy {
		r.wanted = r.busy
		return 0, false
	}
	r.busy, r.wanted = true, true
	return time.Until(r.next), true
}

// more reports whether another pass must follow, and after which time. If not, the
// next request starts a round.
func (r *reaper) more(failed bool) (wait time.Duration, yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait = time.Until(r.next)
	if r.stuck >= mostStuck {
		wait = max(wait, stuckFor)
	}
	if failed { // the next pass may fail too
		r.round, r.first, r.wanted = nil, nil, false
	}
	r.busy = len(r.round)+len(r.first) > 0 || r.wanted
	return wait, r.busy
}

// reap requests a scan of all records in the background. Plugins run in the recorded
// host namespace, or else in host.
func (s *snapshot) reap(host *hostns.NetNS, setup bool) {
	if s.withoutReaping {
		return
	}
	wait, yes := s.reaper.want(s, setup)
	if !yes {
		return
	}
	own, err := host.Dup()
	if err != nil {
		s.reaper.more(true)
		s.logger.Warn("look for abandoned containers", "error", err)
		return
	}
	s.reaper.passAfter(wait, own)
}

// passAfter makes a pass after a time, and further passes while more reports true.
// Each uses the snapshot that requested a round last.
func (r *reaper) passAfter(wait time.Duration, host *hostns.NetNS) {
	time.AfterFunc(wait, func() {
		s := r.last()
		err := s.pass(host)
		if err != nil {
			s.logger.Warn("look for abandoned containers", "error", err)
		}
		if wait, yes := r.more(err != nil); yes {
			r.passAfter(wait, host)
			return
		}
		if err := host.Close(); err != nil {
			s.logger.Error("close network namespace", "error", err)
		}
	})
}

func (r *reaper) last() *snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

// pass makes one pass.
func (s *snapshot) pass(host *hostns.NetNS) error {
	own, err := host.Dup() // for its sockets
	if err != nil {
		return err
	}
	p := &reaping{snapshot: s, host: own}
	return join(guarded(p.pass), p.close())
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

// reaping is one pass.
type reaping struct {
	*snapshot
	host  *hostns.NetNS
	watch *links.Watch // nil until the pass finds work
}

func (p *reaping) close() error {
	err := p.host.Close()
	if p.watch != nil {
		err = join(err, p.watch.Close())
	}
	return err
}

// pass looks at some records, lets go of the namespaces of abandoned containers, and
// removes the containers whose namespaces end in time.
func (p *reaping) pass() (err error) {
	found, err := p.look()
	if err != nil || len(found) == 0 {
		return err
	}
	if p.watch, err = links.WatchAddresses(p.host.Handle); err != nil {
		return err
	}
	ending := map[string][]int{}
	end := time.Now().Add(workFor)
	for i, file := range found {
		if time.Now().After(end) || p.reaper.clogged() {
			p.reaper.later(found[i:])
			break
		}
		if ends, again := p.tend(file); again {
			ending[file] = ends
		}
	}
	return p.await(ending)
}

// await removes containers as their namespaces end. It leaves those that do not end
// in time to the next pass.
func (p *reaping) await(ending map[string][]int) error {
	defer func() {
		for file := range ending {
			p.reaper.later([]string{file})
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), endsFor)
	defer cancel()
	for {
		for file, ends := range ending {
			left, err := p.host.Lasting(ends)
			if err != nil {
				return err
			}
			if len(left) == 0 && !p.reaper.clogged() {
				delete(ending, file)
				p.tend(file) // if that is not the end, a later round continues
			}
		}
		if len(ending) == 0 {
			return nil
		}
		if err := p.watch.Wait(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// later makes the next pass begin with these record files.
func (r *reaper) later(files []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.first = append(r.first, files...)
}

func (r *reaper) clogged() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stuck >= mostStuck
}

// look reads records for lookFor, and returns the files of those whose containers
// need work.
func (p *reaping) look() (found []string, err error) {
	start := time.Now()
	files, err := p.reaper.files(p.records.Files)
	if err != nil {
		return nil, err
	}
	looked, from := 0, nsfind.View() // of any thread: tendOne judges each container again
	for _, file := range files {
		if looked++; p.isToDo(file, from) {
			found = append(found, file)
		}
		if time.Since(start) > lookFor {
			break
		}
	}
	p.reaper.looked(files[looked:], time.Since(start))
	return found, nil
}

// files returns the record files to look at: those that earlier passes have left,
// and all files if a new round is requested. Only a pass calls it. It does not hold
// the mutex while it lists files, so no call waits for that.
func (r *reaper) files(all func() ([]string, error)) ([]string, error) {
	r.mu.Lock()
	files, round, another := r.first, r.round, len(r.round) == 0 && r.wanted
	r.first = nil
	if another {
		r.wanted = false
	}
	r.mu.Unlock()
	if another {
		var err error
		if round, err = all(); err != nil {
			return nil, err
		}
	}
	if len(files) == 0 {
		return round, nil
	}
	known := make(map[string]bool, len(files))
	for _, file := range files {
		known[file] = true
	}
	for _, file := range round {
		if !known[file] {
			files = append(files, file)
		}
	}
	return files, nil
}

// looked notes the files that the round has not looked at yet, and sets the time of
// the next pass by the time that this pass has read.
func (r *reaper) looked(rest []string, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round = rest
	r.next = time.Now().Add(min(restFor*took, longestRest))
}

// isToDo reports whether a container needs work: it is abandoned, and either its
// namespace has not been let go, or the namespace has ended or may have.
func (p *reaping) isToDo(file, view string) bool {
	rec, err := p.records.LoadFile(file)
	if err != nil || rec == nil || !p.isAbandoned(rec, view) || p.reaper.hasSaid(file, rec.Generation) {
		return false
	}
	if rec.LetGo == nil || rec.Host != p.host.String() || p.kept.keepsFor(rec.ContainerID) {
		return true
	}
	left, err := p.host.Lasting(rec.LetGo.Ends)
	return len(left) == 0 && err == nil
}

// say notes that a container is reported, and reports whether it is for the first
// time.
func (r *reaper) say(file string, generation int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.said == nil {
		r.said = make(map[string]int)
	}
	before, ok := r.said[file]
	r.said[file] = generation
	return !ok || before != generation
}

func (r *reaper) hasSaid(file string, generation int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, ok := r.said[file]
	return ok && before == generation
}

// tend is tendOne on another goroutine. It logs the error, and stops waiting after
// stuckFor.
func (p *reaping) tend(file string) (ends []int, again bool) {
	defer p.reaper.worked(time.Now())
	type outcome struct {
		ends  []int
		again bool
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		err := guarded(func() (err error) {
			o.ends, o.again, err = p.tendOne(file)
			return err
		})
		if err != nil {
			p.logger.Warn("an abandoned container is left for later", "record", file, "error", err)
		}
		done <- o
	}()
	late := time.NewTimer(stuckFor)
	defer late.Stop()
	select {
	case o := <-done:
		return o.ends, o.again
	case <-late.C:
		p.reaper.isStuck(1)
		go func() {
			<-done
			p.reaper.isStuck(-1)
		}()
		return nil, false
	}
}

// worked delays the next pass in proportion to the work since begun.
func (r *reaper) worked(begun time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	wait := max(0, r.next.Sub(now)) + workRest*now.Sub(begun)
	r.next = now.Add(min(wait, longestRest))
}

func (r *reaper) isStuck(more int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stuck += more
}
