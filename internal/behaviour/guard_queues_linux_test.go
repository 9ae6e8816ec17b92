package behaviour_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/internal/expect"
)

// shapedHost returns a host with containers whose traffic is limited in both directions.
func shapedHost(t *testing.T, n int) *guardedHost {
	t.Helper()
	h := &guardedHost{realHost: newRealHost(t), t: t, wake: make(chan struct{}, 1)}
	h.outside = h.Outside()
	h.Serve(h.outside, 7)
	conf := strings.ReplaceAll(guardConf(false, ""), "IPAM", h.Path("ipam"))
	conf = strings.TrimSuffix(conf, "]}") + `,
		{"type": "bandwidth", "ingressRate": 800000000, "ingressBurst": 800000000, "egressRate": 800000000, "egressBurst": 800000000}]}`
	h.r = h.Runtime(cni.WithConfListBytes([]byte(conf)), cni.WithBuiltinPlugins(), cni.WithHostNetNS(h.Path("netns", "host")))
	for i := range n {
		h.attach(i)
	}
	return h
}

// limiter returns the device that limits what a container sends.
func (h *guardedHost) limiter(i int) string {
	h.t.Helper()
	link, err := netlink.LinkByName(h.hostEnd(i))
	expect.NoError(h.t, err)
	filters, err := netlink.FilterList(link, netlink.MakeHandle(0xffff, 0))
	expect.NoError(h.t, err)
	for _, f := range filters {
		if u, ok := f.(*netlink.U32); ok && len(u.Actions) > 0 {
			if m, ok := u.Actions[0].(*netlink.MirredAction); ok {
				device, err := netlink.LinkByIndex(m.Ifindex)
				expect.NoError(h.t, err)
				return device.Attrs().Name
			}
		}
	}
	h.t.Fatalf("%s redirects nowhere: %v", h.hostEnd(i), filters)
	return ""
}

// TestGuardRepairsQueues: a queue, or a filter, that somebody deletes is made again, and
// nothing else is repaired.
func TestGuardRepairsQueues(t *testing.T) {
	scripts := []string{
		"tc qdisc del dev END root",
		"tc qdisc del dev END ingress",
		"tc filter del dev END parent ffff:",
		"tc qdisc del dev LIMITER root",
		"ip link del LIMITER",
		"tc qdisc del dev END root; tc qdisc del dev END ingress; tc qdisc del dev LIMITER root",
	}
	h := shapedHost(t, len(scripts))
	h.back("at first")
	h.guard(h.r, guard.Options{Classes: guard.Links})
	h.quiet()
	h.wantNoFlapping("at first", h.taken())
	for i, script := range scripts { // each to another container, since what is lost often is contested
		h.shell(strings.NewReplacer("END", h.hostEnd(i), "LIMITER", h.limiter(i)).Replace(script))
		e := h.awaitRepair(script)
		expect.Same(t, script+": repaired", e.ContainerID, h.ids[i])
		h.quiet()
		h.wantNoFlapping(script, h.taken())
		report, err := h.r.Health(context.Background(), cni.HealthOptions{WithoutCheck: true})
		expect.NoError(t, err)
		expect.Same(t, script+": healthy", report.Count(cni.StateHealthy), len(scripts))
		h.back(script)
	}
}

// awaitRepair waits until something was repaired, and returns the event.
func (h *guardedHost) awaitRepair(what string) (repaired guard.Event) {
	h.t.Helper()
	expect.Eventually(h.t, what+": repaired", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, e := range h.events {
			if e.Kind == guard.Repaired {
				repaired = e
				return true
			}
		}
		return false
	})
	return repaired
}

// TestOwnQueuesWakeNobody: Setup of containers whose traffic is limited makes queues, and
// has nothing looked at. Nothing is wrong after Remove, and after changes of others' queues.
func TestOwnQueuesWakeNobody(t *testing.T) {
	h := shapedHost(t, 2)
	h.guard(h.r, guard.Options{})
	h.quiet()
	h.taken()
	for i := 2; i < 6; i++ {
		h.attach(i)
	}
	h.quiet()
	if events := h.taken(); len(events) > 0 {
		t.Errorf("Setup caused %q", events)
	}
	for i := 2; i < 6; i++ {
		expect.NoError(t, h.r.Remove(context.Background(), fmt.Sprintf("c%d", i), ""))
	}
	h.shell("ip link add vm0 type veth peer name vm1; tc qdisc add dev vm0 root tbf rate 1mbit burst 100k latency 25ms; tc qdisc del dev vm0 root; ip link del vm0")
	h.quiet()
	h.wantOnlyLooks("Remove and a queue of another interface", h.taken())
}
