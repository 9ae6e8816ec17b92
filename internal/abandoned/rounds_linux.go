package abandoned

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/record"
)

// rounds are the rounds of Runtimes that search together: each call that requests one gets
// one that begins after the call.
type rounds struct {
	mu       sync.Mutex
	begun    bool           // Setup has been called
	busy     bool           // a round is under way, or a timer will start one
	wanted   bool           // a round has been requested that has not begun
	next     time.Time      // before which no round begins
	stuck    int            // containers that rounds no longer wait for
	reported map[string]int // the generation of each record file that was reported
	runtime  Runtime        // of the last request: it has the newest configuration
	// asked are the Runtimes of the last requests. Each may keep namespaces alive.
	asked map[Containers]struct{}
}

// want requests a round. It reports whether the caller must start it, and after which time.
func (r *rounds) want(by Runtime, setup bool) (wait time.Duration, yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begun = r.begun || setup; !r.begun {
		return 0, false
	}
	if r.asked == nil {
		r.asked = make(map[Containers]struct{})
	}
	r.asked[by.Containers] = struct{}{}
	r.runtime, r.wanted = by, true
	if r.busy {
		return 0, false
	}
	r.busy = true
	return time.Until(r.next), true
}

// more ends a round that has read for a time. It reports whether another must follow, and
// after which time. None follows one that failed: the next may fail too.
func (r *rounds) more(read time.Duration, failed bool) (wait time.Duration, yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait = min(max(restFor*read, shortestRest), longestRest)
	r.next = time.Now().Add(wait)
	if r.stuck >= mostStuck {
		wait = max(wait, stuckFor)
	}
	if r.busy = r.wanted && !failed; !r.busy { // otherwise the Search would keep its Runtimes from being collected
		r.runtime, r.asked = Runtime{}, nil
	}
	return wait, r.busy
}

// again requests a round for the sake of a container that is not done with.
func (r *rounds) again() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wanted = true
}

// idle reports whether a request would start a round.
func (r *rounds) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.busy
}

// begin begins a round, and returns the runtime that requested one last.
func (r *rounds) begin() Runtime {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wanted = false
	return r.runtime
}

// keeper returns a Runtime that keeps the namespace of a container alive, or nil.
func (r *rounds) keeper(id record.ID) Containers {
	r.mu.Lock()
	asked := slices.Collect(maps.Keys(r.asked))
	r.mu.Unlock()
	for _, c := range asked {
		if c.Keeps(id) {
			return c
		}
	}
	return nil
}

// addStuck counts containers that no round waits for, and returns their number.
func (r *rounds) addStuck(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stuck += n
	return r.stuck
}

// isReported reports whether a generation of a record was reported.
func (r *rounds) isReported(file string, generation int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, ok := r.reported[file]
	return ok && before == generation
}

// report notes that a generation of a record is reported.
func (r *rounds) report(file string, generation int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reported == nil {
		r.reported = make(map[string]int)
	}
	r.reported[file] = generation
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
