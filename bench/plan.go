package main

import (
	"fmt"
	"slices"
)

// kind is the way a contender attaches.
type kind string

const (
	kindGoCNI     kind = "go-cni"
	kindNetavark  kind = "netavark"
	kindDisk      kind = "ours on disk"
	kindInProcess kind = "ours in process"
	kindFloor     kind = "floor"
)

// contender is one way to do the work. Backend is the packet filter backend of
// all its plugins. It is empty if there is none, or no choice.
type contender struct {
	Kind    kind
	Backend string `json:",omitempty"`
	// Memory puts the attachment record on a tmpfs, where a sync costs nothing.
	Memory bool `json:",omitempty"`
	// Pool takes containers that were prepared in advance.
	Pool bool `json:",omitempty"`
}

// String returns the contender's name in tables.
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

// executes reports whether each ADD starts programs. Such a contender takes too
// long to attach thousands of containers.
func (c contender) executes() bool { return c.Kind != kindFloor && c.Kind != kindInProcess }

// own reports whether the contender belongs to this module. Its failure is then
// a defect.
func (c contender) own() bool {
	return c.Kind == kindDisk || c.Kind == kindInProcess || c.Kind == kindFloor
}

// must reports whether the run is useless without the contender. The others are
// peers: a table can say why one is missing.
func (c contender) must() bool { return c.Kind != kindNetavark }

// work is the kind of network that a container gets.
type work string

const (
	workLoopback work = "loopback"
	workBridge   work = "bridge"
	workPtp      work = "ptp"
	workNAT      work = "nat"
	workFirewall work = "firewall"
	workDual     work = "dual"
)

// title describes the work in words.
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
	Verdicts   bool // the operations are those on all attached containers, instead of ADD and DEL
	Contenders []contender
}

// The operations. A verdict says of each attached container whether it is healthy.
const (
	verbADD     = "ADD"
	verbDEL     = "DEL"
	verbVerdict = "verdict"
	verbRecover = "Recover"
)

// verbs returns the operations of a contender.
func (s scenario) verbs(c contender) []string {
	switch {
	case !s.Verdicts:
		return []string{verbADD, verbDEL}
	case c.Kind == kindInProcess:
		return []string{verbVerdict, verbRecover}
	}
	return []string{verbVerdict}
}

const (
	iptables = "iptables"
	nftables = "nftables"
	// native is this library's in-process backend if none is named: nftables
	// sets and maps, instead of rules like the reference plugins'.
	native = "nftables sets"
)

// everyNAT returns the contenders for work with packet filters.
func everyNAT() []contender {
	return []contender{
		{Kind: kindGoCNI, Backend: iptables}, {Kind: kindGoCNI, Backend: nftables},
		{Kind: kindNetavark},
		{Kind: kindDisk, Backend: iptables}, {Kind: kindDisk, Backend: nftables},
		{Kind: kindInProcess, Backend: iptables}, {Kind: kindInProcess, Backend: nftables}, {Kind: kindInProcess, Backend: native},
		{Kind: kindFloor},
	}
}

// pooled returns a contender that takes containers from a warm pool.
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
	Rounds int   // for work of milliseconds; slower scenarios have fewer
	Crowds []int // numbers of concurrent containers
	Levels []int // attached containers
	Judged []int // attached containers of verdicts
}

func fullEffort() effort {
	return effort{Rounds: 40, Crowds: []int{1, 8, 64}, Levels: []int{10, 100, 300, 1000, 3000}, Judged: []int{100, 1000, 5000}}
}
func quickEffort() effort {
	return effort{Rounds: 10, Crowds: []int{1, 8, 64}, Levels: []int{10, 100, 1000}, Judged: []int{100, 1000}}
}
func smokeEffort() effort {
	return effort{Rounds: 1, Crowds: []int{2}, Levels: []int{2, 3}, Judged: []int{2, 3}}
}

// plan returns all scenarios. Those that leave much cleanup to the kernel come
// last.
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
		Rounds: part(2), Weight: 12, Contenders: everyNAT()},
		scenario{Name: "verdict", Work: workNAT, AtOnce: 1, PerRound: 1, Levels: e.Judged, Verdicts: true,
			Rounds: part(4), Weight: 10, Contenders: []contender{
				{Kind: kindGoCNI, Backend: nftables},
				{Kind: kindInProcess, Backend: iptables}, {Kind: kindInProcess, Backend: nftables}, {Kind: kindInProcess, Backend: native}}})
}

// portsPerBridge is the number of containers on one network: a Linux bridge
// takes 1,023 ports, and the measured containers need some.
const portsPerBridge = 1000

// network returns the number of the i-th container's network.
func network(i int) int { return i / portsPerBridge }

// filters reports whether containers are masqueraded and get a port of the
// host.
func (w work) filters() bool { return w == workNAT || w == workFirewall || w == workDual }
