package server_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost/servertest"
	"github.com/embedcni/cni/thick/internal/wire"
	"github.com/embedcni/cni/thick/server"
)

// plans is a Planner: the plugin of a network is the part of its name before the dash. The
// plugins "slow" and "hang" answer when they are released, or when their context ends.
type plans struct {
	servertest.Backend
	release chan struct{}
}

func newPlans() *plans {
	p := &plans{release: make(chan struct{})}
	p.Do = func(ctx context.Context, verb string, r *server.Request) (types.Result, error) {
		if plugin, _, _ := strings.Cut(r.Network, "-"); plugin == "slow" || plugin == "hang" {
			select {
			case <-p.release:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return addressed("10.1.0.7/16"), nil
	}
	return p
}

func (p *plans) Plan(_ context.Context, _ string, r *server.Request) (server.Use, error) {
	plugin, _, _ := strings.Cut(r.Network, "-")
	return server.Use{Networks: []string{r.Network}, Plugins: []string{plugin}}, nil
}

// on gives a request the configuration of a network.
func on(network string) func(*wire.Request) {
	return configured(`{"cniVersion":"1.1.0","name":%q,"type":"shim","cni.dev/valid-attachments":[]}`, network)
}

// verbs that a runtime asks for; none but VERSION is left out.
var verbs = []string{"ADD", "DEL", "CHECK", "GC", "STATUS"}

// crowd are slow calls that clients wait for.
type crowd struct {
	verbs    []string
	networks []string
	each     int // calls for each verb and network
}

// begin asks for the calls, and waits until each runs or waits for its turn.
func (c crowd) begin(t *testing.T, d *daemon) (conns []net.Conn) {
	t.Helper()
	for i := range c.each {
		for _, verb := range c.verbs {
			for _, network := range c.networks {
				conn := d.dial(t)
				send(t, conn, "/cni", request(verb, fmt.Sprintf("%s-%s-%d", strings.ToLower(verb), network, i), on(network)))
				conns = append(conns, conn)
			}
		}
	}
	expect.Eventually(t, "all slow calls are in hand", func() bool { return server.Running(d.Server)+server.Waiting(d.Server) == len(conns) })
	return conns
}

func names(format string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf(format, i))
	}
	return all
}

// TestSlowCallsHoldUpNoOthers: a normal pod is served while every one of the slow calls hangs,
// however many there are. The time that it waits is printed; with one queue for all it was
// that of the slow calls.
func TestSlowCallsHoldUpNoOthers(t *testing.T) {
	for _, c := range []struct {
		name    string
		slow    crowd
		network string // of the normal pod
	}{
		{"sixteen pods of one network", crowd{[]string{"ADD"}, []string{"slow-0"}, 16}, "normal-0"},
		{"hundreds of pods of one network", crowd{[]string{"ADD"}, []string{"slow-0"}, 400}, "normal-0"},
		{"pods of many networks", crowd{[]string{"ADD"}, names("slow-%d", 24), 10}, "normal-0"},
		{"many networks of two plugins", crowd{[]string{"ADD"}, append(names("slow-%d", 40), names("hang-%d", 40)...), 4}, "normal-0"},
		{"every verb of one network", crowd{verbs, []string{"slow-0"}, 40}, "normal-0"},
		{"every verb of many networks", crowd{verbs, names("slow-%d", 8), 8}, "normal-0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, waited := newPlans(), observed{}
			d := serve(t, b, server.Options{Observe: waited.observe})
			server.SetSlow(d.Server, time.Hour) // the slots alone must do
			conns := c.slow.begin(t, d)
			for _, verb := range verbs {
				d.wants(t, "/cni", request(verb, "normal", on(c.network)), 200)
				t.Logf("%s of a normal pod beside %d slow calls: waited %v", verb, len(conns), waited.of(t, verb, c.network))
			}
			close(b.release)
			for _, conn := range conns {
				wantAnswer(t, conn, 200)
			}
		})
	}
}

// observed keeps the observations.
type observed struct {
	mu  sync.Mutex
	all []server.Observation
}

func (o *observed) observe(one server.Observation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, one)
}

// of returns how long the call of a verb for a network waited.
func (o *observed) of(t *testing.T, verb, network string) (waited time.Duration) {
	t.Helper()
	expect.Eventually(t, "the observation of "+verb, func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, one := range o.all {
			if one.Verb == verb && one.Network == network {
				waited = one.Queued
				return true
			}
		}
		return false
	})
	return waited
}

// TestASlowCallGivesItsSlotAway: so the pods of a network whose plugin is slow for some of them
// do not wait until these have ended.
func TestASlowCallGivesItsSlotAway(t *testing.T) {
	b, waited := newPlans(), observed{}
	usual := b.Do
	b.Do = func(ctx context.Context, verb string, r *server.Request) (types.Result, error) {
		if r.ContainerID == "normal" {
			return addressed("10.1.0.7/16"), nil
		}
		return usual(ctx, verb, r)
	}
	d := serve(t, b, server.Options{Observe: waited.observe})
	server.SetSlow(d.Server, 10*time.Millisecond)
	conns := crowd{[]string{"ADD"}, []string{"slow-0"}, 24}.begin(t, d) // more than its slots
	d.wants(t, "/cni", request("ADD", "normal", on("slow-0")), 200)
	t.Logf("a normal pod of the same network waited %v", waited.of(t, "ADD", "slow-0"))
	close(b.release)
	for _, conn := range conns {
		wantAnswer(t, conn, 200)
	}
}

// TestTheCallsOfOneNetworkLeavePlaces to others: so many may wait, and no more.
func TestTheCallsOfOneNetworkLeavePlaces(t *testing.T) {
	b := newPlans()
	d := serve(t, b, server.Options{Limits: server.Limits{Concurrent: 1, Queued: 4}})
	server.SetSlow(d.Server, time.Hour)
	conns := crowd{[]string{"ADD"}, []string{"slow-0"}, 5}.begin(t, d) // one runs
	for range 2 {
		d.wants(t, "/cni", request("ADD", "c9", on("slow-0")), 503, `"code":11`, "too many calls: 4 are waiting")
	}
	more := d.dial(t)
	send(t, more, "/cni", request("ADD", "c8", on("slow-1"))) // it gets the other slot
	expect.Eventually(t, "another network's call runs", func() bool { return server.Running(d.Server) == 2 })
	conns = append(conns, more, d.dial(t))
	send(t, conns[len(conns)-1], "/cni", request("ADD", "c7", on("slow-2")))
	expect.Eventually(t, "a third network's call waits", func() bool { return server.Waiting(d.Server) == 5 })
	for _, verb := range []string{"DEL", "STATUS"} {
		d.wants(t, "/cni", request(verb, "c6", on("normal-0")), 200)
	}
	close(b.release)
	for _, conn := range conns {
		wantAnswer(t, conn, 200)
	}
}

// TestALargeRequestHoldsUpNobody: neither by what it announces, nor by what it sends and does
// not end.
func TestALargeRequestHoldsUpNobody(t *testing.T) {
	b := &backend{}
	d := serve(t, b, server.Options{Limits: server.Limits{Transfer: expect.Patience}})
	room := server.Room(d.Server)
	var conns []net.Conn
	for range 16 {
		conn := d.dial(t)
		expect.Value(conn.Write([]byte(head("/cni", wire.MaxRequest))))(t)
		conns = append(conns, conn)
	}
	whole := request("GC", "", configured(`{"cniVersion":"1.1.0","name":"n","cni.dev/valid-attachments":[],"x":"%s"}`, strings.Repeat("x", 3_000_000)))
	d.wants(t, "/cni", whole, 200)
	for _, conn := range conns[:8] {
		go func() { _, _ = conn.Write(make([]byte, wire.MaxRequest-1)) }() // some are refused meanwhile
	}
	expect.Eventually(t, "large requests take room", func() bool { return server.Room(d.Server) < room*9/10 })
	for _, verb := range []string{"ADD", "DEL", "STATUS"} {
		d.wants(t, "/cni", request(verb, "c1"), 200)
	}
	for _, conn := range conns {
		conn.Close()
	}
	expect.Eventually(t, "the room is free again", func() bool { return server.Room(d.Server) == room })
	d.wants(t, "/cni", whole, 200)
}
