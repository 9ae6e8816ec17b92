package cni

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/links"
)

// What the background may take: it is to be felt by no call. A pass reads records
// for lookFor, begins to let go for workFor, and waits for endsFor until the kernel
// has ended what it let go. The next one, of the same round through all records or
// another, comes restFor times as long after it as it has read, so that reading
// takes a hundredth of the time, and workRest times as long as it has worked, at
// most longestRest. A container that takes longer than stuckFor, since
// an executable hangs, is waited for no longer, and while there are mostStuck of
// them nothing more is begun.
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

// reaper is the state of the search for abandoned containers. Snapshots with the
// same records share one.
//
// Each call that wants a round gets one that begins after it did. In between two
// passes there is a timer, and no goroutine; after the last one there is nothing.
type reaper struct {
	mu     sync.Mutex
	begun  bool // there has been a Setup
	busy   bool // a round is under way, or is to begin
	wanted bool // another has been asked for since it began
	stuck  int
	next   time.Time      // when there may be another pass
	round  []string       // the files of the records that this round has still to look at
	first  []string       // files of containers that a pass has not come to the end with
	said   map[string]int // generations of records that were reported, by file
	asked  *snapshot      // the last that wanted a round: Load may have changed what runs
}

// want reports whether there is a round to be begun, which is the caller's to do,
// and after which time.
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

// more reports whether there is to be another pass, and after which time. If not,
// the next call begins a round.
func (r *reaper) more(failed bool) (wait time.Duration, yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait = time.Until(r.next)
	if r.stuck >= mostStuck {
		wait = max(wait, stuckFor)
	}
	if failed { // as it may be once more
		r.round, r.first, r.wanted = nil, nil, false
	}
	r.busy = len(r.round)+len(r.first) > 0 || r.wanted
	return wait, r.busy
}

// reap has all records looked at in the background, soon. Plugins run in host, or
// where the record says.
func (s *snapshot) reap(host *hostNetNS, setup bool) {
	if s.withoutReaping {
		return
	}
	wait, yes := s.reaper.want(s, setup)
	if !yes {
		return
	}
	own, err := host.dup()
	if err != nil {
		s.reaper.more(true)
		s.logger.Warn("look for abandoned containers", "error", err)
		return
	}
	s.reaper.passAfter(wait, own)
}

// passAfter makes a pass after a time, and further ones as long as there is more to
// do, with what was loaded last.
func (r *reaper) passAfter(wait time.Duration, host *hostNetNS) {
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
		if err := host.close(); err != nil {
			s.logger.Error("close network namespace", "error", err)
		}
	})
}

func (r *reaper) last() *snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

// pass makes one.
func (s *snapshot) pass(host *hostNetNS) error {
	own, err := host.dup() // for its sockets
	if err != nil {
		return err
	}
	p := &reaping{snapshot: s, host: own}
	return join(guarded(p.pass), p.close())
}

// guarded makes an error of a panic, which would end the program: nobody has
// called f who could recover.
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
	host  *hostNetNS
	watch *links.Watch // nil before anything is let go
}

func (p *reaping) close() error {
	err := p.host.close()
	if p.watch != nil {
		err = join(err, p.watch.Close())
	}
	return err
}

// pass looks at some records, lets go of those containers that are abandoned, and
// removes those whose namespaces end in time.
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

// await removes containers as their namespaces end. What has not ended in time is for
// the next pass.
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
			left, err := p.host.lasting(ends)
			if err != nil {
				return err
			}
			if len(left) == 0 && !p.reaper.clogged() {
				delete(ending, file)
				p.tend(file) // should it not be over, a later round finds out
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

// later has the next pass begin with the containers of these files.
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

// look returns the files of records of containers for which there is something to
// do, out of as many as can be read in lookFor.
func (p *reaping) look() (found []string, err error) {
	start := time.Now()
	files, err := p.reaper.files(p.records.Files)
	if err != nil {
		return nil, err
	}
	looked, from := 0, view() // of whichever thread: what is found is judged again
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

// files returns what there is to look at: what passes before have left, or all, if
// that is wanted. It is for the pass alone, and holds up no call that asks whether
// there is to be one.
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

// looked notes what the round has still to look at, and how long the pass has
// read.
func (r *reaper) looked(rest []string, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round = rest
	r.next = time.Now().Add(min(restFor*took, longestRest))
}

// isToDo reports whether there is anything to do about a container: it is
// abandoned, and has not been let go, or what was let go has ended, or may have.
func (p *reaping) isToDo(file, view string) bool {
	rec, err := p.records.LoadFile(file)
	if err != nil || rec == nil || !p.isAbandoned(rec, view) || p.reaper.hasSaid(file, rec.Generation) {
		return false
	}
	if rec.LetGo == nil || rec.Host != p.host.String() || p.kept.keepsFor(rec.ContainerID) {
		return true
	}
	left, err := p.host.lasting(rec.LetGo.Ends)
	return len(left) == 0 && err == nil
}

// say reports whether a container has not been reported before.
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

// tend does what is to be done about one container, and reports whether there will
// be more to do when the interfaces that it returns have vanished.
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

// worked has the next pass come later for the work that has begun then.
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
