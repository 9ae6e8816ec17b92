// Package thread runs functions inside network namespaces, which must leave the thread as
// they find it, and with another root directory, as executed plugins have it where a daemon
// in a container runs them with the root of the host. It does independent work at once, or
// puts it off to do it together, and has values that goroutines share.
package thread

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// Each calls work for the numbers from 0 to n-1, at most atOnce of them at the same
// time. The calls begin in order. Each returns when all have returned. A single call is
// made on the caller's goroutine. work must not panic.
func Each(n, atOnce int, work func(i int)) {
	if n == 1 {
		work(0)
		return
	}
	var group sync.WaitGroup
	var next atomic.Int64
	for range min(atOnce, n) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				work(i)
			}
		})
	}
	group.Wait()
}

// Try calls do, and returns a panic as an error: one container must not end the program.
func Try(do func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return do()
}
