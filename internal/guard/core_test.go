package guard

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

// start is some time.
func start() time.Time { return time.Unix(1_000_000, 0) }

// settledCore returns a Core with two containers on a bridge, and one with a route, that
// has looked at all containers.
func settledCore(classes Class) *Core {
	c := NewCore(classes)
	c.Links([]Link{{1, "br0", true, 0, false, 1}, {2, "veth1", true, 1, false, 0}, {3, "veth2", true, 1, false, 0}, {4, "veth3", true, 0, false, 0}, {5, "eth0", true, 0, false, 0}}, nil)
	for id, link := range map[string]string{"c1": "veth1", "c2": "veth2", "c3": "veth3"} {
		n := id[1:]
		signs := []Sign{OfAddress(netip.MustParseAddr("10.1.0." + n)), OfLink(link)}
		if id != "c3" {
			signs = append(signs, OfLink("br0"))
		}
		c.Index.Set(id, signs)
	}
	task, due, _ := gatherAndDue(c, start().Add(-time.Hour))
	if !due || !task.Whole {
		panic("it does not look at all containers at the begin")
	}
	c.Looked(start().Add(-time.Hour), 0, nil)
	return c
}

// gatherAndDue is a Due with an Index that is up to date.
func gatherAndDue(c *Core, now time.Time) (Task, bool, time.Time) {
	c.Gather(now)
	return c.Due(now)
}

// followed returns the look that follows events.
func followed(c *Core, events ...Event) string {
	for _, e := range events {
		c.Take(start(), e)
	}
	task, due, next := gatherAndDue(c, start().Add(time.Second))
	switch {
	case !due && !next.IsZero():
		return "later"
	case !due:
		return ""
	case task.Whole:
		return "all"
	}
	return fmt.Sprint(task.Containers)
}

// port returns the announcement of a port with these VLANs.
func port(index int, mode *PortMode, vlans ...VLANs) Event {
	return Event{Port: &Port{Interface: index, Mode: mode, VLANs: &vlans}}
}

// TestPortsThatLoseSomething: a mode or a VLAN that a port has lost points at its
// container, and what an ADD does to a port points at none.
func TestPortsThatLoseSomething(t *testing.T) {
	own := func(id uint16) VLANs { return VLANs{id, id, true} }
	tagged := func(first, last uint16) VLANs { return VLANs{first, last, false} }
	plain, hairpin, isolated := &PortMode{}, &PortMode{Hairpin: true}, &PortMode{Isolated: true}
	veth1 := func(master int) Event { return Event{Link: &Link{2, "veth1", true, master, false, 0}} }
	for _, c := range []struct {
		what   string
		events []Event
		want   string
	}{
		{"its own VLAN", []Event{port(2, nil, own(7)), port(2, nil)}, "[c1]"},
		{"one of its VLANs", []Event{port(2, nil, own(7), tagged(100, 199)), port(2, nil, own(7), tagged(100, 149), tagged(151, 199))}, "[c1]"},
		{"the first of its VLANs", []Event{port(2, nil, tagged(100, 199)), port(2, nil, tagged(101, 199))}, "[c1]"},
		{"a VLAN is its own no longer", []Event{port(2, nil, own(7)), port(2, nil, tagged(7, 7))}, "[c1]"},
		{"another is its own", []Event{port(2, nil, own(7)), port(2, nil, own(8))}, "[c1]"},
		{"the same in other ranges", []Event{port(2, nil, own(7), tagged(100, 199)), port(2, nil, tagged(150, 300), own(7), tagged(100, 149))}, ""},
		{"all IDs", []Event{port(2, nil, tagged(1, 65535)), port(2, nil, tagged(1, 65535))}, ""},
		{"more VLANs", []Event{port(2, nil), port(2, nil, own(7)), port(2, nil, own(7), tagged(100, 100))}, ""},
		{"an ADD", []Event{port(2, plain, own(1)), port(2, plain), port(2, plain, own(7)), port(2, plain, own(7), tagged(100, 199))}, ""},
		{"an ADD that adds first", []Event{port(2, plain, own(1)), port(2, plain, tagged(1, 1), own(7)), port(2, plain, own(7))}, ""},
		{"the default VLAN within a range", []Event{port(2, nil, tagged(1, 9)), port(2, nil, tagged(2, 9))}, ""},
		{"hairpin mode", []Event{port(2, hairpin), port(2, plain)}, "[c1]"},
		{"isolation", []Event{port(2, isolated), port(2, hairpin)}, "[c1]"},
		{"a mode is set", []Event{port(2, plain), port(2, hairpin), port(2, nil), port(2, hairpin)}, ""},
		{"a mode between announcements that do not say", []Event{port(2, hairpin), port(2, nil), port(2, plain)}, "[c1]"},
		{"VLANs between announcements that do not say", []Event{port(2, nil, own(7)), {Port: &Port{Interface: 2, Mode: plain}}, port(2, nil)}, "[c1]"},
		{"of the bridge itself", []Event{port(1, nil, own(7)), port(1, nil)}, ""},
		{"of an unknown interface", []Event{port(77, nil, own(7)), port(77, nil)}, ""},
		{"on a bridge anew", []Event{port(2, hairpin, own(7)), veth1(0), port(2, nil), veth1(1), port(2, plain, own(1))}, "[c1]"}, // it has left
	} {
		t.Run(c.what, func(t *testing.T) {
			core := settledCore(All)
			if got := followed(core, c.events...); got != c.want {
				t.Errorf("looked at %q, want %q", got, c.want)
			}
			if len(core.ports) > 1 {
				t.Errorf("%d ports are known", len(core.ports))
			}
		})
	}
	if got := followed(settledCore(Rules|Routes), port(2, hairpin, own(7)), port(2, plain)); got != "" {
		t.Errorf("links are not guarded, and it looked at %q", got)
	}
}

// TestPortsAreForgotten when they leave their bridge, or go. A difference in a list that
// follows lost announcements is not a loss.
func TestPortsAreForgotten(t *testing.T) {
	vlans := []VLANs{{7, 7, true}}
	c := settledCore(All)
	c.Links([]Link{{1, "br0", true, 0, false, 1}, {2, "veth1", true, 1, false, 0}},
		[]Port{{Interface: 2, Mode: &PortMode{Hairpin: true}}, {Interface: 2, VLANs: &vlans}, {Interface: 1, VLANs: &vlans}})
	if p := c.ports[2]; len(c.ports) != 1 || p.Mode == nil || p.VLANs == nil {
		t.Errorf("ports %+v", c.ports)
	}
	c.Links([]Link{{1, "br0", true, 0, false, 1}, {2, "veth1", true, 1, false, 0}}, nil)
	if got := followed(c, port(2, &PortMode{}), Event{Link: &Link{2, "veth1", false, 0, true, 0}}); got != "[c1]" || len(c.ports) > 0 {
		t.Errorf("looked at %q, ports %+v", got, c.ports)
	}
}

// TestEventsPointAtContainers: what is lost points at the containers that lose it, and
// nothing else points at any.
func TestEventsPointAtContainers(t *testing.T) {
	link := func(l Link) Event { return Event{Link: &l} }
	route := func(dst string, index int) Event { return Event{Route: &Route{index, netip.MustParsePrefix(dst)}} }
	rules := Event{Rules: &Changed{By: "nft"}}
	for _, c := range []struct {
		what   string
		events []Event
		want   string
	}{
		{"a bridge is set down", []Event{link(Link{1, "br0", false, 0, false, 0})}, "[c1 c2]"},
		{"a bridge is deleted", []Event{link(Link{1, "br0", true, 0, true, 0})}, "[c1 c2]"},
		{"a bridge is renamed", []Event{link(Link{1, "br9", true, 0, false, 0})}, "[c1 c2]"},
		{"a port leaves its bridge", []Event{link(Link{2, "veth1", true, 0, false, 0})}, "[c1]"},
		{"a port moves to another bridge", []Event{link(Link{2, "veth1", true, 9, false, 0})}, "[c1]"},
		{"a port is set down", []Event{link(Link{3, "veth2", false, 1, false, 0})}, "[c2]"},
		{"an interface that stays as it was", []Event{link(Link{1, "br0", true, 0, false, 0})}, ""},
		{"another interface", []Event{link(Link{5, "eth0", false, 0, true, 0})}, ""},
		{"a new interface", []Event{link(Link{9, "veth9", false, 0, false, 0}), link(Link{9, "veth9", true, 1, false, 0})}, ""},
		{"a new interface that moves away", []Event{link(Link{9, "veth9", false, 0, false, 0}), link(Link{9, "veth9", false, 0, true, 0})}, ""},
		{"down and up again", []Event{link(Link{1, "br0", false, 0, false, 0}), link(Link{1, "br0", true, 0, false, 0})}, "[c1 c2]"},
		{"a bridge loses an address", []Event{{Address: &Address{1}}}, "[c1 c2]"},
		{"another interface loses an address", []Event{{Address: &Address{5}}}, ""},
		{"a bridge loses a queue", []Event{{Queue: &Queue{1}}}, "[c1 c2]"},
		{"another interface loses a queue", []Event{{Queue: &Queue{5}}}, ""},
		{"an unknown interface loses an address", []Event{{Address: &Address{77}}}, ""},
		{"the route to a container", []Event{route("10.1.0.3/32", 4)}, "[c3]"},
		{"another host route", []Event{route("10.9.0.3/32", 4)}, ""},
		{"the route of a bridge", []Event{route("10.1.0.0/24", 1)}, "[c1 c2]"},
		{"another route", []Event{route("0.0.0.0/0", 5)}, ""},
		{"rules have changed", []Event{rules}, "all"},
		{"announcements were lost", []Event{{Lost: Rules}}, "all"},
		{"a hold has changed", []Event{{Holds: true}}, "all"},
		{"several at once", []Event{link(Link{2, "veth1", true, 0, false, 0}), route("10.1.0.3/32", 4)}, "[c1 c3]"},
	} {
		expect.Same(t, c.what, followed(settledCore(All), c.events...), c.want)
	}
}

// TestClassesAreChosenSingly: the signs of a class that is not guarded wake nobody.
func TestClassesAreChosenSingly(t *testing.T) {
	signs := map[Class]Event{
		Links:  {Link: &Link{1, "br0", false, 0, false, 0}},
		Routes: {Route: &Route{4, netip.MustParsePrefix("10.1.0.3/32")}},
		Rules:  {Rules: &Changed{By: "nft"}},
	}
	for chosen := range All + 1 {
		for class, e := range signs {
			for _, event := range []Event{e, {Lost: class}} {
				if got := followed(settledCore(chosen), event) != ""; got != (chosen&class != 0) {
					t.Errorf("guarding %q: a sign of %q: looked %v", chosen, class, got)
				}
			}
		}
	}
}

// TestALookWaitsForQuiet: signs are collected until there are none for a moment, but not
// for ever.
func TestALookWaitsForQuiet(t *testing.T) {
	c := settledCore(All)
	now := start()
	var looks []time.Duration
	for ; now.Before(start().Add(time.Second)); now = now.Add(time.Millisecond) {
		if now.Before(start().Add(300 * time.Millisecond)) { // without a pause
			c.Take(now, Event{Route: &Route{4, netip.MustParsePrefix("10.1.0.3/32")}})
		}
		if task, due, _ := gatherAndDue(c, now); due {
			looks = append(looks, now.Sub(start()))
			c.Looked(now, 0, nil)
			for _, id := range task.Containers {
				c.Settled(now, id, nil)
			}
		}
	}
	expect.Same(t, "looks", looks, []time.Duration{patience, patience + shortestRest, patience + 2*shortestRest})
}

// TestLooksRest: looks take a bounded part of the time, and a rest that grows if they
// fail.
func TestLooksRest(t *testing.T) {
	c := settledCore(All)
	now, failing := start(), fmt.Errorf("no")
	var rests []time.Duration
	look := func(took time.Duration, err error) {
		t.Helper()
		c.Take(now, Event{Lost: All})
		ended := now
		for {
			_, due, next := gatherAndDue(c, now)
			if due {
				break
			}
			now = next
		}
		rests = append(rests, now.Sub(ended))
		now = now.Add(took)
		c.Looked(now, took, err)
	}
	const n = 100
	for range n {
		look(100*time.Millisecond, nil)
	}
	if took, rested := n*100*time.Millisecond, now.Sub(start())-n*100*time.Millisecond; rested < looksRest*took-mostOwed-time.Second {
		t.Errorf("after looks of %v it has rested for %v", took, rested)
	}
	if rests[1] > shortestRest+patience || rests[n-1] < looksRest*100*time.Millisecond {
		t.Errorf("at first it rests for %v, and in the end for %v", rests[1], rests[n-1])
	}
	now = now.Add(mostOwed)
	for range 2 { // the rests that it owed are over
		if look(100*time.Millisecond, nil); rests[len(rests)-1] > shortestRest+patience {
			t.Errorf("after a while it rests for %v", rests[len(rests)-1])
		}
	}
	for i := range 16 {
		look(time.Second, failing)
		if rest := rests[len(rests)-1]; rest > longestRest+patience {
			t.Errorf("failed look %d came after %v", i, rest)
		}
	}
	if last := rests[len(rests)-1]; last < longestRest {
		t.Errorf("after 16 failures it rests for %v", last)
	}
	now = now.Add(longestRest)
	look(time.Second, nil)
	if c.rest != now.Add(looksRest*time.Second-mostOwed) {
		t.Errorf("after a success it rests for %v", c.rest.Sub(now))
	}
}

// TestContested: the third loss within a minute is left, until somebody puts it back.
func TestContested(t *testing.T) {
	c := settledCore(All)
	now := start()
	f := Found{Item: Item{Container: "c1", Object: "x"}, Class: Links, Fixable: true}
	lose := func(want Decision, news bool) {
		t.Helper()
		if d, first := c.Want(now, f); d != want || first != news {
			t.Errorf("%v: got %s, %v; want %s, %v", now.Sub(start()), d, first, want, news)
		}
	}
	mend := func() { c.Compared(now, "c1", nil) }
	after := func(d time.Duration) { now = now.Add(d) }
	for range 2 {
		lose(Repair, true)
		lose(Repair, false) // it is the same loss
		mend()
		after(time.Second)
	}
	lose(Contested, true)
	after(10 * time.Minute)
	lose(Contested, false)
	c.Compared(now, "c1", []Item{f.Item})
	lose(Contested, false)
	mend()
	lose(Repair, true)
	// Slowly it is never contested.
	for range 10 {
		mend()
		after(31 * time.Second)
		lose(Repair, true)
	}
	// A failed repair is no loss.
	for range 10 {
		after(time.Second)
		lose(Repair, false)
	}
	// Another thing of the container is not contested.
	f.Object = "y"
	lose(Repair, true)
	// Made counts like a comparison.
	c.Made(now, f.Item)
	lose(Repair, true)
	c.Made(now, f.Item)
	lose(Contested, true)
	c.Forget("c1")
	lose(Repair, true)
}

// TestDecisions: why a thing is left.
func TestDecisions(t *testing.T) {
	for want, f := range map[Decision]Found{
		Unchosen:  {Item: Item{Object: "1"}, Class: Rules, Fixable: true},
		Held:      {Item: Item{Object: "2"}, Class: Links, Fixable: true, Held: true},
		Different: {Item: Item{Object: "3"}, Class: Links},
		Repair:    {Item: Item{Object: "4"}, Class: Routes, Fixable: true},
	} {
		c := settledCore(Links | Routes)
		for news := range 2 {
			if d, first := c.Want(start(), f); d != want || first != (news == 0) {
				t.Errorf("%+v: %s, %v", f, d, first)
			}
		}
	}
	// What is held and then is not, is news.
	c := settledCore(All)
	f := Found{Item: Item{Object: "1"}, Class: Links, Fixable: true, Held: true}
	c.Want(start(), f)
	f.Held = false
	if d, first := c.Want(start(), f); d != Repair || !first {
		t.Errorf("released: %s, %v", d, first)
	}
}

// TestSignsWaitForTheirIndex: a sign is followed with an Index that is as new as it is.
func TestSignsWaitForTheirIndex(t *testing.T) {
	c := settledCore(All)
	down := func(index int, name string) Event { return Event{Link: &Link{index, name, false, 0, false, 0}} }
	up := func(index int, name string) Event { return Event{Link: &Link{index, name, true, 0, false, 0}} }
	now := start()
	c.Take(now, up(9, "veth9"))
	c.Take(now, down(2, "veth1"))
	now = now.Add(quiet)
	if c.Gather(now.Add(-time.Nanosecond)) {
		t.Fatal("gathered before the signs had settled")
	}
	if task, due, next := c.Due(now); due || !next.Equal(now) {
		t.Errorf("followed what was not gathered: %+v, next in %v", task, next.Sub(now))
	}
	if !c.Gather(now) {
		t.Fatal("nothing was gathered")
	}
	// c9 was attached after the records were read, and loses its interface; c2 is being removed.
	c.Take(now, down(9, "veth9"))
	c.Take(now, down(3, "veth2"))
	now = now.Add(patience)
	if task, due, _ := c.Due(now); !due || !slices.Equal(task.Containers, []string{"c1"}) {
		t.Errorf("looked at %+v, want c1", task)
	}
	c.Looked(now, 0, nil)
	c.Settled(now, "c1", nil)
	now = now.Add(shortestRest)
	if !c.Gather(now) {
		t.Fatal("what came after the first signs was not gathered")
	}
	c.Index.Set("c9", []Sign{OfLink("veth9")})
	c.Forget("c2")
	if task, due, _ := c.Due(now); !due || !slices.Equal(task.Containers, []string{"c9"}) {
		t.Errorf("looked at %+v, want c9", task)
	}
}

// TestFault_F66_ABridgeThatAppearsHasContainersLookedAt: those that lacked something at the
// last comparison, and no others: interfaces appear with each ADD.
func TestFault_F66_ABridgeThatAppearsHasContainersLookedAt(t *testing.T) {
	c := settledCore(All)
	lacks := func(id string) {
		f := Found{Item: Item{Container: id, Kind: "bridge"}, Class: Links}
		c.Compared(start(), id, []Item{f.Item})
		c.Want(start(), f)
	}
	appears := func(index int, name string) Event { return Event{Link: &Link{index, name, true, 0, false, 1}} }
	now := start()
	look := func(what string, want []string, events ...Event) {
		t.Helper()
		for _, e := range events {
			c.Take(now, e)
		}
		now = now.Add(time.Second)
		task, due, next := gatherAndDue(c, now)
		if due != (want != nil) || task.Whole || !slices.Equal(task.Containers, want) || !due && !next.IsZero() {
			t.Errorf("%s: look %t at %+v, next %v; want %v", what, due, task, next, want)
		}
		if due {
			c.Looked(now, 0, nil)
		}
	}
	look("nobody lacks anything", nil, appears(20, "br0"))
	lacks("c1")
	lacks("c3")
	look("another interface", nil, appears(21, "other"))
	look("announced again", nil, appears(20, "br0"))
	look("the bridge is made again", []string{"c1"}, appears(22, "br0"))
	look("another interface gets its name", []string{"c1"}, appears(21, "br0"))
	// It appears while they are looked at.
	c.Take(now, appears(23, "br0"))
	lacks("c2")
	look("meanwhile", []string{"c1", "c2"})
	c.Compared(now, "c1", nil)
	c.Compared(now, "c2", nil)
	now = now.Add(2 * contestedIn) // the core has forgotten what they lacked
	c.Compared(now, "c1", nil)
	c.Compared(now, "c2", nil)
	look("they are whole again", nil, appears(24, "br0"))

	c = settledCore(Rules)
	lacks("c1")
	look("interfaces are not guarded", nil, appears(25, "br0"))
}

// TestRetriesBackOff: a repair that fails is repeated after a time that grows, and at
// once after another sign.
func TestRetriesBackOff(t *testing.T) {
	c := settledCore(All)
	now := start()
	c.Suspect(now, "c1")
	var pauses []time.Duration
	for range 15 {
		before := now
		task, due, next := gatherAndDue(c, now)
		for !due {
			now = next
			task, due, next = gatherAndDue(c, now)
		}
		if !slices.Equal(task.Containers, []string{"c1"}) {
			t.Fatalf("looked at %+v", task)
		}
		pauses = append(pauses, now.Sub(before))
		c.Looked(now, 0, nil)
		c.Settled(now, "c1", fmt.Errorf("no"))
	}
	if !slices.IsSorted(pauses) || pauses[14] != lastRetry {
		t.Errorf("pauses %v", pauses)
	}
	now = now.Add(time.Second)
	c.Take(now, Event{Link: &Link{2, "veth1", false, 1, false, 0}})
	if _, due, _ := gatherAndDue(c, now.Add(patience)); !due {
		t.Error("a new sign waits for the next try")
	}
	c.Settled(now, "c1", nil)
	if _, due, next := gatherAndDue(c, now.Add(time.Hour)); due || !next.IsZero() {
		t.Error("it is looked at again after a success")
	}
}

// TestBusyContainersAreTriedSoon after the call that works on them has ended, however
// long that took, and are reported ever more seldom.
func TestBusyContainersAreTriedSoon(t *testing.T) {
	c := settledCore(All)
	now := start()
	c.Suspect(now, "c1")
	var told []int
	for n := 1; n <= 40; n++ {
		_, due, next := gatherAndDue(c, now)
		before := now
		for !due {
			now = next
			_, due, next = gatherAndDue(c, now)
		}
		if pause := now.Sub(before); pause > lastBusy {
			t.Fatalf("attempt %d came after %v", n, pause)
		}
		c.Looked(now, 0, nil)
		c.Busy(now, "c1")
		if isTold(c.Failures("c1")) {
			told = append(told, n)
		}
	}
	if !slices.Equal(told, []int{5, 9, 17, 33}) {
		t.Errorf("told of attempts %v", told)
	}
	now = now.Add(lastBusy)
	if _, due, _ := gatherAndDue(c, now); !due {
		t.Fatal("it is not looked at again")
	}
	c.Settled(now, "c1", nil)
	if _, due, _ := gatherAndDue(c, now.Add(time.Minute)); due || c.Failures("c1") != 0 {
		t.Error("it is looked at again after a success")
	}
}

// model is a host of containers, each with some things that can be lost.
type model struct {
	things map[string]map[string]bool // container → thing → there
	index  map[string]int             // of the link
	next   int
}

func (m *model) broken() (ids []string) {
	for id, things := range m.things {
		for _, there := range things {
			if !there && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// TestRandomHosts: whatever is lost, in whichever order, alone or under a flood of
// changes by others, all is there again in the end, unless it is contested; and ADDs and
// DELs of containers have nobody looked at.
func TestRandomHosts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		h := &randomHost{t: t, random: random, now: start(), core: NewCore(All), model: model{things: map[string]map[string]bool{}, index: map[string]int{}}}
		h.core.Links(nil, nil)
		for range 5 {
			h.add()
		}
		h.run(time.Minute)
		quiet := random.IntN(3) == 0 // only ADDs and DELs
		looks := h.looks
		for range 30 {
			switch n := random.IntN(10); {
			case n < 2:
				h.add()
			case n < 4:
				h.remove()
			case n == 4:
				h.noise()
			case quiet:
			case n < 8:
				h.lose()
			case n == 8:
				h.flush(false)
			default:
				h.flush(true)
			}
			h.run(time.Duration(random.Int64N(int64(3 * time.Second))))
		}
		h.run(2 * time.Minute)
		if quiet && h.looks != looks {
			t.Fatalf("ADDs, DELs and others' changes had containers looked at %d times", h.looks-looks)
		}
		contested := h.core.ContestedItems()
		for _, id := range h.broken() {
			for thing, there := range h.things[id] {
				if !there && !slices.ContainsFunc(contested, func(i Item) bool { return i.Container == id && i.Object == thing }) {
					t.Fatalf("%s of %s is lost and not contested", thing, id)
				}
			}
		}
	}
}

// randomHost is a model with a guard, in a time of its own.
type randomHost struct {
	model
	t       *testing.T
	random  *rand.Rand
	core    *Core
	now     time.Time
	looks   int
	last    time.Time
	pending []Container // changed records
}

func (h *randomHost) take(e Event) { h.core.Take(h.now, e) }

func (h *randomHost) pick() string {
	ids := make([]string, 0, len(h.things))
	for id := range h.things {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return ""
	}
	slices.Sort(ids)
	return ids[h.random.IntN(len(ids))]
}

func (h *randomHost) linkOf(id string, up, gone bool) Event {
	return Event{Link: &Link{Index: h.index[id], Name: "veth" + id, Up: up, Gone: gone}}
}

// add attaches a container: only additions.
func (h *randomHost) add() {
	h.next++
	id := fmt.Sprint(h.next)
	h.index[id] = h.next
	h.take(h.linkOf(id, false, false))
	h.take(h.linkOf(id, true, false))
	h.things[id] = map[string]bool{"link": true, "rule": true}
	h.pending = append(h.pending, Container{id, true, []Sign{OfLink("veth" + id)}})
}

// remove detaches a container: first the record, then what it has.
func (h *randomHost) remove() {
	id := h.pick()
	if id == "" {
		return
	}
	h.pending = append(h.pending, Container{ID: id})
	delete(h.things, id)
	h.take(h.linkOf(id, false, true))
}

// noise is what other programs do.
func (h *randomHost) noise() {
	for n := range h.random.IntN(50) {
		h.take(Event{Link: &Link{Index: 100_000 + n, Name: fmt.Sprint("other", n), Up: n%2 == 0, Gone: n%3 == 0}})
		h.take(Event{Route: &Route{100_000, netip.MustParsePrefix("192.0.2.0/24")}})
	}
}

func (h *randomHost) lose() {
	id := h.pick()
	if id == "" {
		return
	}
	if h.random.IntN(2) == 0 {
		h.things[id]["link"] = false
		h.take(h.linkOf(id, false, false))
	} else {
		h.things[id]["rule"] = false
		h.take(Event{Rules: &Changed{By: "nft"}})
	}
}

func (h *randomHost) flush(lost bool) {
	for id := range h.things {
		h.things[id]["rule"] = false
	}
	if lost {
		h.take(Event{Lost: Rules})
		return
	}
	h.take(Event{Rules: &Changed{By: "nft"}})
}

// run lets time pass, and does what the core asks for.
func (h *randomHost) run(d time.Duration) {
	end := h.now.Add(d)
	for {
		if h.core.Gather(h.now) {
			for _, c := range h.pending {
				if c.Guarded {
					h.core.Index.Set(c.ID, c.Signs)
				} else {
					h.core.Forget(c.ID)
				}
			}
			h.pending = nil
		}
		task, due, next := h.core.Due(h.now)
		if !due {
			if next.IsZero() || next.After(end) {
				h.now = end
				return
			}
			h.now = maxTime(next, h.now)
			continue
		}
		h.look(task)
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (h *randomHost) look(task Task) {
	h.looks++
	if !h.last.IsZero() && h.now.Sub(h.last) < shortestRest {
		h.t.Fatalf("two looks within %v", h.now.Sub(h.last))
	}
	h.last = h.now
	took := time.Duration(h.random.Int64N(int64(100 * time.Millisecond)))
	h.now = h.now.Add(took)
	h.core.Looked(h.now, took, nil)
	ids := task.Containers
	if task.Whole {
		ids = append(h.broken(), h.core.Differing()...)
	}
	for _, id := range ids {
		h.repair(id)
	}
}

func (h *randomHost) repair(id string) {
	var found []Found
	for thing, class := range map[string]Class{"link": Links, "rule": Rules} {
		if there, ok := h.things[id][thing]; ok && !there {
			found = append(found, Found{Item: Item{Container: id, Object: thing}, Class: class, Fixable: true})
		}
	}
	h.core.Compared(h.now, id, itemsOf(found))
	if h.random.IntN(10) == 0 {
		h.core.Settled(h.now, id, fmt.Errorf("no"))
		return
	}
	var left []Found
	for _, f := range found {
		if d, _ := h.core.Want(h.now, f); d != Repair {
			left = append(left, f)
			continue
		}
		h.things[id][f.Object] = true
		if f.Object == "link" {
			h.take(h.linkOf(id, true, false))
		}
	}
	h.core.Compared(h.now, id, itemsOf(left))
	h.core.Settled(h.now, id, nil)
}
