package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// pingsEach is how many requests each container sends to another.
	pingsEach = 10
	// mostIPv6 limits the containers that do so over IPv6, too. The hosts share one kernel's tables
	// of neighbours (gc_thresh3 in net.ipv4.neigh.default and net.ipv6.neigh.default), which have
	// 1,024 entries each by default, and a ping needs four. A real host has tables of its own.
	// Here a first ping waits until the kernel forgets older entries, but other packets are lost
	// where the kernel has more to remember, as it has of IPv6.
	mostIPv6 = 100
)

// crowd attaches many containers, some at once on all hosts together, while containers of
// different hosts ping each other. Then each container pings one on the next host.
func (c *cluster) crowd(ctx context.Context, o options) error {
	if err := each(c.hosts, func(m *machine) error { return c.attachPair(ctx, m) }); err != nil {
		return err
	}
	flows, err := c.startFlows(ctx, c.hosts...)
	if err != nil {
		return err
	}
	var places []place
	for i := range o.containers {
		m := c.hosts[i%len(c.hosts)]
		places = append(places, place{m, Spec{ID: fmt.Sprintf("c-%d-%d", m.number, i/len(c.hosts))}})
	}
	c.say("%d containers on %d hosts, %d at once", o.containers, o.hosts, o.atOnce)
	err = c.timed(o, "attached", places, func(p place) (time.Duration, error) {
		err := c.attach(ctx, p.on, p.Spec)
		return c.took(p.ID), err
	})
	if err != nil {
		return err
	}
	if err := c.goOn(ctx, flows); err != nil {
		return err
	}
	if err := c.volleys(ctx, places); err != nil {
		return err
	}
	return c.timed(o, "detached", places, func(p place) (time.Duration, error) {
		return call[time.Duration](ctx, p.on, "Detach", p.ID)
	})
}

// place is a container and its host.
type place struct {
	on *machine
	Spec
}

// took returns how long the Setup of a container took.
func (c *cluster) took(id string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at[id].Took
}

// timed does something for all containers, several at once, until one fails, and says the rate.
func (c *cluster) timed(o options, done string, places []place, do func(place) (time.Duration, error)) error {
	next := make(chan int, len(places))
	for i := range places {
		next <- i
	}
	close(next)
	took, errs := make([]time.Duration, len(places)), make([]error, len(places))
	failed := make(chan struct{})
	var once sync.Once
	var workers sync.WaitGroup
	begin := time.Now()
	for range o.atOnce {
		workers.Go(func() {
			for i := range next {
				select {
				case <-failed:
					return
				default:
				}
				if took[i], errs[i] = do(places[i]); errs[i] != nil {
					once.Do(func() { close(failed) })
				}
			}
		})
	}
	workers.Wait()
	all := time.Since(begin)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	slices.Sort(took)
	c.say("    %s in %v: %.0f a second; one takes %v, and 1 in 100 more than %v", done, round(all),
		float64(len(places))/all.Seconds(), round(took[len(took)/2]), round(took[len(took)*99/100]))
	return nil
}

// volleys has each container ping one on the next host over IPv4, and some of them over IPv6.
func (c *cluster) volleys(ctx context.Context, places []place) error {
	volleys := map[*machine]*Volley{}
	six, every := 0, (len(places)+mostIPv6-1)/mostIPv6
	for i, p := range places {
		to := places[(i+1)%len(places)]
		if to.on == p.on { // the last one, if the hosts have different numbers of containers
			continue
		}
		v := volleys[p.on]
		if v == nil {
			v = &Volley{Times: pingsEach}
			volleys[p.on] = v
		}
		both := c.addresses(to.ID)
		v.Ways = append(v.Ways, Way{p.ID, both[0]})
		if i%every == 0 {
			v.Ways = append(v.Ways, Way{p.ID, both[1]})
			six++
		}
	}
	var mu sync.Mutex
	var all Flown
	err := each(c.hosts, func(m *machine) error {
		flown, err := call[Flown](ctx, m, "PingMany", *volleys[m])
		mu.Lock()
		defer mu.Unlock()
		all.Sent += flown.Sent
		all.Lost += flown.Lost
		return err
	})
	if err == nil {
		err = all.check()
	}
	if err == nil {
		c.say("    each pings one on another host %d times over IPv4, and %d of them over IPv6: %d pings lose %d",
			pingsEach, six, all.Sent, all.Lost)
	}
	return err
}
