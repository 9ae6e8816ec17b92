package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// story is what the hosts of a cluster go through.
func (c *cluster) story(ctx context.Context) error {
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"each host attaches a web container, with host port 8080, and a job", c.first},
		{"VXLAN: containers on different hosts reach each other", c.byVXLAN},
		{"a host port is reached from another host, and from its containers", c.hostPorts},
		{"host-gw: flannel's backend changes, and flanneld starts again on each host", c.byHostGateway},
		{"and back to VXLAN", c.backToVXLAN},
		{"host-2 loses its power", c.powerCut},
		{"etcd stops, starts again, and forgets its history", c.etcdOutage},
		{"the lease of host-3 is revoked, and its subnet kept for another host", c.leaseChange},
		{"the cable of host-2 is cut, and mended", c.wireCut},
	} {
		c.say("%s", step.what)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

// tooEarly attaches a container before flanneld has a subnet for the host, which must fail.
func (c *cluster) tooEarly(ctx context.Context) error {
	m := c.hosts[0]
	_, err := call[Attached](ctx, m, "Attach", job(m))
	if err == nil || !strings.Contains(err.Error(), subnetFile) {
		return fmt.Errorf("a container was to be attached before flanneld runs: %w", err)
	}
	c.say("before flanneld runs, an ADD fails: there is no %s", subnetFile)
	return nil
}

func (c *cluster) first(ctx context.Context) error {
	if err := each(c.hosts, func(m *machine) error { return c.attachPair(ctx, m) }); err != nil {
		return err
	}
	for _, m := range c.hosts {
		for _, id := range []string{web(m).ID, job(m).ID} {
			c.say("    %s has %s and %s", id, c.at[id].IPv4, c.at[id].IPv6)
		}
	}
	return nil
}

// addresses returns a container's in both families.
func (c *cluster) addresses(id string) []netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	return []netip.Addr{c.at[id].IPv4, c.at[id].IPv6}
}

// pings has a container ping another in both families until it answers, and returns the slower
// one's answer.
func (c *cluster) pings(ctx context.Context, m *machine, from, to string) (slower Pong, err error) {
	for _, ip := range c.addresses(to) {
		pong, err := call[Pong](ctx, m, "Ping", Way{from, ip})
		if err != nil {
			return Pong{}, err
		}
		slower = Pong{RTT: max(slower.RTT, pong.RTT), After: max(slower.After, pong.After), Lost: slower.Lost + pong.Lost}
	}
	return slower, nil
}

// everyWay has the job of each host ping the web container of each other host.
func (c *cluster) everyWay(ctx context.Context, report func(from, to string, p Pong)) (ways int, err error) {
	for _, m := range c.hosts {
		for _, other := range c.hosts {
			if m == other {
				continue
			}
			p, err := c.pings(ctx, m, job(m).ID, web(other).ID)
			if err != nil {
				return ways, err
			}
			ways++
			if report != nil {
				report(job(m).ID, web(other).ID, p)
			}
		}
	}
	return ways, nil
}

// sent returns how many packets the hosts have sent through tunnels of both families.
func (c *cluster) sent(ctx context.Context) (n [2]uint64, err error) {
	for _, m := range c.hosts {
		for i, name := range []string{"flannel.1", "flannel-v6.1"} {
			one, err := call[uint64](ctx, m, "Sent", name)
			if err != nil {
				return n, err
			}
			n[i] += one
		}
	}
	return n, nil
}

// overTunnels has everybody ping, and checks whether it goes through tunnels.
func (c *cluster) overTunnels(ctx context.Context, want bool, report func(from, to string, p Pong)) error {
	before, err := c.sent(ctx)
	if err != nil {
		return err
	}
	ways, err := c.everyWay(ctx, report)
	if err != nil {
		return err
	}
	after, err := c.sent(ctx)
	if err != nil {
		return err
	}
	through := [2]uint64{after[0] - before[0], after[1] - before[1]}
	// A ping and its answer are two packets.
	if want && min(through[0], through[1]) < uint64(2*ways) || !want && through != [2]uint64{} {
		return fmt.Errorf("%d packets went through the tunnels for IPv4, and %d through those for IPv6", through[0], through[1])
	}
	c.say("    %d ways, both families: all answer, and %s through the tunnels", ways, map[bool]string{true: "all go", false: "none goes"}[want])
	return nil
}

func (c *cluster) byVXLAN(ctx context.Context) error {
	return c.overTunnels(ctx, true, func(from, to string, p Pong) {
		c.say("    %s pings %s at %s and %s in %v", from, to, c.at[to].IPv4, c.at[to].IPv6, round(p.RTT))
	})
}

func (c *cluster) byHostGateway(ctx context.Context) error {
	if err := c.change(ctx, "host-gw", 1500); err != nil {
		return err
	}
	return c.overTunnels(ctx, false, nil)
}

func (c *cluster) backToVXLAN(ctx context.Context) error {
	if err := c.change(ctx, "vxlan", 1450); err != nil {
		return err
	}
	return c.overTunnels(ctx, true, nil)
}

// change changes flannel's backend, host by host. Each keeps its lease.
func (c *cluster) change(ctx context.Context, backend string, mtu int) error {
	if err := c.etcd.configure(ctx, backend); err != nil {
		return err
	}
	flows, err := c.startFlows(ctx, c.hosts...)
	if err != nil {
		return err
	}
	for _, m := range c.hosts {
		old := m.lease
		for _, method := range []string{"StopFlanneld", "ForgetRoutes"} {
			if _, err := call[int](ctx, m, method, 0); err != nil {
				return err
			}
		}
		if err := c.join(ctx, m); err != nil {
			return err
		}
		if want := (Lease{old.IPv4, old.IPv6, mtu}); m.lease != want {
			return fmt.Errorf("%s has the lease %v, want %v", m.name, m.lease, want)
		}
	}
	flown, err := flows.stop(ctx, grace/10) // some have no answer
	if err == nil {
		c.say("    each host keeps its lease, and %d pings meanwhile lose %d", flown.Sent, flown.Lost)
	}
	return err
}

// answers asks a server.
func (c *cluster) answers(ctx context.Context, m *machine, from string, to netip.Addr, want string) error {
	q := Question{from, netip.AddrPortFrom(to, hostPort)}
	got, err := call[string](ctx, m, "Ask", q)
	if err == nil && got != want {
		err = fmt.Errorf("%s: %q answers at %s, not %s", m.name, got, q.To, want)
	}
	return err
}

func (c *cluster) hostPorts(ctx context.Context) error {
	for _, to := range c.hosts {
		m := c.hosts[to.number%len(c.hosts)] // the next one
		for _, ip := range []netip.Addr{address(to.number), address6(to.number)} {
			for _, from := range []string{"", job(m).ID} {
				if err := c.answers(ctx, m, from, ip, web(to).ID); err != nil {
					return err
				}
			}
		}
		c.say("    %s and %s ask port %d of %s: %s answers", m.name, job(m).ID, hostPort, to.name, web(to).ID)
	}
	return nil
}

// silent checks that a container is out of reach.
func (c *cluster) silent(ctx context.Context, m *machine, from, to string) error {
	for _, ip := range c.addresses(to) {
		if _, err := call[int](ctx, m, "Silence", Way{from, ip}); err != nil {
			return err
		}
	}
	c.say("    %s pings %s: no answer", from, to)
	return nil
}

func (c *cluster) powerCut(ctx context.Context) error {
	one, two, three := c.hosts[0], c.hosts[1], c.hosts[2]
	flows, err := c.startFlows(ctx, three)
	if err != nil {
		return err
	}
	if err := two.powerOff(); err != nil {
		return err
	}
	if err := c.silent(ctx, one, job(one).ID, web(two).ID); err != nil {
		return err
	}
	begin, old := time.Now(), two.lease
	booted, err := two.powerOn(ctx)
	if err != nil {
		return err
	}
	if want := []string{job(two).ID, web(two).ID}; !slices.Equal(booted.Recovered, want) {
		return fmt.Errorf("%s has recovered %v, want %v", two.name, booted.Recovered, want)
	}
	if err := two.unchanged(booted.Audit); err != nil {
		return err
	}
	c.say("    power is back: Recover removes %s, and nothing of them is left", strings.Join(booted.Recovered, " and "))
	if err := c.join(ctx, two); err != nil {
		return err
	}
	if two.lease != old {
		return fmt.Errorf("%s has the lease %v, want %v as before", two.name, two.lease, old)
	}
	if err := c.attachPair(ctx, two); err != nil {
		return err
	}
	if _, err := c.pings(ctx, one, job(one).ID, web(two).ID); err != nil {
		return err
	}
	c.say("    flanneld has the same lease, the containers are attached again, and %s pings %s: traffic is back after %v",
		job(one).ID, web(two).ID, round(time.Since(begin)))
	return c.goOn(ctx, flows)
}

func (c *cluster) etcdOutage(ctx context.Context) error {
	one, three := c.hosts[0], c.hosts[2]
	flows, err := c.startFlows(ctx, c.hosts...)
	if err != nil {
		return err
	}
	c.etcd.stop()
	late := Spec{ID: "late-1"}
	if err := c.attach(ctx, one, late); err != nil {
		return err
	}
	p, err := c.pings(ctx, three, job(three).ID, late.ID)
	if err != nil {
		return err
	}
	c.say("    without etcd, late-1 is attached from the present %s, and %s pings it in %v", subnetFile, job(three).ID, round(p.RTT))
	begin := time.Now()
	if err := c.etcd.start(ctx); err != nil {
		return err
	}
	revision, err := c.etcd.put(ctx, prefix+"note", []byte("a new revision"))
	if err == nil {
		err = c.etcd.compact(ctx, revision)
	}
	if err != nil {
		return err
	}
	c.say("    etcd serves again after %v, compacted at its revision %s", round(time.Since(begin)), revision)
	if _, err := call[time.Duration](ctx, one, "Detach", late.ID); err != nil {
		return err
	}
	return c.goOn(ctx, flows)
}

func (c *cluster) leaseChange(ctx context.Context) error {
	one, three, old := c.hosts[0], c.hosts[2], c.hosts[2].lease
	key, err := c.etcd.leaseOf(ctx, old.IPv4)
	if err == nil {
		err = c.etcd.remove(ctx, key)
	}
	if err != nil {
		return err
	}
	begin := time.Now()
	why, err := call[string](ctx, three, "FlanneldEnds", 0)
	if err == nil {
		err = c.etcd.reserve(ctx, key)
	}
	if err == nil {
		err = c.join(ctx, three)
	}
	if err != nil {
		return err
	}
	if three.lease.IPv4 == old.IPv4 || three.lease.IPv6 == old.IPv6 {
		return fmt.Errorf("%s has the lease %v again", three.name, three.lease)
	}
	c.say("    flanneld ends after %v: %q; started again, it has %s and %s", round(time.Since(begin)), why, three.lease.IPv4, three.lease.IPv6)
	if err := c.silent(ctx, one, job(one).ID, web(three).ID); err != nil {
		return err
	}
	begin = time.Now()
	if err := c.reconcile(ctx, three); err != nil {
		return err
	}
	if _, err := c.pings(ctx, one, job(one).ID, web(three).ID); err != nil {
		return err
	}
	c.say("    traffic is back %v after reconcile.Run was called", round(time.Since(begin)))
	return c.hostPorts(ctx)
}

// reconcile has a host move its containers to the host's present subnets.
func (c *cluster) reconcile(ctx context.Context, m *machine) error {
	moved, err := call[[]Moved](ctx, m, "Reconcile", 0)
	if err != nil {
		return err
	}
	if len(moved) != 2 {
		return fmt.Errorf("%s: %d containers have moved, not both: %v", m.name, len(moved), moved)
	}
	for _, one := range moved {
		was := c.addresses(one.ID)
		slices.SortFunc(was, netip.Addr.Compare)
		slices.SortFunc(one.Lost, netip.Addr.Compare)
		if !m.lease.IPv4.Contains(one.IPv4) || !m.lease.IPv6.Contains(one.IPv6) || !slices.Equal(was, one.Lost) {
			return fmt.Errorf("%s: %s has %s and %s, and has lost %v", m.name, one.ID, one.IPv4, one.IPv6, one.Lost)
		}
		c.at[one.ID] = one.Attached
		for line := range strings.Lines(one.Why) {
			what, _, _ := strings.Cut(strings.TrimRight(line, "\n"), " (not repairable")
			c.say("    %s", what)
		}
		c.say("    %s moves to %s and %s", one.ID, one.IPv4, one.IPv6)
	}
	return nil
}

func (c *cluster) wireCut(ctx context.Context) error {
	one, two := c.hosts[0], c.hosts[1]
	flows, err := c.startFlows(ctx, c.hosts[2])
	if err != nil {
		return err
	}
	if err := two.cut(); err != nil {
		return err
	}
	if err := c.silent(ctx, one, job(one).ID, web(two).ID); err != nil {
		return err
	}
	p, err := c.pings(ctx, two, job(two).ID, web(two).ID)
	if err != nil {
		return err
	}
	c.say("    %s pings %s on the same host in %v", job(two).ID, web(two).ID, round(p.RTT))
	begin := time.Now()
	if err := two.mend(); err != nil {
		return err
	}
	if _, err := c.pings(ctx, one, job(one).ID, web(two).ID); err != nil {
		return err
	}
	c.say("    traffic is back %v after the cable was mended", round(time.Since(begin)))
	return c.goOn(ctx, flows)
}
