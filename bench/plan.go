package main

import (
	"fmt"
	"slices"
)

// work is the kind of network that a container gets.
type work string

const (
	workDefault  work = "default"
	workLoopback work = "loopback"
	workBridge   work = "bridge"
	workPtp      work = "ptp"
	workPtpNAT   work = "ptp-nat"
	workNAT      work = "nat"
	workFirewall work = "firewall"
	workDual     work = "dual"
)

// title describes the work in words.
func (w work) title() string {
	switch w {
	case workDefault:
		return "the default conflist: bridge with ipMasq, host-local, portmap with one port, firewall, tuning; no backend named"
	case workLoopback:
		return "loopback"
	case workBridge:
		return "bridge, host-local"
	case workPtp:
		return "ptp, host-local"
	case workPtpNAT:
		return "ptp with ipMasq, host-local"
	case workNAT:
		return "bridge with ipMasq, host-local, portmap with one port"
	case workFirewall:
		return "the same and firewall, all of it by iptables"
	case workDual:
		return "bridge with ipMasq, host-local, portmap with one port, IPv4 and IPv6"
	}
	return string(w)
}

// filters reports whether containers are masqueraded and get a port of the
// host.
func (w work) filters() bool {
	return w == workDefault || w == workNAT || w == workFirewall || w == workDual
}

// scenario is one comparison: its contenders take turns at the same work.
type scenario struct {
	Name       string
	Work       work
	AtOnce     int   // containers attached concurrently
	Levels     []int // numbers of containers already attached, one step each
	Rounds     int
	PerRound   int  // containers per contender and round
	Weight     int  // share of the total time
	Count      bool // count processes
	Kind       scenarioKind
	Contenders []contender
}

// scenarioKind is the kind of operation of a scenario.
type scenarioKind string

const (
	kindAttach  scenarioKind = ""        // ADD and DEL
	kindChecked scenarioKind = "checked" // ADD, CHECK and DEL
)

// The operations.
const (
	verbADD   = "ADD"
	verbCHECK = "CHECK"
	verbDEL   = "DEL"
)

// verbs returns the operations of a contender.
func (s scenario) verbs(c contender) []string {
	if s.Kind == kindChecked && c.Kind != kindFloor {
		return []string{verbADD, verbCHECK, verbDEL}
	}
	return []string{verbADD, verbDEL}
}

// effort scales the plan.
type effort struct {
	Rounds  int   // for work of milliseconds; slower scenarios have fewer
	Crowds  []int // numbers of concurrent containers
	Levels  []int // attached containers
	Default []int // attached containers of the default conflist
	Most    int   // attached containers of the largest scenario
}

func fullEffort() effort {
	return effort{Rounds: 40, Crowds: []int{1, 8, 64}, Levels: []int{10, 100, 1000, 3000}, Default: []int{10, 1000}, Most: 10_000}
}
func quickEffort() effort {
	return effort{Rounds: 10, Crowds: []int{1, 8, 64}, Levels: []int{10, 100, 1000}, Default: []int{10, 1000}, Most: 2000}
}
func smokeEffort() effort {
	return effort{Rounds: 1, Crowds: []int{2}, Levels: []int{2, 3}, Default: []int{2, 3}, Most: 3}
}

// part returns a share of the rounds.
func (e effort) part(n int) int { return max(1, e.Rounds/n) }

// Even if time is up, a contender attaches a few containers and does enough rounds
// for a useful median.
const few, enough = 10, 3

// plan returns all scenarios. Those that leave much cleanup to the kernel come
// last.
func plan(e effort) []scenario {
	nat := append(everyNAT(), contender{Kind: kindInProcess, Backend: native, Memory: true})
	all := []scenario{
		{Name: "default", Work: workDefault, Rounds: e.Rounds * 3 / 2, Weight: 5, Kind: kindChecked, Contenders: everyDefault()},
		{Name: "loopback", Work: workLoopback, Rounds: e.Rounds, Weight: 1,
			Contenders: []contender{goCNIPlain(), oneLine(), {Kind: kindDisk}, oursPlain(), theFloor()}},
		{Name: "bridge", Work: workBridge, Rounds: e.Rounds, Weight: 2, Contenders: plain()},
		{Name: "ptp", Work: workPtp, Rounds: e.Rounds, Weight: 2, Contenders: plain()},
		{Name: "nat", Work: workNAT, Rounds: e.Rounds, Weight: 6, Contenders: nat},
		{Name: "firewall", Work: workFirewall, Rounds: e.part(2), Weight: 3, Contenders: []contender{
			goCNIIPT(), {Kind: kindDisk, Backend: iptables}, oursIPT()}},
		{Name: "dual", Work: workDual, Rounds: e.part(4), Weight: 5, Contenders: everyNAT()},
	}
	for i := range all {
		all[i].AtOnce, all[i].PerRound, all[i].Count = 1, 1, true
	}
	return append(append(all, crowds(e)...), attached(e)...)
}

// crowds returns the scenarios of many ADDs at once.
func crowds(e effort) []scenario {
	var all []scenario
	for _, n := range e.Crowds {
		rounds := max(1, e.Rounds/max(4, n/6))
		if n > 1 {
			// More rounds, because rates are compared that hardly differ.
			all = append(all, scenario{Name: crowdName(workDefault, n), Work: workDefault, AtOnce: n, PerRound: n,
				Rounds: min(e.Rounds, max(enough, rounds*3/2)), Weight: 2 + n/8, Contenders: everyDefault()})
		}
		all = append(all, scenario{Name: crowdName(workNAT, n), Work: workNAT, AtOnce: n, PerRound: n,
			Rounds: rounds, Weight: 2 + n/8, Contenders: without(everyNAT(), kindNetavark)})
	}
	return all
}

// crowdName returns the name of the scenario with n containers at once.
func crowdName(w work, n int) string {
	if w == workDefault {
		return fmt.Sprintf("default%d", n)
	}
	return fmt.Sprintf("crowd%d", n)
}

// The scenarios of the default conflist with many attached.
const (
	defaultAttached  = "default-attached"
	defaultAttached8 = "default-attached8" // 8 at once
	nativeMany       = "many"
)

// attached returns the scenarios with containers attached already.
func attached(e effort) []scenario {
	// With executables thousands take too long: go-cni is measured with few.
	growing := scenario{Name: defaultAttached, Work: workDefault, AtOnce: 1, PerRound: 1, Levels: e.Default, Rounds: e.Rounds, Weight: 7,
		Contenders: without(everyDefault(), kindOneLine)}
	crowded := growing
	growing.Contenders = append(slices.Clone(growing.Contenders), oursEach())
	crowded.Name, crowded.AtOnce, crowded.PerRound, crowded.Rounds = defaultAttached8, 8, 8, e.part(2)
	return []scenario{
		growing, crowded,
		{Name: "attached", Work: workNAT, AtOnce: 1, PerRound: 1, Levels: e.Levels, Rounds: e.part(2), Weight: 16, Contenders: everyNAT()},
		{Name: nativeMany, Work: workNAT, AtOnce: 1, PerRound: 1, Levels: []int{e.Most}, Rounds: e.part(2), Weight: 24,
			Contenders: []contender{oursNFT(), theFloor()}},
	}
}

// portsPerBridge is the number of containers on one network: a Linux bridge
// takes 1,023 ports, and the measured containers need some.
const portsPerBridge = 1000

// network returns the number of the i-th container's network.
func network(i int) int { return i / portsPerBridge }
