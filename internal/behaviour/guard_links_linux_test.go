package behaviour_test

import (
	"context"
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
	h := newBareHost(t)
	h.attachAll(strings.TrimSuffix(guardConf(false, ""), "]}")+`,
		{"type": "bandwidth", "ingressRate": 800000000, "ingressBurst": 800000000, "egressRate": 800000000, "egressBurst": 800000000}]}`,
		n, cni.WithBuiltinPlugins())
	return h
}

// isolatedHost returns a host with containers whose ports of the bridge have modes.
func isolatedHost(t *testing.T, n int) *guardedHost {
	t.Helper()
	h := newBareHost(t)
	h.attachAll(strings.Replace(guardConf(false, ""), `"bridge": "br0",`, `"bridge": "br0", "hairpinMode": true, "portIsolation": true,`, 1),
		n, cni.WithBuiltinPlugins())
	return h
}

// limiter returns the device that limits what a container sends.
func (h *guardedHost) limiter(i int) string {
	h.t.Helper()
	link := expect.Value(netlink.LinkByName(h.hostEnd(i)))(h.t)
	filters := expect.Value(netlink.FilterList(link, netlink.MakeHandle(0xffff, 0)))(h.t)
	for _, f := range filters {
		if u, ok := f.(*netlink.U32); ok && len(u.Actions) > 0 {
			if m, ok := u.Actions[0].(*netlink.MirredAction); ok {
				device := expect.Value(netlink.LinkByIndex(m.Ifindex))(h.t)
				return device.Attrs().Name
			}
		}
	}
	h.t.Fatalf("%s redirects nowhere: %v", h.hostEnd(i), filters)
	return ""
}

// TestGuardRepairsLinks: a queue, a filter, or a mode of a port of the bridge that somebody
// takes away, in whatever way, is made again, and nothing else is repaired.
func TestGuardRepairsLinks(t *testing.T) {
	for name, tt := range map[string]struct {
		attached func(t *testing.T, n int) *guardedHost
		scripts  []string
		kind     string
	}{
		"queues": {shapedHost, []string{
			"tc qdisc del dev END root",
			"tc qdisc del dev END ingress",
			"tc filter del dev END parent ffff:",
			"tc qdisc del dev LIMITER root",
			"ip link del LIMITER",
			"tc qdisc del dev END root; tc qdisc del dev END ingress; tc qdisc del dev LIMITER root",
		}, ""},
		"port modes": {isolatedHost, []string{
			"bridge link set dev END hairpin off",
			"bridge link set dev END isolated off",
			"ip link set dev END type bridge_slave hairpin off",
			`unshare -m sh -ec "mount -t sysfs sysfs /sys; echo 0 >/sys/class/net/END/brport/isolated"`,
		}, "bridge port"},
	} {
		t.Run(name, func(t *testing.T) {
			h := tt.attached(t, len(tt.scripts))
			h.back("at first")
			h.guard(h.r, guard.Options{Classes: guard.Links})
			h.quiet()
			h.wantNoFlapping("at first", h.taken())
			for i, script := range tt.scripts { // each to another container, since what is lost often is contested
				if strings.Contains(script, "LIMITER") {
					script = strings.ReplaceAll(script, "LIMITER", h.limiter(i))
				}
				h.sh(strings.ReplaceAll(script, "END", h.hostEnd(i)))
				e := h.awaitRepair(script)
				expect.Same(t, script+": repaired", e.ContainerID, h.ids[i])
				if tt.kind != "" {
					expect.Same(t, script+": kind", e.Difference.Kind, tt.kind)
				}
				h.quiet()
				h.wantNoFlapping(script, h.taken())
				report := expect.Value(h.r.Health(context.Background(), cni.HealthOptions{WithoutCheck: true}))(t)
				expect.Same(t, script+": healthy", report.Count(cni.StateHealthy), len(tt.scripts))
				h.back(script)
			}
		})
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
