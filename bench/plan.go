package main

import (
	"fmt"
	"slices"
)

// kind is how a contender attaches.
type kind string

const (
	kindGoCNI     kind = "go-cni"
	kindNetavark  kind = "netavark"
	kindDisk      kind = "ours on disk"
	kindInProcess kind = "ours in process"
	kindFloor     kind = "floor"
)

// contender is one way to do the work. Backend is that of all plugins that
// write packet filters; empty if there is none, or no choice.
type contender struct {
	Kind    kind
	Backend string `json:",omitempty"`
	// Memory has the attachment record on a tmpfs, where a sync costs nothing.
	Memory bool `json:",omitempty"`
	// Pool takes containers that were made ahead of time.
	Pool bool `json:",omitempty"`
}

// String is the contender's name in tables.
func (c contender) String() string {
	name := string(c.Kind)
	if c.Backend != "" {
		name += ", " + c.Backend
	}
	if c.Pool {
		name += ", from a warm pool"
	}
	if c.Memory {
		name += ", record in memory"
	}
	return name
}

// executes tells whether each ADD starts programs, so that thousands of
// attached containers would take too long to bring about.
func (c contender) executes() bool { return c.Kind != kindFloor && c.Kind != kindInProcess }

// own tells whether the contender is of this module, and so has to be right.
func (c contender) own() bool {
	return c.Kind == kindDisk || c.Kind == kindInProcess || c.Kind == kindFloor
}

// must tells whether the run is worth nothing without the contender. The
// others are peers, of which a table can say why they are missing.
func (c contender) must() bool { return c.Kind != kindNetavark }

// work is what a container gets.
type work string

const (
	workLoopback work = "loopback"
	workBridge   work = "bridge"
	workPtp      work = "ptp"
	workNAT      work = "nat"
	workFirewall work = "firewall"
	workDual     work = "dual"
)

// title says what the work is, for people.
func (w work) title() string {
	switch w {
	case workLoopback:
		return "loopback"
	case workBridge:
		return "bridge, host-local"
	case workPtp:
		return "ptp, host-local"
	case workNAT:
		return "bridge with ipMasq, host-local, portmap with one port"
	case workFirewall:
		return "the same and firewall, all of it by iptables"
	case workDual:
		return "bridge with ipMasq, host-local, portmap with one port, IPv4 and IPv6"
	}
	return string(w)
}

// scenario is one comparison: contenders that do the same work in turns.
type scenario struct {
	Name       string
	Work       work
	AtOnce     int   // how many containers are attached at the same time
	Levels     []int // how many are attached already; one step after the other
	Rounds     int
	PerRound   int  // containers per contender and round
	Weight     int  // its share of the time
	Count      bool // whether processes are counted
	Contenders []contender
}

const (
	iptables = "iptables"
	nftables = "nftables"
	// native is what this library does in process where no backend is named:
	// nftables, in sets and maps, rather than in rules as the reference
	// plugins have them.
	native = "nftables sets"
)

// everyNAT are the contenders for work with packet filters.
func everyNAT() []contender {
	return []contender{
		{Kind: kindGoCNI, Backend: iptables}, {Kind: kindGoCNI, Backend: nftables},
		{Kind: kindNetavark},
		{Kind: kindDisk, Backend: iptables}, {Kind: kindDisk, Backend: nftables},
		{Kind: kindInProcess, Backend: iptables}, {Kind: kindInProcess, Backend: nftables}, {Kind: kindInProcess, Backend: native},
		{Kind: kindFloor},
	}
}

// pooled takes containers from a warm pool.
func pooled(memory bool) contender {
	return contender{Kind: kindInProcess, Backend: native, Pool: true, Memory: memory}
}

func plain() []contender {
	return []contender{{Kind: kindGoCNI}, {Kind: kindDisk}, {Kind: kindInProcess}, {Kind: kindFloor}}
}

func without(all []contender, kinds ...kind) []contender {
	return slices.DeleteFunc(all, func(c contender) bool { return slices.Contains(kinds, c.Kind) })
}

// effort scales the plan.
type effort struct {
	Rounds int   // of what takes milliseconds; slower scenarios have fewer
	Crowds []int // how many at once
	Levels []int // attached containers
}

func fullEffort() effort {
	return effort{Rounds: 40, Crowds: []int{1, 8, 64}, Levels: []int{10, 100, 300, 1000, 3000}}
}
func quickEffort() effort {
	return effort{Rounds: 10, Crowds: []int{1, 8, 64}, Levels: []int{10, 100, 1000}}
}
func smokeEffort() effort { return effort{Rounds: 1, Crowds: []int{2}, Levels: []int{2, 3}} }

// plan is all of it. What leaves much for the kernel to clean up comes last.
func plan(e effort) []scenario {
	part := func(n int) int { return max(1, e.Rounds/n) }
	nat := append(everyNAT(), contender{Kind: kindInProcess, Backend: native, Memory: true}, pooled(false), pooled(true))
	all := []scenario{
		{Name: "loopback", Work: workLoopback, Rounds: e.Rounds, Weight: 1, Contenders: plain()},
		{Name: "bridge", Work: workBridge, Rounds: e.Rounds, Weight: 2, Contenders: plain()},
		{Name: "ptp", Work: workPtp, Rounds: e.Rounds, Weight: 2, Contenders: plain()},
		{Name: "nat", Work: workNAT, Rounds: e.Rounds, Weight: 6, Contenders: nat},
		{Name: "firewall", Work: workFirewall, Rounds: e.Rounds, Weight: 5, Contenders: []contender{
			{Kind: kindGoCNI, Backend: iptables}, {Kind: kindDisk, Backend: iptables}, {Kind: kindInProcess, Backend: iptables}}},
		{Name: "dual", Work: workDual, Rounds: part(4), Weight: 6, Contenders: everyNAT()},
	}
	for i := range all {
		all[i].AtOnce, all[i].PerRound, all[i].Count = 1, 1, true
	}
	crowd := without(everyNAT(), kindNetavark)
	for _, n := range e.Crowds {
		all = append(all, scenario{Name: fmt.Sprintf("crowd%d", n), Work: workNAT, AtOnce: n, PerRound: n,
			Rounds: max(1, e.Rounds/max(4, n/6)), Weight: 2 + n/8, Contenders: crowd})
	}
	return append(all, scenario{Name: "attached", Work: workNAT, AtOnce: 1, PerRound: 1, Levels: e.Levels,
		Rounds: part(2), Weight: 12, Contenders: everyNAT()})
}

// portsPerBridge is how many containers share a network: a Linux bridge takes
// 1,023 ports, and some are for those that are measured.
const portsPerBridge = 1000

// network is the number of the network that the i-th container is attached to.
func network(i int) int { return i / portsPerBridge }

// filters tells whether containers are masqueraded and get a port of the host.
func (w work) filters() bool { return w == workNAT || w == workFirewall || w == workDual }
