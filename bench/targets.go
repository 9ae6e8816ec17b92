package main

import "fmt"

// figure is a series that targets compare.
type figure struct {
	Scenario  string
	Contender contender
	Verb      string
	Attached  int
}

// target is a promised ratio of two figures of one run. The cost of the first is at most,
// or with AtLeast at least, Want times that of the other.
type target struct {
	What    string
	AtLeast bool
	Want    float64
	Over    figure
	Under   figure
}

// targets returns the promised ratios: how many times faster than go-cni, how near to the
// floor, how much more with many attached, and how little a program that changes one
// line pays.
func targets() []target {
	const faster, user = "faster than go-cni", "import path changed"
	figureOf := func(scenario string, attached int, verb string) func(contender) figure {
		return func(c contender) figure { return figure{scenario, c, verb, attached} }
	}
	add, del, check := figureOf("default", 0, verbADD), figureOf("default", 0, verbDEL), figureOf("default", 0, verbCHECK)
	oftenAdd, oftenDel := figureOf(defaultOften, 0, verbADD), figureOf(defaultOften, 0, verbDEL)
	nat, natDel, natAdds := figureOf("nat", 0, verbADD), figureOf("nat", 0, verbDEL), figureOf(natOften, 0, verbADD)
	lo, many := figureOf("loopback", 0, verbADD), figureOf(natMany, fullEffort.Most, verbADD)
	few, thousand := figureOf(defaultAttached, 10, verbADD), figureOf(defaultAttached, 1000, verbADD)
	fewDel, thousandDel := figureOf(defaultAttached, 10, verbDEL), figureOf(defaultAttached, 1000, verbDEL)
	return []target{
		{"default conflist, in process: ADD, " + faster, true, 25, add(goCNI), add(ours)},
		{"ADD against the floor", false, 1.8, add(ours), add(bare)},
		{"64 at once, ADDs, " + faster, true, 25, oftenAdd(goCNI), oftenAdd(ours)},
		{"64 at once, DELs against the floor's", false, 1.25, oftenDel(ours), oftenDel(bare)},
		{"ADD with 1,000 attached against 10", false, 1.3, thousand(ours), few(ours)},
		{"DEL with 1,000 attached against 10", false, 1.3, thousandDel(ours), fewDel(ours)},
		{"bridge, ipMasq, portmap, native sets: ADD against the floor", false, 1.3, nat(oursSets), nat(bare)},
		{"64 at once, ADDs against the floor's", false, 1.1, natAdds(oursSets), natAdds(bare)},
		{"with 10,000 attached, 1,000 to a bridge: ADD against the floor there", false, 1.2, many(oursSets), many(bare)},
		{"ADD, faster than go-cni on iptables", true, 20, nat(goCNIIPT), nat(oursSets)},
		{"ADD, faster than go-cni on nftables", true, 15, nat(goCNINFT), nat(oursSets)},
		{"DEL against the floor", false, 1.3, natDel(oursSets), natDel(bare)},
		{"DEL, faster than go-cni on iptables", true, 6, natDel(goCNIIPT), natDel(oursSets)},
		{"64 at once, ADDs, faster than go-cni on iptables", true, 10, natAdds(goCNIIPT), natAdds(oursSets)},
		{"loopback ADD, " + faster, true, 5, lo(goCNI), lo(ours)},
		{user + ", default conflist: ADD against go-cni's", false, 1.02, add(oneLine), add(goCNI)},
		{"CHECK against go-cni's", false, 1.02, check(oneLine), check(goCNI)},
		{"DEL against go-cni's", false, 1.02, del(oneLine), del(goCNI)},
		{"64 at once, ADDs against go-cni's", false, 1.02, oftenAdd(oneLine), oftenAdd(goCNI)},
		{"64 at once, DELs against go-cni's", false, 1.02, oftenDel(oneLine), oftenDel(goCNI)},
		{"loopback ADD, " + faster, true, 5, lo(goCNI), lo(oneLine)},
	}
}

// row returns the target's cells: the bound, the figure, and whether it is reached.
func (t target) row(r *results) []string {
	sign := "≤"
	if t.AtLeast {
		sign = "≥"
	}
	cells := []string{t.What, fmt.Sprintf("%s %s×", sign, digits(t.Want))}
	over := r.median(t.Over.Scenario, t.Over.Contender, t.Over.Verb, t.Over.Attached)
	under := r.median(t.Under.Scenario, t.Under.Contender, t.Under.Verb, t.Under.Attached)
	if over == 0 || under == 0 {
		return append(cells, "not measured", "–")
	}
	reached := "yes"
	if got := over / under; t.AtLeast && got < t.Want || !t.AtLeast && got > t.Want {
		reached = "**no**"
	}
	return append(cells, times(over, under), reached)
}
