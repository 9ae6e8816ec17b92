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
	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/internal/testhost"
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
	filters := expect.Value(netlink.FilterList(h.Link("", h.hostEnd(i)), netlink.MakeHandle(0xffff, 0)))(h.t)
	for _, f := range filters {
		if u, ok := f.(*netlink.U32); ok && len(u.Actions) > 0 {
			if m, ok := u.Actions[0].(*netlink.MirredAction); ok {
				return expect.Value(netlink.LinkByIndex(m.Ifindex))(h.t).Attrs().Name
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
			for i, script := range tt.scripts { // a container for each: a part that is lost three times is contested
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
				expect.Same(t, script+": healthy", testhost.Healthy(report), len(tt.scripts))
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

// locked has another call work on a container until the returned function is called.
func (h *guardedHost) locked(id string) (release func()) {
	h.t.Helper()
	held := expect.Value(lock.Open(h.Path("state", "embedcni", "locks")).Lock(h.t.Context(), "container/"+id))(h.t)
	return func() { expect.NoError(h.t, held.Release()) }
}

// othersBack waits until all containers but one reach the outside and are reached.
func (h *guardedHost) othersBack(but int) {
	h.t.Helper()
	for i := range h.ids {
		if i != but {
			expect.Eventually(h.t, fmt.Sprint(h.ids[i], " is back"), func() bool { return h.reaches(i) == nil })
		}
	}
}

// TestGuardLeavesABusyContainerOut of those that it repairs together, and repairs it when
// the other call has ended.
func TestGuardLeavesABusyContainerOut(t *testing.T) {
	const busy = 2
	for _, backend := range []string{"", "iptables"} {
		t.Run(fmt.Sprintf("backend %q", backend), func(t *testing.T) {
			h := newGuardedHost(t, false, backend, 6)
			h.guard(h.r, guard.Options{})
			h.quiet()
			h.taken()
			for _, damage := range []string{"nft flush ruleset", "ip link del br0"} {
				release := h.locked(h.ids[busy])
				h.sh(damage)
				h.othersBack(busy)
				// Events do not tell: that of an earlier repair may come after its end.
				expect.Fails(t, damage+": "+h.ids[busy]+" was repaired beside another call", h.reaches(busy))
				release()
				h.back(damage)
				h.quiet()
				h.wantNoFlapping(damage, h.taken())
			}
		})
	}
}

// TestRecoverRepairsManyTogether: all but the one that another call works on, which is
// repaired the next time, and the one that is held.
func TestRecoverRepairsManyTogether(t *testing.T) {
	const n, busy, held = 12, 3, 5
	for _, backend := range []string{"", "iptables"} {
		t.Run(fmt.Sprintf("backend %q", backend), func(t *testing.T) {
			h := newGuardedHost(t, false, backend, n)
			expect.NoError(t, guard.Hold{ContainerID: h.ids[held]}.Begin(t.Context(), h.r))
			h.sh("nft flush ruleset; ip link del br0")
			release := h.locked(h.ids[busy])
			report := expect.Value(h.another().Recover(t.Context()))(t)
			release()
			bridges := 0
			for i, id := range h.ids {
				repaired := report.Repaired[id]
				switch i {
				case busy:
					expect.Is(t, report.Skipped[id], cni.ErrBusy)
					expect.Same(t, "repaired of the busy one", len(repaired), 0)
				case held:
					expect.That(t, report.Kept[id] != nil && len(repaired) == 0, "held: kept because of %v, repaired %v", report.Kept[id], repaired)
				default:
					if report.Kept[id] != nil || len(repaired) < 3 { // its port on the bridge, masquerading, forwarding
						t.Errorf("%s: kept because of %v, repaired %v", id, report.Kept[id], repaired)
					}
				}
				for _, d := range repaired {
					if d.Kind == "bridge" {
						bridges++
					}
				}
			}
			expect.Same(t, "containers for which the bridge was made", bridges, 1)
			expect.Same(t, "repaired the next time", len(expect.Value(h.another().Recover(t.Context()))(t).Repaired), 1)
			expect.NoError(t, guard.Hold{ContainerID: h.ids[held]}.End(t.Context(), h.r))
			expect.Value(h.another().Recover(t.Context()))(t)
			h.back("recovered")
		})
	}
}
