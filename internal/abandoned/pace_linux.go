package abandoned

import (
	"sync"
	"time"
)

// pace limits what the Searches of a process read together: a program may have a Runtime,
// and so a Search, for each container, and each reads all records. The zero pace is ready
// for use.
type pace struct {
	mu   sync.Mutex
	next time.Time // no pass begins before
}

var everyPass pace

// begin reports whether a pass may begin now, and if not, after which time to ask again.
func (p *pace) begin(now time.Time) (wait time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if wait := p.next.Sub(now); wait > 0 {
		return wait, false
	}
	p.next = now.Add(restFor * lookFor) // until it is known how long the pass has read
	return 0, true
}

// looked notes how long a pass has read.
func (p *pace) looked(now time.Time, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = now.Add(min(restFor*took, longestRest))
}
