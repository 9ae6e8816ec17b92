package main

import (
	"fmt"
	"time"
)

// An ADD must not cost more with many attached containers than with few.
const fewAttached, manyAttached = 10, 3000

// target is a promised figure and its measured value. Both sides of a ratio
// come from the same run.
type target struct {
	What   string
	AtMost bool // the promise is an upper bound instead of a lower one
	Want   float64
	Unit   string // "×", or the counted unit
	Got    float64
	Known  bool // the figure was measured
}

func (t target) reached() bool {
	if t.AtMost {
		return t.Got <= t.Want
	}
	return t.Got >= t.Want
}

func (t target) wanted() string {
	sign := "≥"
	if t.AtMost {
		sign = "≤"
	}
	return fmt.Sprintf("%s %g%s", sign, t.Want, t.Unit)
}

func (t target) got() string {
	if !t.Known {
		return "not measured"
	}
	return fmt.Sprintf("%.3g%s", t.Got, t.Unit)
}

func (t target) verdict() string {
	switch {
	case !t.Known:
		return "–"
	case t.reached():
		return "yes"
	}
	return "**no**"
}

// ours and theirs, as ratios name them.
func oursNFT() contender  { return contender{Kind: kindInProcess, Backend: native} }
func oursIPT() contender  { return contender{Kind: kindInProcess, Backend: iptables} }
func goCNINFT() contender { return contender{Kind: kindGoCNI, Backend: nftables} }
func goCNIIPT() contender { return contender{Kind: kindGoCNI, Backend: iptables} }
func theFloor() contender { return contender{Kind: kindFloor} }

// targets returns the plan's targets in order.
func (r *results) targets() []target {
	atMost := func(what string, want float64, over, under figure) target {
		return ratio(r, target{What: what, AtMost: true, Want: want, Unit: "×"}, over, under)
	}
	atLeast := func(what string, want float64, over, under figure) target {
		return ratio(r, target{What: what, Want: want, Unit: "×"}, over, under)
	}
	add := func(scenario string, c contender) figure { return figure{scenario: scenario, c: c, verb: "ADD"} }
	del := func(scenario string, c contender) figure { return figure{scenario: scenario, c: c, verb: "DEL"} }
	rate := func(c contender) figure { return figure{scenario: "crowd64", c: c, verb: "ADD", rate: true} }
	attached := func(n int) figure {
		return figure{scenario: "attached", c: oursNFT(), verb: "ADD", attached: n}
	}
	return []target{
		atMost("bridge, ipMasq, portmap on nftables: ADD against the floor", 1.5, add("nat", oursNFT()), add("nat", theFloor())),
		atLeast("the same: faster than go-cni on iptables", 20, add("nat", goCNIIPT()), add("nat", oursNFT())),
		atLeast("the same: faster than go-cni on nftables", 15, add("nat", goCNINFT()), add("nat", oursNFT())),
		atLeast("the same and firewall, iptables insisted on: faster than go-cni", 8, add("firewall", goCNIIPT()), add("firewall", oursIPT())),
		atMost("DEL against the floor", 1.3, del("nat", oursNFT()), del("nat", theFloor())),
		atLeast("DEL: faster than go-cni on iptables", 6, del("nat", goCNIIPT()), del("nat", oursNFT())),
		atLeast("loopback ADD: faster than go-cni", 6,
			add("loopback", contender{Kind: kindGoCNI}), add("loopback", contender{Kind: kindInProcess})),
		atLeast("64 at once: ADDs per second, against go-cni on iptables", 10, rate(oursNFT()), rate(goCNIIPT())),
		atMost(r.growthText(), 1.3, attached(manyAttached), attached(fewAttached)),
		r.processTarget(),
		r.lasts("Setup from a warm pool", 1, r.median("nat", pooled(false), verbADD, 0)),
		r.lasts("the same without the sync of the record", 0.3, r.median("nat", pooled(true), verbADD, 0)),
		r.lasts("verdict on 1,000 containers", 500, r.median("verdict", oursNFT(), verbVerdict, 1000)),
	}
}

// lasts returns a target in milliseconds.
func (*results) lasts(what string, want float64, took time.Duration) target {
	t := target{What: what, AtMost: true, Want: want, Unit: " ms"}
	if took > 0 {
		t.Got, t.Known = took.Seconds()*1000, true
	}
	return t
}

// growthText also states the kernel's own growth: adding a port costs more on a
// bridge with a thousand ports.
func (r *results) growthText() string {
	text := fmt.Sprintf("ADD with %s attached against ADD with %d", thousands(manyAttached), fewAttached)
	floor := func(n int) time.Duration { return r.median("attached", theFloor(), "ADD", n) }
	if a, b := floor(manyAttached), floor(fewAttached); a > 0 && b > 0 {
		text += fmt.Sprintf(" (the floor itself: %s)", times(a, b))
	}
	return text
}

// figure is one side of a ratio.
type figure struct {
	scenario string
	c        contender
	verb     string
	attached int
	rate     bool // operations per second instead of the median duration
}

func (r *results) value(f figure) (float64, bool) {
	s := r.find(f.scenario, f.c, f.verb, f.attached)
	switch {
	case s == nil:
		return 0, false
	case f.rate:
		return s.rate(), true
	}
	return summarize(s.Micros).Median.Seconds(), true
}

func ratio(r *results, t target, over, under figure) target {
	a, okA := r.value(over)
	b, okB := r.value(under)
	if okA && okB && b > 0 {
		t.Got, t.Known = a/b, true
	}
	return t
}

func (r *results) processTarget() target {
	t := target{What: "processes started per ADD in process, on nftables", AtMost: true}
	for _, c := range r.Counts {
		if c.Scenario == "nat" && c.Verb == "ADD" && c.Contender == oursNFT() {
			t.Got, t.Known = c.Processes, true
		}
	}
	return t
}
