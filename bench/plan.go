package main

import "fmt"

// kind is the way a contender attaches.
type kind string

const (
	kindGoCNI     kind = "go-cni"
	kindNetavark  kind = "netavark"
	kindOneLine   kind = "go-cni's user who changes one line"
	kindDisk      kind = "ours on disk"
	kindInProcess kind = "ours in process"
	kindFloor     kind = "floor"
)

// contender is one way to do the work. Backend is the packet filter backend of
// all its plugins. It is empty if there is none, or no choice.
type contender struct {
	Kind    kind
	Backend string `json:",omitempty"`
}

// String returns the contender's name in tables.
func (c contender) String() string {
	name := string(c.Kind)
	switch c.Kind {
	case kindOneLine:
		name = "embedcni, import path changed"
	case kindDisk:
		name = "embedcni, executables"
	case kindInProcess:
		return "embedcni, built-in plugins" // they have one backend
	}
	if c.Backend != "" {
		name += ", " + c.Backend
	}
	return name
}

// executes reports whether an ADD to a bridge starts programs. Such a contender
// takes too long to attach thousands of containers.
func (c contender) executes() bool { return c.Kind != kindFloor && c.Kind != kindInProcess }

const (
	iptables = "iptables"
	nftables = "nftables"
	// native is this library's in-process backend if none is named: nftables
	// sets and maps, instead of rules like the reference plugins'.
	native = "nftables sets"
)

// The contenders that take part in several scenarios.
var (
	goCNI    = contender{Kind: kindGoCNI}
	goCNIIPT = contender{Kind: kindGoCNI, Backend: iptables}
	goCNINFT = contender{Kind: kindGoCNI, Backend: nftables}
	netavark = contender{Kind: kindNetavark}
	oneLine  = contender{Kind: kindOneLine}
	disk     = contender{Kind: kindDisk}
	ours     = contender{Kind: kindInProcess} // of work that names no backend
	oursSets = contender{Kind: kindInProcess, Backend: native}
	bare     = contender{Kind: kindFloor}
)

// work is the kind of network that a container gets.
type work string

const (
	workDefault  work = "default"
	workLoopback work = "loopback"
	workBridge   work = "bridge"
	workNAT      work = "nat"
)

// titles describes the work in words.
var titles = map[work]string{
	workDefault:  "the default conflist: bridge with ipMasq, host-local, portmap with one port, firewall, tuning; no backend named",
	workLoopback: "loopback",
	workBridge:   "bridge, host-local",
	workNAT:      "bridge with ipMasq, host-local, portmap with one port",
}

// filters reports whether containers are masqueraded and get ports of the host.
func (w work) filters() bool { return w == workDefault || w == workNAT }

// The operations.
const (
	verbADD   = "ADD"
	verbCHECK = "CHECK"
	verbDEL   = "DEL"
)

// scenario is one comparison: its contenders take turns at the same work.
type scenario struct {
	Name       string
	Work       work
	AtOnce     int   // containers attached concurrently
	Attached   []int // numbers of containers already attached, one step each
	Ports      int   // of a measured container
	StayPorts  int   // of a container that is already attached
	Checks     bool  // ADD, CHECK and DEL
	Rounds     int
	Weight     int // share of the total time
	Contenders []contender
}

// verbs returns the operations of a contender.
func (s scenario) verbs(c contender) []string {
	if s.Checks && c.Kind != kindFloor {
		return []string{verbADD, verbCHECK, verbDEL}
	}
	return []string{verbADD, verbDEL}
}

// effort scales the plan: the rounds of scenarios that take milliseconds, the most
// attached containers, and the most of a contender that starts programs.
type effort struct{ Rounds, Most, Peers int }

var (
	fullEffort  = effort{Rounds: 40, Most: 10_000, Peers: 300}
	quickEffort = effort{Rounds: 10, Most: 1000, Peers: 100}
	smokeEffort = effort{Rounds: 1, Most: 3, Peers: 3}
)

// levels returns the numbers up to the most, or two small ones.
func (e effort) levels(all ...int) (levels []int) {
	for _, n := range all {
		if n <= e.Most {
			levels = append(levels, n)
		}
	}
	if levels == nil {
		return []int{e.Most - 1, e.Most}
	}
	return levels
}

func (e effort) crowd(n int) int { return min(n, max(2, e.Most/10)) }

// Even if time is up, a contender attaches a few containers and does enough rounds
// for a useful median.
const few, enough = 10, 3

// The scenarios that targets compare.
const (
	defaultOften    = "default64" // 64 at once
	defaultAttached = "default-attached"
	natOften        = "crowd64"
	natMany         = "many"
	manyPorts       = "ports"
)

// plan returns all scenarios. Those that leave much cleanup to the kernel come
// last.
func plan(e effort) []scenario {
	byDefault := []contender{goCNI, oneLine, ours, bare}
	nat := []contender{goCNIIPT, goCNINFT, netavark, {Kind: kindDisk, Backend: iptables}, {Kind: kindDisk, Backend: nftables}, oursSets, bare}
	// Two netavarks at once create the same chain, and one fails.
	natCrowd := []contender{goCNIIPT, goCNINFT, {Kind: kindDisk, Backend: iptables}, oursSets, bare}
	all := []scenario{
		{Name: "default", Work: workDefault, Rounds: e.Rounds * 3 / 2, Weight: 5, Checks: true, Contenders: byDefault},
		{Name: "loopback", Work: workLoopback, Rounds: e.Rounds, Weight: 1, Contenders: []contender{goCNI, oneLine, disk, ours, bare}},
		{Name: "bridge", Work: workBridge, Rounds: e.Rounds, Weight: 2, Contenders: []contender{goCNI, disk, ours, bare}},
		{Name: "nat", Work: workNAT, Rounds: e.Rounds, Weight: 6, Contenders: nat},
		{Name: "default8", Work: workDefault, AtOnce: e.crowd(8), Rounds: e.Rounds * 3 / 8, Weight: 3, Contenders: byDefault},
		{Name: defaultOften, Work: workDefault, AtOnce: e.crowd(64), Rounds: e.Rounds * 3 / 20, Weight: 10, Contenders: byDefault},
		{Name: natOften, Work: workNAT, AtOnce: e.crowd(64), Rounds: e.Rounds / 10, Weight: 10, Contenders: natCrowd},
		{Name: defaultAttached, Work: workDefault, Attached: e.levels(10, 1000), Rounds: e.Rounds, Weight: 7,
			Contenders: []contender{goCNI, ours, bare}},
		{Name: "default-attached8", Work: workDefault, AtOnce: e.crowd(8), Attached: e.levels(10, 1000), Rounds: e.Rounds / 2, Weight: 7,
			Contenders: []contender{goCNI, ours, bare}},
		{Name: manyPorts, Work: workDefault, Attached: e.levels(150), Ports: min(206, 2*e.Most), StayPorts: min(32, e.Most), Rounds: e.Rounds / 4, Weight: 14,
			Contenders: []contender{goCNI, ours}},
		{Name: "attached", Work: workNAT, Attached: e.levels(10, 100, 1000, 3000), Rounds: e.Rounds / 2, Weight: 16, Contenders: nat},
		{Name: natMany, Work: workNAT, Attached: e.levels(e.Most), Rounds: e.Rounds / 2, Weight: 24, Contenders: []contender{oursSets, bare}},
	}
	for i := range all {
		s := &all[i]
		s.AtOnce, s.Ports, s.StayPorts = max(1, s.AtOnce), max(1, s.Ports), max(1, s.StayPorts)
		if s.Attached == nil {
			s.Attached = []int{0}
		}
		if s.Rounds = max(1, s.Rounds); s.AtOnce > 1 && e.Rounds > 1 {
			s.Rounds = max(enough, s.Rounds)
		}
	}
	return all
}

// title describes the scenario in words.
func (s scenario) title() string {
	text := capital(titles[s.Work])
	if s.AtOnce > 1 {
		text += fmt.Sprintf("; %d at once, the time of a round for each of them", s.AtOnce)
	}
	if s.Ports > 1 {
		text += fmt.Sprintf("; %d ports, beside containers with %d ports", s.Ports, s.StayPorts)
	}
	return text
}

// portsPerBridge is the number of containers on one network: a Linux bridge
// takes 1,023 ports, and the measured containers need some.
const portsPerBridge = 1000

// network returns the number of the i-th container's network.
func network(i int) int { return i / portsPerBridge }
