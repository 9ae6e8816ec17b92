package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// flows are pings that go on, by host.
type flows map[*machine][]int

// startFlows has the job of each host ping the web container of the next one, or of host-1 if
// that is none of them, in both families.
func (c *cluster) startFlows(ctx context.Context, hosts ...*machine) (flows, error) {
	f := flows{}
	for i, m := range hosts {
		to := c.hosts[0]
		if len(hosts) > 1 {
			to = hosts[(i+1)%len(hosts)]
		}
		for _, ip := range c.addresses(web(to).ID) {
			id, err := call[int](ctx, m, "StartFlow", Way{job(m).ID, ip})
			if err != nil {
				return nil, err
			}
			f[m] = append(f[m], id)
		}
	}
	return f, nil
}

// stop ends the flows, and returns what they have seen.
func (f flows) stop(ctx context.Context, grace time.Duration) (all Flown, err error) {
	var mu sync.Mutex
	err = each(slices.Collect(maps.Keys(f)), func(m *machine) (err error) {
		for _, id := range f[m] {
			one, serr := call[Flown](ctx, m, "StopFlow", Ending{id, grace})
			err = errors.Join(err, serr)
			mu.Lock()
			all.Sent += one.Sent
			all.Lost += one.Lost
			mu.Unlock()
		}
		return err
	})
	return all, err
}

// goOn ends flows, which must have gone on.
func (c *cluster) goOn(ctx context.Context, f flows) error {
	flown, err := f.stop(ctx, grace)
	if err == nil {
		err = flown.check()
	}
	if err == nil {
		c.say("    %d pings between other containers meanwhile lose %d", flown.Sent, flown.Lost)
	}
	return err
}

// check returns an error if more than one ping in a hundred, and one more, had no answer. Single
// packets are lost where the kernel that all hosts share has no room for them.
func (f Flown) check() error {
	if f.Lost > f.Sent/100+1 {
		return fmt.Errorf("%d of %d pings were not answered", f.Lost, f.Sent)
	}
	return nil
}

// round leaves three digits.
func round(d time.Duration) time.Duration {
	unit := time.Nanosecond
	for unit*1000 <= d {
		unit *= 10
	}
	return d.Round(unit)
}
