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
	quietShare = 0.9 // share of idle time on all processors
	quietFor   = time.Second
	quietAtAll = 4 * time.Minute // then the measurement runs anyway and says so
	quietLeast = 20 * time.Second
)

// quietUntil returns when to stop waiting in a step that is to end at a time: other
// programs on the machine may keep it busy for ever, and later steps need time too.
func quietUntil(now, end time.Time) time.Time {
	return now.Add(min(max(end.Sub(now)/2, quietLeast), quietAtAll))
}

// quiet waits until the machine is idle, at most until end. It reports whether the
// machine became idle.
func quiet(ctx context.Context, end time.Time) (bool, error) {
	const step = 250 * time.Millisecond
	tick := time.NewTicker(step)
	defer tick.Stop()
	before, err := readTicks()
	if err != nil {
		return false, err
	}
	for idleFor := time.Duration(0); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-tick.C:
		}
		now, err := readTicks()
		if err != nil {
			return false, err
		}
		if idleFor += step; now.idleSince(before) < quietShare {
			idleFor = 0
		}
		if idleFor >= quietFor {
			return true, nil
		}
		before = now
	}
	return false, nil
}

// ticks are the processors' idle and total times.
type ticks struct{ idle, all uint64 }

func readTicks() (ticks, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return ticks{}, err
	}
	t, err := parseTicks(string(data))
	if err != nil {
		return ticks{}, fmt.Errorf("/proc/stat: %w", err)
	}
	return t, nil
}

// parseTicks reads the first line of /proc/stat, see proc_stat(5): user, nice,
// system, idle, iowait, irq, softirq and steal time of all processors.
func parseTicks(stat string) (ticks, error) {
	var name string
	var v [8]uint64
	if _, err := fmt.Sscan(stat, &name, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7]); err != nil {
		return ticks{}, err
	}
	t := ticks{idle: v[3] + v[4]}
	for _, n := range v {
		t.all += n
	}
	return t, nil
}

// idleSince returns the idle share of the time since before.
func (t ticks) idleSince(before ticks) float64 {
	if t.all <= before.all {
		return 0
	}
	return float64(t.idle-before.idle) / float64(t.all-before.all)
}
