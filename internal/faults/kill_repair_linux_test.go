package faults_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
)

// repairsPerHost is the number of repairs that are killed on one host.
const repairsPerHost = 4

// breakage is something that Repair puts back as it was.
type breakage struct {
	name string
	do   func(l *living, h *home) error
	not  string // the kind of plugins that it cannot be repaired for
	last int    // of several, the one with the greatest comes last
}

func breakages() []breakage {
	return []breakage{
		{name: "rules flushed", do: func(l *living, _ *home) error { l.flush(); return nil }},
		{name: "bridge deleted", last: 1, not: executables, do: func(*living, *home) error { return nettest.OnLink("br0", netlink.LinkDel) }},
		{name: "bridge down", not: executables, do: func(*living, *home) error { return nettest.OnLink("br0", netlink.LinkSetDown) }},
		{name: "port off the bridge", do: func(_ *living, h *home) error { return h.onHostEnd(netlink.LinkSetNoMaster) }},
		{name: "host's end down, rules flushed", do: func(l *living, h *home) error {
			l.flush()
			return h.onHostEnd(netlink.LinkSetDown)
		}},
	}
}

// onHostEnd calls do with the host's end of the container's pair.
func (h *home) onHostEnd(do func(netlink.Link) error) error {
	index := 0
	err := h.ns.Do(func() error {
		return nettest.OnLink("eth0", func(l netlink.Link) error {
			index = l.Attrs().ParentIndex
			return nil
		})
	})
	if err != nil {
		return err
	}
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return err
	}
	return do(link)
}

// killRepairs is M16 for Repair: a container is broken, and the runtime that repairs
// it is killed. The next repair completes it; nothing of any container is lost, and
// nothing is left after their removal.
func (b *board) killRepairs(t *testing.T) {
	b.killRepairing(t, "runtime killed in Repair, repaired again", 17, *repairKills, repairsPerHost, []string{"c1", "c2"},
		func(l *living, _ audit.Lines) bool { return l.killRepair() })
}

// killRepairing attaches containers on hosts with each kind of plugins, and kills on each
// of them some runtimes that repair the containers.
func (b *board) killRepairing(t *testing.T, what string, stream uint64, kills, perHost int, ids []string, kill func(l *living, attached audit.Lines) (hit bool)) {
	kinds := []string{builtIn, executables, ourIPTables}
	var c count
	onHosts(t, kills, perHost, func(t *testing.T, first, end int) {
		kind := kinds[first/perHost%len(kinds)]
		l := b.newLiving(t, stream<<32+uint64(first), func(*rand.Rand) string { return kind })
		l.moves = kind == executables || kind == ourIPTables
		l.round(func(l *living) {
			l.attach(ids...)
			attached := l.unrecorded()
			for n := first; n < end && l.harmed()+len(l.wrong) == 0; n++ {
				c.add("kills", 1)
				if kill(l, attached) {
					c.add("in the middle", 1)
				}
			}
		}, &c)
	})
	b.figure(t, "M16", what,
		fmt.Sprintf("%d of %d harmed, %d leaks or other faults in %d kills (%d in the middle)",
			c.get("harmed"), c.get("living"), c.get("wrong"), c.get("kills"), c.get("in the middle")),
		"0", c.get("harmed")+c.get("wrong") == 0 && c.get("kills") > 0)
}

// killRepair breaks one of the containers, kills the runtime that repairs it, and
// repairs all. It reports whether the runtime was still at work.
func (l *living) killRepair() (hit bool) {
	l.t.Helper()
	all := breakages()
	broken := all[l.random.IntN(len(all))]
	for broken.not == l.kind {
		broken = all[l.random.IntN(len(all))]
	}
	home := l.homes[l.random.IntN(len(l.homes))]
	expect.NoError(l.t, broken.do(l, home))
	delay := time.Duration(l.random.Int64N(int64(l.wholeRepair(broken, home))))
	p := begin(l.t, job{Verb: "REPAIR", ID: home.id, Settings: l.set})
	<-time.After(delay)
	hit = p.kill()
	for _, h := range l.homes { // most breakages are everybody's
		l.ok(fmt.Sprintf("repair %s after %s, killed after %v", h.id, broken.name, delay),
			elsewhere(l.t, job{Verb: "REPAIR", ID: h.id, Settings: l.set}))
		l.ok("health of "+h.id, elsewhere(l.t, job{Verb: "HEALTH", ID: h.id, Settings: l.set}))
	}
	for _, h := range l.homes {
		h.look()
	}
	return hit
}

// wholeRepair returns how long a repair of the breakage takes that is not killed. It
// measures it once, and breaks the container again.
func (l *living) wholeRepair(broken breakage, home *home) time.Duration {
	l.t.Helper()
	if took, ok := l.took[broken.name]; ok {
		return took
	}
	p := begin(l.t, job{Verb: "REPAIR", ID: home.id, Settings: l.set})
	begun := time.Now()
	killed, said := p.wait()
	took := time.Since(begun)
	if killed || said != "" {
		l.say("repair after %s, without a fault: %s", broken.name, said)
	}
	l.took[broken.name] = took
	expect.NoError(l.t, broken.do(l, home))
	return took
}
