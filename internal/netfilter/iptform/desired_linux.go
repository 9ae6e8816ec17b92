package iptform

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// The tables of iptables, and the chains that the plugins portmap and firewall
// create for all containers.
const (
	tableNAT    = "nat"
	tableFilter = "filter"

	chainForward  = "CNI-FORWARD"
	chainStage1   = "CNI-ISOLATION-STAGE-1"
	chainStage2   = "CNI-ISOLATION-STAGE-2"
	chainHostPort = "CNI-HOSTPORT-DNAT"
	chainSetMark  = "CNI-HOSTPORT-SETMARK"
	chainMasq     = "CNI-HOSTPORT-MASQ"
	chainOldSNAT  = "CNI-HOSTPORT-SNAT"
	chainAdmin    = "CNI-ADMIN"

	markComment = "CNI portfwd masquerade mark"
)

func inTable(table, chain string) iptables.ChainID {
	return iptables.ChainID{Table: table, Chain: chain}
}

// desired is the form of Rules in iptables of one family: the chains and rules that
// the reference plugins would make, in their order.
type desired struct {
	v6     bool
	chains []desiredChain
	rules  []desiredRule
	wanted map[string]bool // the keys of those rules that the method rule has added
}

type desiredChain struct {
	iptables.ChainID
	shared bool // it is for every container
}

type desiredRule struct {
	iptables.ChainID
	args   []string
	target string     // the chain of desired that it jumps to, if it does
	addr   netip.Addr // of firewall's rules for an address: that
	first  bool       // it goes before the rules that are there
	shared bool       // it is for every container, or for each on a bridge

	leads       bool   // it must precede others of the container's chain
	conditional bool   // it has words of the configuration's
	mark        uint32 // the packets' mark, for the marking rules
}

// addTo adds a command about the rule: "-A", "-I", "-C" or "-D".
func (r desiredRule) addTo(s *iptables.Script, verb string) error {
	return s.Add(r.Table, slices.Concat([]string{verb, r.Chain}, r.args)...)
}

func (r desiredRule) String() string {
	return fmt.Sprintf("-t %s -A %s %s", r.Table, r.Chain, iptables.JoinWords(r.args))
}

// key identifies the rule among those of its family.
func (r desiredRule) key() string { return ruleText(r.ChainID, r.args) }

// desiredOf returns the form of r in iptables of a family.
func desiredOf(r fwrules.Rules, v6 bool) desired {
	w := desired{v6: v6}
	for _, m := range r.Masquerade {
		w.masquerade(m)
	}
	for _, h := range r.HostPorts {
		w.hostPorts(h, h.Ports, gatesOf(h.Ports))
	}
	for _, f := range r.Forward {
		w.forward(f)
	}
	return w
}

func (w *desired) empty() bool { return len(w.rules) == 0 }

// chain adds a chain, unless it is wanted already.
func (w *desired) chain(table, name string, shared bool) iptables.ChainID {
	id := inTable(table, name)
	if !slices.ContainsFunc(w.chains, func(c desiredChain) bool { return c.ChainID == id }) {
		w.chains = append(w.chains, desiredChain{id, shared})
	}
	return id
}

// rule adds a rule, unless it is wanted already: the plugins look for a rule
// before they make it.
func (w *desired) rule(r desiredRule, args ...string) {
	r.args = args
	key := r.key()
	if w.wanted[key] {
		return
	}
	if w.wanted == nil {
		w.wanted = make(map[string]bool)
	}
	w.wanted[key] = true
	w.rules = append(w.rules, r)
}

// masquerade is SetupIPMasq in pkg/ip/ipmasq_iptables_linux.go.
func (w *desired) masquerade(m fwrules.Masquerade) {
	own := m.Chains()[0]
	multicast := "224.0.0.0/4"
	if w.v6 {
		multicast = "ff00::/8"
	}
	comment := []string{"-m", "comment", "--comment", own.Comment}
	for _, p := range m.Addresses {
		addr := p.Addr().Unmap()
		if addr.Is6() != w.v6 {
			continue
		}
		chain := desiredRule{ChainID: w.chain(tableNAT, own.Name, false)}
		within := chain
		within.leads = true
		w.rule(within, slices.Concat([]string{"-d", p.Masked().String(), "-j", "ACCEPT"}, comment)...)
		w.rule(chain, slices.Concat([]string{"!", "-d", multicast, "-j", "MASQUERADE"}, comment)...)
		w.rule(desiredRule{ChainID: inTable(tableNAT, "POSTROUTING"), target: own.Name},
			slices.Concat([]string{"-s", addr.String(), "-j", own.Name}, comment)...)
	}
}

// desiredOfParts returns a function that is desiredOf for a part of rules.
func desiredOfParts(v6 bool) func(fwrules.Part) desired {
	known := make(map[*fwrules.HostPorts]gates) // the parts of the same ports have them in common
	return func(p fwrules.Part) desired {
		w := desired{v6: v6}
		for _, m := range p.Rules.Masquerade {
			w.masquerade(m)
		}
		for i, h := range p.Whole.HostPorts {
			all, ok := known[&p.Whole.HostPorts[i]]
			if !ok {
				all = gatesOf(h.Ports)
				known[&p.Whole.HostPorts[i]] = all
			}
			w.hostPorts(h, p.Rules.HostPorts[i].Ports, all)
		}
		for _, f := range p.Rules.Forward {
			w.forward(f)
		}
		return w
	}
}

// hostPorts is forwardPorts in plugins/meta/portmap/portmap_iptables.go, for some of
// h's ports, whose gates are given. A port shares its jump with others of h.
func (w *desired) hostPorts(h fwrules.HostPorts, ports []fwrules.HostPort, all gates) {
	to, conditions := h.V4, h.ConditionsV4
	if w.v6 {
		to, conditions = h.V6, h.ConditionsV6
	}
	if !to.IsValid() || len(h.Ports) == 0 {
		return
	}
	mark := h.ExternalSetMarkChain
	if mark == "" {
		mark = chainSetMark
		if h.SNAT {
			w.marking(h.MarkMasqBit)
		}
	}
	top := w.chain(tableNAT, chainHostPort, true)
	for _, from := range []string{"PREROUTING", "OUTPUT"} {
		w.rule(desiredRule{ChainID: inTable(tableNAT, from), target: top.Chain, shared: true},
			"-m", "addrtype", "--dst-type", "LOCAL", "-j", top.Chain)
	}
	own := h.Chains()[1]
	chain := desiredRule{ChainID: w.chain(tableNAT, own.Name, false)}
	for _, p := range ports {
		w.hostPort(chain, p, h, to, mark)
	}
	for _, group := range all.of(ports) {
		w.rule(desiredRule{ChainID: top, target: own.Name, conditional: len(conditions) > 0}, slices.Concat(
			[]string{"-m", "comment", "--comment", own.Comment, "-m", "multiport"}, group, conditions, []string{"-j", own.Name})...)
	}
}

// marking has marked packets masqueraded. Only this jump goes first: the rules
// of bridge and ptp would take the packets before it.
func (w *desired) marking(bit int) {
	mark := uint32(1) << bit
	value := fmt.Sprintf("%#x/%#x", mark, mark)
	w.rule(desiredRule{ChainID: w.chain(tableNAT, chainSetMark, true), shared: true, mark: mark},
		"-m", "comment", "--comment", markComment, "-j", "MARK", "--set-xmark", value)
	w.rule(desiredRule{ChainID: w.chain(tableNAT, chainMasq, true), shared: true, mark: mark},
		"-m", "mark", "--mark", value, "-j", "MASQUERADE")
	w.rule(desiredRule{ChainID: inTable(tableNAT, "POSTROUTING"), target: chainMasq, first: true, shared: true},
		"-m", "comment", "--comment", "CNI portfwd requiring masquerade", "-j", chainMasq)
}

// hostPort adds the rules for one port to the container's chain: first those
// that mark, as the translation ends the way of a packet through the chain.
func (w *desired) hostPort(chain desiredRule, p fwrules.HostPort, h fwrules.HostPorts, to netip.Prefix, mark string) {
	match := []string{"-p", p.Protocol, "--dport", strconv.Itoa(int(p.HostPort))}
	if p.HostIP.IsValid() {
		if p.HostIP.Is6() != w.v6 {
			return
		}
		if !p.HostIP.IsUnspecified() {
			match = append(match, "-d", p.HostIP.String())
		}
	}
	with := func(more ...string) {
		r := chain
		r.leads = slices.Contains(more, mark)
		w.rule(r, slices.Concat(match, more)...)
	}
	everything := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if w.v6 {
		everything = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	switch {
	case h.SNAT && h.MasqAll:
		with("-s", everything.String(), "-j", mark)
	case h.SNAT:
		with("-s", to.Masked().String(), "-j", mark)
		if !w.v6 {
			with("-s", "127.0.0.1", "-j", mark)
		}
	}
	with("-j", "DNAT", "--to-destination", netip.AddrPortFrom(to.Addr().Unmap(), p.ContainerPort).String())
}

// gates are the matches that let ports into the container's chain, as many in each as the
// match multiport takes, by protocol.
type gates struct {
	groups  [][]string
	through map[gatePort][]int // the groups that let a port in
}

type gatePort struct {
	protocol string
	port     uint16
}

func gatesOf(ports []fwrules.HostPort) gates {
	const most = 15
	byProtocol := make(map[string][]uint16)
	for _, p := range ports {
		byProtocol[p.Protocol] = append(byProtocol[p.Protocol], p.HostPort)
	}
	all := gates{through: make(map[gatePort][]int)}
	for _, protocol := range slices.Sorted(maps.Keys(byProtocol)) {
		for some := range slices.Chunk(byProtocol[protocol], most) {
			var texts []string
			for _, port := range some {
				texts = append(texts, strconv.Itoa(int(port)))
				at := gatePort{protocol, port}
				all.through[at] = append(all.through[at], len(all.groups))
			}
			all.groups = append(all.groups, []string{"-p", protocol, "--destination-ports", strings.Join(texts, ",")})
		}
	}
	return all
}

// of returns the matches that let some of the ports in.
func (all gates) of(ports []fwrules.HostPort) (groups [][]string) {
	var numbers []int
	for _, p := range ports {
		numbers = append(numbers, all.through[gatePort{p.Protocol, p.HostPort}]...)
	}
	slices.Sort(numbers)
	for _, n := range slices.Compact(numbers) {
		groups = append(groups, all.groups[n])
	}
	return groups
}

// forward adds the rules of the plugin firewall, and then those of
// setupIsolationChains in its ingresspolicy.go.
func (w *desired) forward(f fwrules.Forward) {
	var addrs []netip.Addr
	for _, a := range f.Addresses {
		if a = a.Unmap(); a.Is6() == w.v6 {
			addrs = append(addrs, a)
		}
	}
	if len(addrs) == 0 {
		return
	}
	if !f.IngressOnly {
		w.accept(f.AdminChain, addrs)
	}
	if f.Ingress == "same-bridge" || f.Ingress == "isolated" {
		w.isolation(f.Bridge, f.Ingress)
	}
}

// accept is addRules in plugins/meta/firewall/iptables.go.
func (w *desired) accept(admin string, addrs []netip.Addr) {
	if admin == "" {
		admin = chainAdmin
	}
	forward := w.chain(tableFilter, chainForward, true)
	w.chain(tableFilter, admin, true)
	w.rule(desiredRule{ChainID: inTable(tableFilter, "FORWARD"), target: chainForward, first: true, shared: true},
		"-m", "comment", "--comment", "CNI firewall plugin rules", "-j", chainForward)
	w.rule(desiredRule{ChainID: forward, target: admin, first: true, shared: true},
		"-m", "comment", "--comment", "CNI firewall plugin admin overrides", "-j", admin)
	for _, a := range addrs {
		one := netip.PrefixFrom(a, a.BitLen()).String()
		w.rule(desiredRule{ChainID: forward, addr: a},
			"-d", one, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT")
		w.rule(desiredRule{ChainID: forward, addr: a}, "-s", one, "-j", "ACCEPT")
	}
}

// isolation keeps bridges apart: packets from one to another go through both
// stages, and is dropped in the second one.
func (w *desired) isolation(bridge, policy string) {
	stage1 := desiredRule{ChainID: w.chain(tableFilter, chainStage1, true), shared: true}
	stage2 := desiredRule{ChainID: w.chain(tableFilter, chainStage2, true), shared: true}
	first := func(r desiredRule) desiredRule { r.first = true; return r }
	comment := func(policy string, args ...string) []string { return append(args, policyComment(policy)...) }
	jump := isolationJump()
	w.rule(jump, jump.args...)
	w.rule(first(stage1), comment(policy, "-i", bridge, "!", "-o", bridge, "-j", chainStage2)...)
	if policy == "isolated" {
		w.rule(first(stage1), comment(policy, "-i", bridge, "-o", bridge, "-j", "DROP")...)
	}
	w.rule(stage1, comment(anyPolicy, "-j", "RETURN")...)
	w.rule(first(stage2), comment(anyPolicy, "-o", bridge, "-j", "DROP")...)
	w.rule(stage2, comment(anyPolicy, "-j", "RETURN")...)
}

const anyPolicy = "same-bridge|isolated"

func policyComment(policy string) []string {
	return []string{"-m", "comment", "--comment", "CNI firewall plugin rules (ingressPolicy: " + policy + ")"}
}

// isolationJump is the jump to the first stage.
func isolationJump() desiredRule {
	return desiredRule{ChainID: inTable(tableFilter, "FORWARD"), target: chainStage1, first: true, shared: true,
		args: append([]string{"-j", chainStage1}, policyComment(anyPolicy)...)}
}
