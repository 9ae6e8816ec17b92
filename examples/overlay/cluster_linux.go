package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
)

// nothingLeft is the last line of a run that has left nothing.
const nothingLeft = "left of the containers on %d hosts: nothing\n"

// hostPort of each host leads to port of its web container.
const hostPort, port = 8080, 80

// cluster is etcd and the hosts.
type cluster struct {
	out   io.Writer
	etcd  *etcd
	hosts []*machine

	mu sync.Mutex
	at map[string]Attached // containers by their ID
}

// tell runs the story, or attaches a crowd.
func tell(ctx context.Context, out io.Writer, o options, version string) (err error) {
	c := &cluster{out: out, at: map[string]Attached{}, etcd: &etcd{
		dir: workDir + "/etcd", url: fmt.Sprintf("http://%s:2379", address(0)),
	}}
	for i := range o.hosts {
		c.hosts = append(c.hosts, newMachine(i+1))
	}
	// Leftovers matter most if the context is over.
	defer func() { err = errors.Join(err, c.end(context.WithoutCancel(ctx))) }()
	if err := c.begin(ctx, version); err != nil {
		return err
	}
	if o.containers > 0 {
		return c.crowd(ctx, o)
	}
	return c.story(ctx)
}

func (c *cluster) say(format string, args ...any) { fmt.Fprintf(c.out, format+"\n", args...) }

// begin starts etcd, the hosts, and flanneld on each.
func (c *cluster) begin(ctx context.Context, version string) error {
	if err := c.etcd.start(ctx); err != nil {
		return err
	}
	v, err := c.etcd.version(ctx)
	if err != nil {
		return err
	}
	if err := c.etcd.configure(ctx, "vxlan"); err != nil {
		return err
	}
	c.say("etcd %s serves at %s, flanneld is %s", v, c.etcd.url, version)
	if err := each(c.hosts, func(m *machine) error {
		booted, err := m.powerOn(ctx)
		m.before = booted.Audit
		return err
	}); err != nil {
		return err
	}
	if err := c.tooEarly(ctx); err != nil {
		return err
	}
	// One after the other: the key of a lease in etcd has the subnets of both families, so that
	// two flannelds at once can take different ones of IPv4 with the same one of IPv6.
	for _, m := range c.hosts {
		if err := c.join(ctx, m); err != nil {
			return err
		}
	}
	c.sayLeases()
	return c.distinct()
}

// distinct checks that each host has subnets of its own.
func (c *cluster) distinct() error {
	owner := map[netip.Prefix]*machine{}
	for _, m := range c.hosts {
		for _, subnet := range []netip.Prefix{m.lease.IPv4, m.lease.IPv6} {
			if other := owner[subnet]; other != nil {
				return fmt.Errorf("%s and %s both have %s", m.name, other.name, subnet)
			}
			owner[subnet] = m
		}
	}
	return nil
}

// join starts a host's flanneld.
func (c *cluster) join(ctx context.Context, m *machine) (err error) {
	m.lease, err = call[Lease](ctx, m, "StartFlanneld", c.etcd.url)
	return err
}

func (c *cluster) sayLeases() {
	for _, m := range c.hosts[:min(len(c.hosts), 3)] {
		c.say("    %s at %s and %s has %s and %s, MTU %d", m.name, address(m.number), address6(m.number), m.lease.IPv4, m.lease.IPv6, m.lease.MTU)
	}
	if n := len(c.hosts); n > 3 {
		c.say("    … and %d more", n-3)
	}
}

// attach attaches a container on a host.
func (c *cluster) attach(ctx context.Context, m *machine, spec Spec) error {
	at, err := call[Attached](ctx, m, "Attach", spec)
	if err != nil {
		return err
	}
	if !m.lease.IPv4.Contains(at.IPv4) || !m.lease.IPv6.Contains(at.IPv6) {
		return fmt.Errorf("%s: %s has %s and %s, which are not flannel's", m.name, at.ID, at.IPv4, at.IPv6)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at[at.ID] = at
	return nil
}

func web(m *machine) Spec {
	return Spec{ID: fmt.Sprint("web-", m.number), Ports: []cni.PortMapping{{HostPort: hostPort, ContainerPort: port, Protocol: "tcp"}}}
}

func job(m *machine) Spec { return Spec{ID: fmt.Sprint("job-", m.number)} }

// attachPair attaches the two containers of a host.
func (c *cluster) attachPair(ctx context.Context, m *machine) error {
	if err := c.attach(ctx, m, web(m)); err != nil {
		return err
	}
	return c.attach(ctx, m, job(m))
}

// end detaches all containers, audits the hosts, and ends them.
func (c *cluster) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	err := each(c.hosts, func(m *machine) error {
		if m.cmd == nil {
			return nil
		}
		if !m.isOn() { // its records are on its disk
			if _, err := m.powerOn(ctx); err != nil {
				return err
			}
		}
		return errors.Join(c.empty(ctx, m), m.powerOff())
	})
	if c.etcd.service != nil {
		c.etcd.service.stop(unix.SIGTERM)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(c.out, nothingLeft, len(c.hosts))
	return nil
}

// empty detaches a host's containers, and compares its audit with the first one.
func (c *cluster) empty(ctx context.Context, m *machine) error {
	after, err := call[[]string](ctx, m, "Empty", 0)
	if err != nil || m.before == nil { // it has not started
		return err
	}
	return m.unchanged(after)
}

// unchanged compares the host with an audit.
func (m *machine) unchanged(after []string) error {
	if left := cnitest.Diff(m.before, after); left != "" {
		return fmt.Errorf("%s is not as it was:\n%s", m.name, left)
	}
	return nil
}

// each calls do for several hosts at once.
func each(hosts []*machine, do func(*machine) error) error {
	errs := make([]error, len(hosts))
	var all sync.WaitGroup
	for i, m := range hosts {
		all.Go(func() { errs[i] = do(m) })
	}
	all.Wait()
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return err == nil })...)
}
