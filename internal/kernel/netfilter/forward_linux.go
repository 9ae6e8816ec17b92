package netfilter

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	goiptables "github.com/coreos/go-iptables/iptables"

	"github.com/embedcni/cni/internal/kernel/iptables"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/nft"
)

// A packet that one table accepts can still be dropped by another, so that the accept
// stands where the host drops: in iptables, before the end of FORWARD. It is for a
// network, not for a container: two rules for each subnet of the addresses, in the chain
// of the reference plugin, behind the administrator's.
//
//	-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
//	-A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
//	-A CNI-FORWARD -d 10.1.0.0/24 -m conntrack --ctstate RELATED,ESTABLISHED -m comment --comment "embedcni 2f-1a: to 10.1.0.0/24" -j ACCEPT
//	-A CNI-FORWARD -s 10.1.0.0/24 -m comment --comment "embedcni 2f-1a: from 10.1.0.0/24" -j ACCEPT
//
// The network's first container has them made, and the last one takes them along: each
// attachment notes its subnets in its record, so that the records say who is left. After
// that it looks, with a lock on the namespace that is shared by those who look, and
// exclusive for those who make or delete.

// forwarding is a family and variant of iptables, and what FORWARD and CNI-FORWARD have.
type forwarding struct {
	iptables.Tool
	led      bool                // FORWARD leads to CNI-FORWARD
	isolated int                 // the number of the rule in FORWARD that leads to the isolation of bridges, or 0
	to       map[string]int      // the chains that CNI-FORWARD leads to
	accepts  map[string][]uint64 // the comments of our rules: the handles of those that have it, 0 in legacy tables
	rules    int                 // of FORWARD that were seen
}

// see takes a rule in.
func (f *forwarding) see(chain, to, comment string, handle uint64) {
	switch chain {
	case "FORWARD":
		f.rules++
		f.led = f.led || to == chainForward
		if to == chainStage1 {
			f.isolated = f.rules
		}
	case chainForward:
		f.to[to]++
		f.accepts[comment] = append(f.accepts[comment], handle)
	}
}

// readForwarding looks at both chains; without a process, unless a legacy table has them.
func readForwarding(ctx context.Context, tool iptables.Tool) (f forwarding, err error) {
	begin := func() { f = forwarding{Tool: tool, to: make(map[string]int), accepts: make(map[string][]uint64)} }
	if begin(); tool.Legacy {
		return f, nft.In(tool.Sockets.NS, func() error { // of the thread that asks
			sets, _, err := tool.Read(ctx, []iptables.ChainID{{Table: tableFilter, Chain: chainForward}, {Table: tableFilter, Chain: chainStage1}}, nil)
			for _, set := range sets {
				for _, r := range set.Rules {
					f.see(r.Chain, r.Words.Target(), strings.Join(r.Comments, " "), 0)
				}
			}
			return err
		})
	}
	err = tool.Sockets.Do(ctx, func(c *nft.Conn) error {
		return c.Look(ctx, nft.MostChanges, func() error {
			begin()
			// Rules about single containers, of executables, have none of the words.
			words := [][]byte{[]byte("embedcni"), []byte("CNI firewall"), []byte("CNI-")}
			for chain, words := range map[string][][]byte{"FORWARD": nil, chainForward: words} {
				err := c.Rules(tool.Table(tableFilter), chain, words, func(r nft.Rule) error {
					f.see(chain, r.Jump(), matchComment(r), r.Handle)
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	})
	if errors.Is(err, nft.ErrNotSupported) {
		err = nil
	}
	return f, err
}

// matchComment returns the comment of a rule that iptables has made.
func matchComment(r nft.Rule) (comment string) {
	for _, x := range r.Exprs.List() {
		if name, info := x.Extension(); name == "comment" && x.Name == "match" {
			text, _, _ := bytes.Cut(info, []byte{0})
			comment = string(text)
		}
	}
	return comment
}

// lacks returns those of the rules that are not there, and an error that names the first of
// all that is missing for them.
func (f forwarding) lacks(rules []acceptRule, admin string) (lost []acceptRule, err error) {
	for _, r := range rules {
		if len(f.accepts[r.comment]) == 0 {
			lost = append(lost, r)
		}
	}
	switch {
	case !f.led:
		err = fmt.Errorf("%s: chain FORWARD does not lead to %s", f.Name(), chainForward)
	case f.to[admin] == 0:
		err = fmt.Errorf("%s: chain %s does not lead to %s", f.Name(), chainForward, admin)
	case len(lost) > 0:
		err = fmt.Errorf("%s: the rule -A %s %s is not there", f.Name(), chainForward, lost[0])
	}
	return lost, err
}

// missing returns an error that names a rule without which packets of the addresses are not
// accepted, in the variant that leads to the chain.
func (a accepts) missing(all []forwarding, r Rule) (missing error) {
	for _, subnet := range Subnets(r.Addresses) {
		led := false
		for _, now := range all {
			if now.V6() != subnet.Addr().Is6() {
				continue
			}
			_, err := now.lacks(a.rules(subnet), cmp.Or(r.AdminChain, chainAdmin))
			if err == nil {
				return nil
			}
			if missing == nil || now.led && !led {
				missing, led = err, now.led
			}
		}
	}
	return missing
}

// accept has the host forward the packets of the subnets. It notes that first, so that
// nobody takes rules away that this attachment finds.
func (fw *Firewalls) accept(ctx context.Context, subnets []netip.Prefix, admin string) error {
	tools, err := systemTools(ctx, fw.sockets, func(v6 bool) bool { return len(inFamily(v6, subnets)) > 0 })
	if err != nil || len(tools) == 0 {
		return err
	}
	own, err := fw.accepts()
	if err == nil {
		err = noteSubnets(fw.Notes, subnets)
	}
	if err == nil {
		own, err = fw.accepts() // the note may have made the directory
	}
	if err != nil {
		return err
	}
	accepted, err := own.add(ctx, tools, subnets, admin, false)
	if err == nil && !accepted {
		_, err = own.add(ctx, tools, subnets, admin, true)
	}
	return err
}

// noteSubnets adds the subnets to those noted: a repair restores one address after the other.
func noteSubnets(record Notes, subnets []netip.Prefix) error {
	all, err := NotedSubnets(record.Fact(SubnetsFact), false)
	before := len(all)
	for _, subnet := range subnets {
		if !slices.Contains(all, subnet) {
			all = append(all, subnet)
		}
	}
	if err != nil || len(all) == before {
		return err
	}
	return record.Note(SubnetsFact, noted{Subnets: all})
}

// add reports whether the rules for the subnets are there. With the exclusive lock it makes
// those that are not.
func (a accepts) add(ctx context.Context, tools []iptables.Tool, subnets []netip.Prefix, admin string, exclusive bool) (accepted bool, err error) {
	unlock, err := iptables.LockNamespace(ctx, a.sockets.NS, exclusive)
	if err != nil {
		return false, err
	}
	defer func() { err = joined.Errors(err, unlock()) }()
	for _, tool := range tools {
		some := inFamily(tool.V6(), subnets)
		now, err := readForwarding(ctx, tool)
		if err != nil {
			return false, err
		}
		lost, missing := now.lacks(a.rules(some...), admin)
		if missing == nil {
			continue
		}
		if !exclusive {
			return false, nil
		}
		if err := nft.In(a.sockets.NS, func() error { return now.add(ctx, lost, admin) }); err != nil {
			return false, fmt.Errorf("%s: accept the packets of %v: %w", tool.Name(), some, err)
		}
	}
	return true, nil
}

// systemTools returns the tools that the plain names mean, of the wanted families.
func systemTools(ctx context.Context, sockets nft.Sockets, wanted func(v6 bool) bool) (tools []iptables.Tool, err error) {
	for _, family := range []string{"iptables", "ip6tables"} {
		tool := iptables.Tool{Family: family, Sockets: sockets}
		if !wanted(tool.V6()) {
			continue
		}
		if err := tool.Detect(ctx); err != nil {
			return nil, err
		}
		tools = append(tools, tool)
	}
	return tools, nil
}

// inFamily returns the subnets of a family.
func inFamily(v6 bool, subnets []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(subnets), func(p netip.Prefix) bool { return p.Addr().Is6() != v6 })
}

// add makes the rules, and what leads to them, on a thread in the namespace. Where only
// rules of the nf_tables variant are missing it starts no process: each container that is
// alone in its network needs them.
func (f forwarding) add(ctx context.Context, rules []acceptRule, admin string) error {
	if !f.Legacy && f.led && f.to[admin] > 0 {
		var msgs []nft.Message
		for _, r := range rules {
			msgs = append(msgs, nft.NewRule(f.Table(tableFilter), chainForward, r.exprs(), ""))
		}
		err := f.Sockets.Do(ctx, func(c *nft.Conn) error { return c.Transact(msgs, nil) })
		if err == nil || ctx.Err() != nil || errors.Is(err, nft.ErrUncertain) {
			return err
		}
		// The chain may have gone meanwhile: iptables makes it, or says what is wrong.
	}
	path, err := f.Path(ctx, "")
	if err != nil {
		return err
	}
	protocol := goiptables.ProtocolIPv4
	if f.V6() {
		protocol = goiptables.ProtocolIPv6
	}
	const longestWait = 10 // seconds, for the lock of xtables
	x, err := goiptables.New(goiptables.IPFamily(protocol), goiptables.Path(path), goiptables.Timeout(longestWait))
	do := func(needed bool, step func() error) {
		if err == nil && needed {
			if err = context.Cause(ctx); err == nil {
				err = step()
			}
		}
	}
	for _, chain := range []string{chainForward, admin} {
		do(true, func() error { return makeChain(x, chain) })
	}
	// The jump goes before the rules of others, but behind the isolation of bridges, which it
	// must not overrule.
	jump := func(from string, at int, comment, to string) func() error {
		return func() error { return x.Insert(tableFilter, from, at, "-m", "comment", "--comment", comment, "-j", to) }
	}
	do(!f.led, jump("FORWARD", f.isolated+1, "CNI firewall plugin rules", chainForward))
	do(f.to[admin] == 0, jump(chainForward, 1, "CNI firewall plugin admin overrides", admin))
	for _, r := range rules {
		do(true, func() error { return x.Append(tableFilter, chainForward, r.words()...) })
	}
	return err
}

// makeChain makes a chain, unless it is there. An executable may make it meanwhile.
func makeChain(x *goiptables.IPTables, chain string) error {
	there, err := x.ChainExists(tableFilter, chain)
	if there || err != nil {
		return err
	}
	if err = x.NewChain(tableFilter, chain); err != nil {
		if there, _ := x.ChainExists(tableFilter, chain); there {
			return nil
		}
	}
	return err
}
