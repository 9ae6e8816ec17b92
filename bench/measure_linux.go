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
	cpuBefore, err := cpuTime()
	if err != nil {
		return reply{}, err
	}
	took, wall, err := callAll(containers, atOnce, fn)
	cpuAfter, cpuErr := cpuTime()
	runtime.ReadMemStats(&after)
	resident, memoryErr := residentMemory()
	return reply{Took: took, Wall: wall, Allocs: after.Mallocs - before.Mallocs, Bytes: after.TotalAlloc - before.TotalAlloc,
		CPU: (cpuAfter - cpuBefore).Microseconds(), Resident: resident}, errors.Join(err, cpuErr, memoryErr)
}

// callAll returns the durations of the calls, and that of all together, in
// microseconds.
func callAll(containers []container, atOnce int, fn func(container) error) (took []int64, wall int64, err error) {
	took = make([]int64, len(containers))
	errs := make([]error, len(containers))
	next := make(chan int, len(containers))
	for i := range containers {
		next <- i
	}
	close(next)
	one := func(i int) {
		start := time.Now()
		errs[i] = fn(containers[i])
		took[i] = time.Since(start).Microseconds()
	}
	start := time.Now()
	if atOnce <= 1 {
		for i := range next {
			one(i)
		}
	} else {
		var group sync.WaitGroup
		for range atOnce {
			group.Add(1)
			go func() {
				defer group.Done()
				for i := range next {
					one(i)
				}
			}()
		}
		group.Wait()
	}
	return took, time.Since(start).Microseconds(), errors.Join(errs...)
}

// cpuTime returns the processor time that this process and its children used, in
// user mode and in the kernel. A child counts once it has been waited for.
func cpuTime() (time.Duration, error) {
	var total time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var usage unix.Rusage
		if err := unix.Getrusage(who, &usage); err != nil {
			return 0, fmt.Errorf("getrusage: %w", err)
		}
		total += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	return total, nil
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
