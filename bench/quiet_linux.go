package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// When a container is attached, its kernel sends multicast reports and router
// solicitations, again and again at intervals that double. They go to all ports
// of its bridge. After thousands of containers both processors are busy with
// them for minutes, and measurements suffer.
const (
	loud       = 100 // more containers than this on a bridge take a while to calm down
	quietShare = 0.9 // share of idle time on all processors in a second
	quietAtAll = 4 * time.Minute
)

// quiet waits until the machine is idle, at most until end. It reports whether the
// machine became idle.
func quiet(ctx context.Context, end time.Time) (bool, error) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	idle, all, err := ticks()
	for err == nil && time.Now().Before(end) {
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-tick.C:
		}
		idleBefore, before := idle, all
		if idle, all, err = ticks(); err == nil && idle-idleBefore >= quietShare*(all-before) {
			return true, nil
		}
	}
	return false, err
}

// ticks returns the processors' idle and total times: the first line of /proc/stat has
// user, nice, system, idle, iowait, irq, softirq and steal time, see proc_stat(5).
func ticks() (idle, all float64, err error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	var name string
	var v [8]float64
	if _, err := fmt.Sscan(string(data), &name, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7]); err != nil {
		return 0, 0, fmt.Errorf("/proc/stat: %w", err)
	}
	for _, n := range v {
		all += n
	}
	return v[3] + v[4], all, nil
}
