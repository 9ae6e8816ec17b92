package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// target is a promised figure and its measured value. Both sides of a ratio
// come from the same run.
type target struct {
	What   string
	AtMost bool // the promise is an upper bound instead of a lower one
	Want   float64
	Unit   string // "×", or the counted unit
	Why    string // where the bound comes from, if it is from the same run
	Rule   string // the bound in words, while the run has not measured it
	Got    float64
	Known  bool   // the figure was measured
	Beside string // other figures that explain it
}

func (t target) reached() bool {
	if t.AtMost {
		return t.Got <= t.Want
	}
	return t.Got >= t.Want
}

func (t target) wanted() string {
	if !t.Known && t.Rule != "" {
		return t.Rule
	}
	sign := "≥"
	if t.AtMost {
		sign = "≤"
	}
	return fmt.Sprintf("%s %s%s%s", sign, digits(t.Want), t.Unit, inBrackets(t.Why))
}

func (t target) got() string {
	if !t.Known {
		return "not measured"
	}
	return digits(t.Got) + t.Unit + inBrackets(t.Beside)
}

func inBrackets(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
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

// figure is one side of a ratio.
type figure struct {
	scenario string
	c        contender
	verb     string
	attached int
	rate     bool // operations per second instead of the median duration
}

// The figures that targets compare.
func add(scenario string, c contender) figure { return figure{scenario: scenario, c: c, verb: verbADD} }
func del(scenario string, c contender) figure { return figure{scenario: scenario, c: c, verb: verbDEL} }
func rate(verb, scenario string, c contender) figure {
	return figure{scenario: scenario, c: c, verb: verb, rate: true}
}

func (r *results) value(f figure) (float64, bool) {
	s := r.find(f.scenario, f.c, f.verb, f.attached)
	switch {
	case s == nil || len(s.Micros) == 0:
		return 0, false
	case f.rate:
		v := s.rate()
		return v, v > 0
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

func (r *results) atMost(what string, want float64, over, under figure) target {
	return ratio(r, target{What: what, AtMost: true, Want: want, Unit: "×"}, over, under)
}

func (r *results) atLeast(what string, want float64, over, under figure) target {
	return ratio(r, target{What: what, Want: want, Unit: "×"}, over, under)
}

// noProcess returns the target that no process is started, by any of the verbs.
func (r *results) noProcess(what, scenario string, c contender, verbs ...string) target {
	t := target{What: what, AtMost: true}
	known := 0
	for _, n := range r.Counts {
		for _, verb := range verbs {
			if n.Scenario == scenario && n.Verb == verb && n.Contender == c {
				t.Got = max(t.Got, n.Processes)
				known++
			}
		}
	}
	t.Known = known == len(verbs)
	return t
}

// targets returns the plan's targets in order.
func (r *results) targets() []target {
	all := r.defaultTargets()
	all = append(all, r.nativeTargets()...)
	all = append(all,
		r.atLeast("loopback ADD: faster than go-cni", 5, add("loopback", goCNIPlain()), add("loopback", oursPlain())))
	all = append(all, r.oneLineTargets()...)
	return append(all,
		r.atLeast("bridge, ipMasq, portmap and firewall, iptables insisted on: ADD, faster than go-cni", 8,
			add("firewall", goCNIIPT()), add("firewall", oursIPT())))
}

// defaultTargets are those of the default conflist.
func (r *results) defaultTargets() []target {
	const name, the = "default", "the same: "
	all := []target{
		r.noProcess("default conflist, in process: processes per ADD, DEL and CHECK, the most", name, oursPlain(), verbADD, verbDEL, verbCHECK),
		r.atLeast(the+"ADD, faster than go-cni with executables", 25, add(name, goCNIPlain()), add(name, oursPlain())),
		r.atMost(the+"ADD against the floor", 1.8, add(name, oursPlain()), add(name, theFloor())),
	}
	for _, n := range []int{8, 64} {
		all = append(all, r.crowdTarget(fmt.Sprintf("%s%d at once, ADDs per second", the, n), crowdName(workDefault, n)))
	}
	for _, verb := range []string{verbADD, verbDEL} {
		all = append(all,
			r.growthTarget(the+verb+" with 1,000 attached, more than with 10, against the floor's more", defaultAttached, verb),
			r.growthTarget(the+verb+", 8 at once, with 1,000 attached, the same", defaultAttached8, verb))
	}
	crowd := crowdName(workDefault, 64)
	last := r.atLeast(the+"64 at once, DELs per second against the floor", 0.8, rate(verbDEL, crowd, oursPlain()), rate(verbDEL, crowd, theFloor()))
	last.Beside = r.cpuBeside(crowd)
	return append(all, last)
}

// nativeTargets are those of bridge and portmap with sets of nftables.
func (r *results) nativeTargets() []target {
	const name, the = "nat", "the same: "
	crowd := crowdName(workNAT, 64)
	many := func(c contender) figure {
		return figure{scenario: nativeMany, c: c, verb: verbADD, attached: fullEffort().Most}
	}
	return []target{
		r.atMost("bridge, ipMasq, portmap, native sets: ADD against the floor", 1.3, add(name, oursNFT()), add(name, theFloor())),
		r.atLeast(the+"64 at once, ADDs per second against the floor", 0.9, rate(verbADD, crowd, oursNFT()), rate(verbADD, crowd, theFloor())),
		r.atMost(the+"with 10,000 attached, 1,000 to a bridge: ADD against the floor there", 1.2, many(oursNFT()), many(theFloor())),
		r.memoryTarget(the+"resident memory of the runtime there", 64),
		r.atLeast(the+"ADD, faster than go-cni on iptables", 20, add(name, goCNIIPT()), add(name, oursNFT())),
		r.atLeast(the+"ADD, faster than go-cni on nftables", 15, add(name, goCNINFT()), add(name, oursNFT())),
		r.atMost(the+"DEL against the floor", 1.3, del(name, oursNFT()), del(name, theFloor())),
		r.atLeast(the+"DEL, faster than go-cni on iptables", 6, del(name, goCNIIPT()), del(name, oursNFT())),
		r.atLeast(the+"64 at once, ADDs per second against go-cni on iptables", 10, rate(verbADD, crowd, oursNFT()), rate(verbADD, crowd, goCNIIPT())),
		r.noProcess(the+"processes per ADD", name, oursNFT(), verbADD),
	}
}

// crowdTarget is 25 times go-cni's rate or 0.8 times the floor's, whichever is
// less.
func (r *results) crowdTarget(what, scenario string) target {
	t := target{What: what, Unit: "/s", Rule: "≥ 25× go-cni's, or 0.8× the floor's"}
	got, okGot := r.value(rate(verbADD, scenario, oursPlain()))
	peer, okPeer := r.value(rate(verbADD, scenario, goCNIPlain()))
	bare, okBare := r.value(rate(verbADD, scenario, theFloor()))
	if !okGot || !okPeer || !okBare {
		return t
	}
	t.Want, t.Why = 25*peer, "25× go-cni's"
	if least := 0.8 * bare; least < t.Want {
		t.Want, t.Why = least, "0.8× the floor's"
	}
	t.Got, t.Known = got, true
	t.Beside = fmt.Sprintf("%s× go-cni's, %s× the floor's", digits(got/peer), digits(got/bare))
	return t
}

// growthTarget compares the additional cost of an operation with many attached
// containers with the floor's. Of several at once it is the time of a whole round
// for each container.
func (r *results) growthTarget(what, scenario, verb string) target {
	t := target{What: what, AtMost: true, Want: 1.3, Unit: "×"}
	ours, _, okOurs := r.growth(scenario, oursPlain(), verb)
	floor, unsure, okFloor := r.growth(scenario, theFloor(), verb)
	if !okOurs || !okFloor {
		return t
	}
	// Less than the measurement can tell apart is no cost to compare with.
	t.Got, t.Known = max(ours, 0)/max(floor, unsure, 1), true
	t.Beside = fmt.Sprintf("%s against %s", more(ours), more(floor))
	return t
}

func more(v float64) string {
	if v < 0 {
		return "−" + micros(-v)
	}
	return "+" + micros(v)
}

// growth returns what an operation takes longer with the most attached containers
// than with the fewest, in microseconds. Unsure is how far the medians may be off.
func (r *results) growth(scenario string, c contender, verb string) (longer, unsure float64, ok bool) {
	levels := fullEffort().Default
	few, many := r.find(scenario, c, verb, levels[0]), r.find(scenario, c, verb, levels[len(levels)-1])
	if few == nil || many == nil || len(few.Wall) == 0 || len(many.Wall) == 0 {
		return 0, 0, false
	}
	a, errA := medianWithError(few.each())
	b, errB := medianWithError(many.each())
	return b - a, errA + errB, true
}

// cpuBeside returns the processor time of a DEL.
func (r *results) cpuBeside(scenario string) string {
	var texts []string
	for _, c := range []contender{oursPlain(), theFloor(), goCNIPlain()} {
		if s := r.find(scenario, c, verbDEL, 0); s != nil && s.CPU > 0 {
			texts = append(texts, fmt.Sprintf("%s %s", c, micros(s.CPU)))
		}
	}
	if texts == nil {
		return ""
	}
	return "CPU time of a DEL: " + strings.Join(texts, ", ")
}

func (r *results) memoryTarget(what string, want float64) target {
	t := target{What: what, AtMost: true, Want: want, Unit: " MB"}
	if s := r.find(nativeMany, oursNFT(), verbADD, fullEffort().Most); s != nil && s.Resident > 0 {
		t.Got, t.Known = float64(s.Resident)/1e6, true
	}
	return t
}

// oneLineTargets compare a program that changes only its import line with
// go-cni.
func (r *results) oneLineTargets() []target {
	const who = "go-cni's user who changes one line, default conflist: "
	var all []target
	for _, verb := range []string{verbADD, verbCHECK, verbDEL} {
		all = append(all, r.costsMore(who+verb+", longer than go-cni's by", "default", verb))
	}
	for _, n := range []int{8, 64} {
		for _, verb := range []string{verbADD, verbDEL} {
			all = append(all, r.withinNoise(fmt.Sprintf("%s%d at once, %ss per second", who, n, verb), crowdName(workDefault, n), verb))
		}
	}
	return append(all, r.atLeast("go-cni's user who changes one line: loopback ADD, faster than go-cni", 5,
		add("loopback", goCNIPlain()), add("loopback", oneLine())))
}

// costsMore is the median difference within a round, which other load on the
// machine affects least.
func (r *results) costsMore(what, scenario, verb string) target {
	t := target{What: what, AtMost: true, Unit: " ms", Want: 1, Rule: "≤ 1 ms, or 2 %"}
	ours, peer := r.find(scenario, oneLine(), verb, 0), r.find(scenario, goCNIPlain(), verb, 0)
	if ours == nil || peer == nil || len(ours.Micros) == 0 || len(peer.Micros) == 0 {
		return t
	}
	median := summarize(peer.Micros).Median.Seconds() * 1000
	t.Why = "1 ms"
	if share := 0.02 * median; share > t.Want {
		t.Want, t.Why = share, "2 % of go-cni's"
	}
	var longer []float64
	for i := range min(len(ours.Micros), len(peer.Micros)) {
		longer = append(longer, float64(ours.Micros[i]-peer.Micros[i])/1000)
	}
	t.Got, _ = medianWithError(longer)
	t.Known, t.Beside = true, digits(100*t.Got/median)+" %"
	return t
}

// withinNoise compares a rate with go-cni's less the noise: its slowest round, or
// two standard errors of the difference.
func (r *results) withinNoise(what, scenario, verb string) target {
	t := target{What: what, Unit: "/s", Rule: "≥ go-cni's, less the noise"}
	ours, peer := r.find(scenario, oneLine(), verb, 0), r.find(scenario, goCNIPlain(), verb, 0)
	if ours == nil || peer == nil || min(len(ours.Wall), len(peer.Wall)) < enough {
		return t // the noise of so few rounds is unknown
	}
	theirs, theirError := medianWithError(peer.each())
	mine, myError := medianWithError(ours.each())
	if mine == 0 || theirs == 0 {
		return t
	}
	slowest := max(slices.Max(peer.each()), theirs+2*math.Hypot(theirError, myError))
	t.Want, t.Got, t.Known = 1e6/slowest, 1e6/mine, true
	t.Why = fmt.Sprintf("go-cni's %s, less the noise", perSecond(1e6/theirs))
	t.Beside = fmt.Sprintf("%s× go-cni's", digits(theirs/mine))
	return t
}
