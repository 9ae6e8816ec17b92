package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// measure calls fn for each container, atOnce of them concurrently.
func measure(containers []container, atOnce int, fn func(container) error) (reply, error) {
	// Start with a clean heap, so that the collector works on this
	// measurement's allocations only.
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	spentBefore, err := spent()
	if err != nil {
		return reply{}, err
	}
	start := time.Now()
	err = callAll(containers, atOnce, fn)
	wall := time.Since(start)
	spentAfter, spentErr := spent()
	runtime.ReadMemStats(&after)
	memory, memoryErr := residentMemory()
	return reply{Wall: wall.Microseconds(), Allocs: after.Mallocs - before.Mallocs, CPU: (spentAfter.CPU - spentBefore.CPU).Microseconds(),
		Faults: spentAfter.Faults - spentBefore.Faults, Memory: memory}, errors.Join(err, spentErr, memoryErr)
}

func callAll(containers []container, atOnce int, fn func(container) error) error {
	errs := make([]error, len(containers))
	next := make(chan int, len(containers))
	for i := range containers {
		next <- i
	}
	close(next)
	var group sync.WaitGroup
	for range atOnce {
		group.Go(func() {
			for i := range next {
				errs[i] = fn(containers[i])
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// usage is what calls took. Faults are the page faults of programs: each start of one has
// some. A program counts when it was waited for.
type usage struct {
	CPU    time.Duration
	Faults int64
}

// spent returns what this process and its children have used so far.
func spent() (all usage, err error) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			return all, fmt.Errorf("getrusage: %w", err)
		}
		all.CPU += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		if who == unix.RUSAGE_CHILDREN {
			all.Faults = int64(u.Minflt) + int64(u.Majflt)
		}
	}
	return all, nil
}

// residentMemory returns the memory of this process that is not swapped out, in
// bytes, see proc_pid_statm(5).
func residentMemory() (int64, error) {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(data), &size, &resident); err != nil {
		return 0, fmt.Errorf("/proc/self/statm: %w", err)
	}
	return resident * int64(os.Getpagesize()), nil
}
