package abandoned

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/record"
)

// These limits keep the background work small enough not to slow down calls. One
// scan of all records is a round, and consists of passes. A pass reads records for
// lookFor, starts work on abandoned containers for workFor, and waits up to endsFor
// for the kernel to end the namespaces that it let go. After a pass there is a pause
// of restFor times the time that it read, so that reading takes a hundredth of the
// time, and of workRest times the time that it worked; but at most longestRest, and
// at least shortestRest, so that calls in quick succession share a round. A
// pass stops waiting for a container after stuckFor, for example because an
// executable hangs. While mostStuck containers are stuck, no work is started.
const (
	lookFor      = 2 * time.Millisecond
	workFor      = 100 * time.Millisecond
	endsFor      = 2 * time.Second
	restFor      = 100
	workRest     = 10
	shortestRest = 100 * time.Millisecond
	longestRest  = 10 * time.Second
	stuckFor     = 2 * time.Second
	mostStuck    = 4
)

// rounds paces the passes.
//
// Each call that requests a round gets one that begins after the call. Between two
// passes a timer runs, but no goroutine. After the last pass neither does.
type rounds struct {
	mu       sync.Mutex
	begun    bool           // Setup has been called
	busy     bool           // a pass runs, or a timer will start one
	wanted   bool           // a new round has been requested
	stuck    int            // containers that passes no longer wait for
	next     time.Time      // the earliest time of the next pass
	round    []string       // record files that this round has not looked at yet
	first    []string       // record files that the next pass begins with
	reported map[string]int // the generation of each record file that was reported
	runtime  Runtime        // of the last request: it has the newest configuration
	// The Runtimes that have requested this round, and the next one. Each may keep
	// namespaces alive.
	asked, asking map[Containers]struct{}
}

// want requests a round. It reports whether the caller must start a pass, and after
// which time.
func (r *rounds) want(by Runtime, setup bool) (wait time.Duration, yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun = r.begun || setup; !r.begun {
		return 0, false
	}
	if r.asking == nil {
		r.asking = make(map[Containers]struct{})
	}
	r.asking[by.Containers] = struct{}{}
	r.runtime, r.wanted = by, true
	if r.busy {
		return 0, false
	}
	r.busy = true
	return time.Until(r.next), true
}

// more reports whether another pass must follow, and after which time. If not, the
// next request starts a round.
func (r *rounds) more(failed bool) (wait time.Duration, yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait = time.Until(r.next)
	if r.stuck >= mostStuck {
		wait = max(wait, stuckFor)
	}
	if failed { // the next pass may fail too
		r.round, r.first, r.wanted = nil, nil, false
	}
	if r.busy = len(r.round)+len(r.first) > 0 || r.wanted; !r.busy { // otherwise the Search would keep its Runtimes from being collected
		r.runtime, r.asked, r.asking = Runtime{}, nil, nil
	}
	return wait, r.busy
}

// idle reports whether a request would start a pass.
func (r *rounds) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.busy
}

// last returns the runtime that requested a round last.
func (r *rounds) last() Runtime {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runtime
}

// files returns the record files to look at: those that earlier passes have left,
// and all files if a new round is requested. Only a pass calls it. It does not hold
// the mutex while it lists files, so no call waits for that.
func (r *rounds) files(all func() ([]string, error)) ([]string, error) {
	r.mu.Lock()
	files, round, another := r.first, r.round, len(r.round) == 0 && r.wanted
	r.first = nil
	if another {
		r.wanted = false
		r.asked, r.asking = r.asking, nil
	}
	r.mu.Unlock()
	if another {
		var err error
		if round, err = all(); err != nil {
			return nil, err
		}
		r.forget(round)
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

// keeper returns a Runtime that has requested this round and keeps the namespace of a
// container alive, or nil.
func (r *rounds) keeper(id record.ID) Containers {
	r.mu.Lock()
	asked := r.asked // it is never changed: requests go to asking
	r.mu.Unlock()
	for c := range asked {
		if c.Keeps(id) {
			return c
		}
	}
	return nil
}

// looked notes the files that the round has not looked at yet, and sets the time of
// the next pass by the time that this pass has read.
func (r *rounds) looked(rest []string, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round = rest
	r.next = time.Now().Add(min(max(restFor*took, shortestRest), longestRest))
}

// later makes the next pass begin with these record files.
func (r *rounds) later(files ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.first = append(r.first, files...)
}

// worked delays the next pass in proportion to the work since begun.
func (r *rounds) worked(begun time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	wait := max(0, r.next.Sub(now)) + workRest*now.Sub(begun)
	r.next = now.Add(min(wait, longestRest))
}

// addStuck counts containers that no pass waits for.
func (r *rounds) addStuck(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stuck += n
}

// clogged reports whether too many containers are stuck to start work on another.
func (r *rounds) clogged() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stuck >= mostStuck
}

// report notes that a generation of a record is reported, and reports whether it is
// for the first time.
func (r *rounds) report(file string, generation int) (first bool) {
	if r.isReported(file, generation) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reported == nil {
		r.reported = make(map[string]int)
	}
	r.reported[file] = generation
	return true
}

// forget forgets the reports of records that are not among these files, which are
// sorted.
func (r *rounds) forget(files []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.reported, func(file string, _ int) bool {
		_, exists := slices.BinarySearch(files, file)
		return !exists
	})
}

func (r *rounds) isReported(file string, generation int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, ok := r.reported[file]
	return ok && before == generation
}
