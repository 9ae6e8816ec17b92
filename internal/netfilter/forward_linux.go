package netfilter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	goiptables "github.com/coreos/go-iptables/iptables"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
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
// attachment notes its subnets in its record, so that the records say who is left. A lock
// on the namespace is shared by those who note and look, and exclusive for those who make
// or delete.
const (
	tableFilter  = "filter"
	chainForward = "CNI-FORWARD"
	chainAdmin   = "CNI-ADMIN"
	chainStage1  = "CNI-ISOLATION-STAGE-1" // of executables with an ingress policy
)

// forwarding is a family and variant of iptables, and what FORWARD and CNI-FORWARD have.
type forwarding struct {
	iptables.Tool
	led      bool                // FORWARD leads to CNI-FORWARD
	isolated int                 // the number of the rule in FORWARD that leads to the isolation of bridges, or 0
	to       map[string]int      // the chains that CNI-FORWARD leads to
	accepts  map[string][]uint64 // the comments of our rules: the handles of those that have it, 0 in legacy tables
}

// readForwarding looks at both chains; without a process, unless a legacy table has them.
func readForwarding(ctx context.Context, tool iptables.Tool) (f forwarding, err error) {
	number := 0
	rule := func(chain, to, comment string, handle uint64) {
		switch chain {
		case "FORWARD":
			number++
			f.led = f.led || to == chainForward
			if to == chainStage1 {
				f.isolated = number
			}
		case chainForward:
			f.to[to]++
			f.accepts[comment] = append(f.accepts[comment], handle)
		}
	}
	begin := func() {
		number, f = 0, forwarding{Tool: tool, to: make(map[string]int), accepts: make(map[string][]uint64)}
	}
	if begin(); tool.Legacy {
		err = nft.In(tool.Sockets.NS, func() error { // of the thread that asks
			out, err := tool.Save(ctx, []iptables.ChainID{{Table: tableFilter, Chain: chainForward}, {Table: tableFilter, Chain: chainStage1}})
			if err != nil {
				return err
			}
			tables, err := iptables.ParseSave(out)
			for _, t := range tables {
				for _, r := range t.Rules {
					if t.Table == tableFilter {
						rule(r.Chain, r.Value("-j"), strings.Join(r.Comments(), " "), 0)
					}
				}
			}
			return err
		})
		return f, err
	}
	err = nft.UntilUnchanged(ctx, func() error {
		begin()
		// Rules about single containers, of executables, have none of the words.
		words := [][]byte{[]byte("embedcni"), []byte("CNI firewall"), []byte("CNI-")}
		for chain, words := range map[string][][]byte{"FORWARD": nil, chainForward: words} {
			err := tool.Rules(ctx, iptables.ChainID{Table: tableFilter, Chain: chain}, words, func(r nft.Rule) error {
				s := iptables.NFTRuleOf(r)
				rule(chain, s.To, s.MatchComment, r.Handle)
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, nft.ErrNotSupported) {
		err = nil
	}
	return f, err
}

// statRecords identifies the directory of the records; it is zero if there is none.
func (fw *Firewalls) statRecords() (records unix.Stat_t, err error) {
	err = unix.Stat(fw.Records, &records)
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("the rules of a network are named after the directory of the records: %s: %w", fw.Records, err)
	}
	return records, err
}

// lacks returns an error that names the first missing rule for a subnet.
func (fw *Firewalls) lacks(f forwarding, subnet netip.Prefix, admin string) error {
	if !f.led {
		return fmt.Errorf("%s: chain FORWARD does not lead to %s", f.Name(), chainForward)
	}
	if f.to[admin] == 0 {
		return fmt.Errorf("%s: chain %s does not lead to %s", f.Name(), chainForward, admin)
	}
	for _, r := range fw.acceptRules(subnet) {
		if len(f.accepts[r.comment]) == 0 {
			return fmt.Errorf("%s: the rule -A %s %s is not there", f.Name(), chainForward, r)
		}
	}
	return nil
}

// inFamily returns the subnets of a tool's family.
func inFamily(tool iptables.Tool, subnets []netip.Prefix) (some []netip.Prefix) {
	for _, p := range subnets {
		if p.Addr().Is6() == tool.V6() {
			some = append(some, p)
		}
	}
	return some
}

// systemTools returns the tools that the plain names mean, of the families of subnets.
func (fw *Firewalls) systemTools(ctx context.Context, subnets []netip.Prefix) (tools []iptables.Tool, err error) {
	for _, family := range []string{"iptables", "ip6tables"} {
		tool := iptables.Tool{Family: family, Sockets: fw.sockets}
		if len(inFamily(tool, subnets)) == 0 {
			continue
		}
		if err := tool.Detect(ctx); err != nil {
			return nil, err
		}
		tools = append(tools, tool)
	}
	return tools, nil
}

// accept has the host forward the packets of the addresses' subnets. It notes that first,
// so that nobody takes rules away that this attachment finds.
func (fw *Firewalls) accept(ctx context.Context, f fwrules.Forward) error {
	subnets, admin := Subnets(f.Addresses), cmp.Or(f.AdminChain, chainAdmin)
	tools, err := fw.systemTools(ctx, subnets)
	if err != nil || len(tools) == 0 {
		return err
	}
	if _, err := fw.statRecords(); err != nil {
		return err
	}
	accepted, err := fw.noteAccepted(ctx, tools, subnets, admin)
	if accepted || err != nil {
		return err
	}
	unlock, err := iptables.LockNamespace(ctx, fw.sockets.NS, true)
	if err != nil {
		return err
	}
	return errors.Join(nft.In(fw.sockets.NS, func() error {
		for _, tool := range tools {
			if err := fw.makeForwarding(ctx, tool, inFamily(tool, subnets), admin); err != nil {
				return err
			}
		}
		return nil
	}), unlock())
}

// noteAccepted notes the subnets, and reports whether the rules are there.
func (fw *Firewalls) noteAccepted(ctx context.Context, tools []iptables.Tool, subnets []netip.Prefix, admin string) (accepted bool, err error) {
	unlock, err := iptables.LockNamespace(ctx, fw.sockets.NS, false)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	before, err := NotedSubnets(fw.fact(SubnetsFact), false)
	if err != nil {
		return false, err
	}
	all := slices.Clone(before) // a repair restores one address after the other
	for _, subnet := range subnets {
		if !slices.Contains(all, subnet) {
			all = append(all, subnet)
		}
	}
	if len(all) > len(before) {
		if err := fw.note(SubnetsFact, noted{Subnets: all}); err != nil {
			return false, err
		}
	}
	for _, tool := range tools {
		f, err := readForwarding(ctx, tool)
		if err != nil {
			return false, err
		}
		for _, subnet := range inFamily(tool, subnets) {
			if fw.lacks(f, subnet, admin) != nil {
				return false, nil
			}
		}
	}
	return true, nil
}

// longestWait is for the lock of xtables, in seconds.
const longestWait = 10

// openTool returns go-iptables for a variant.
func openTool(ctx context.Context, tool iptables.Tool) (*goiptables.IPTables, error) {
	path, err := tool.Path(ctx)
	if err != nil {
		return nil, err
	}
	protocol := goiptables.ProtocolIPv4
	if tool.V6() {
		protocol = goiptables.ProtocolIPv6
	}
	return goiptables.New(goiptables.IPFamily(protocol), goiptables.Path(path), goiptables.Timeout(longestWait))
}

// makeForwarding makes the missing rules for the subnets, on a thread in the namespace.
func (fw *Firewalls) makeForwarding(ctx context.Context, tool iptables.Tool, subnets []netip.Prefix, admin string) error {
	now, err := readForwarding(ctx, tool)
	if err != nil {
		return err
	}
	var accepts []acceptRule
	for _, subnet := range subnets {
		for _, r := range fw.acceptRules(subnet) {
			if len(now.accepts[r.comment]) == 0 {
				accepts = append(accepts, r)
			}
		}
	}
	if !tool.Legacy && now.led && now.to[admin] > 0 && len(accepts) > 0 {
		err := appendRules(ctx, tool, accepts)
		if err == nil || ctx.Err() != nil || errors.Is(err, nft.ErrUncertain) {
			return err
		}
		// The chain may have gone meanwhile: iptables makes it, or says what is wrong.
	}
	if err = makeByProcess(ctx, now, accepts, admin); err != nil {
		err = fmt.Errorf("%s: accept the packets of %v: %w", tool.Name(), subnets, err)
	}
	return err
}

// appendRules appends the rules in one transaction, without a process: each container
// that is alone in its network needs them.
func appendRules(ctx context.Context, tool iptables.Tool, rules []acceptRule) error {
	var msgs []nft.Message
	for _, r := range rules {
		msgs = append(msgs, nft.NewRule(tool.Table(tableFilter), chainForward, r.exprs(), ""))
	}
	return tool.Sockets.Do(ctx, func(c *nft.Conn) error { return c.Transact(msgs, nil) })
}

// makeByProcess makes what is missing, and the rules. The jump goes before the rules of
// others, but behind the isolation of bridges, which it must not overrule.
func makeByProcess(ctx context.Context, now forwarding, accepts []acceptRule, admin string) error {
	x, err := openTool(ctx, now.Tool)
	if err != nil {
		return err
	}
	var steps []func() error
	for _, chain := range []string{chainForward, admin} {
		steps = append(steps, func() error { return makeChain(x, chain) })
	}
	if !now.led {
		steps = append(steps, func() error {
			return x.Insert(tableFilter, "FORWARD", now.isolated+1, "-m", "comment", "--comment", "CNI firewall plugin rules", "-j", chainForward)
		})
	}
	if now.to[admin] == 0 {
		steps = append(steps, func() error {
			return x.Insert(tableFilter, chainForward, 1, "-m", "comment", "--comment", "CNI firewall plugin admin overrides", "-j", admin)
		})
	}
	for _, r := range accepts {
		steps = append(steps, func() error { return x.Append(tableFilter, chainForward, r.words()...) })
	}
	for _, step := range steps {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := step(); err != nil {
			return err
		}
	}
	return nil
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

// missingForward returns an error that names a rule without which packets of the
// addresses are not accepted, in the variant that leads to the chain.
func (fw *Firewalls) missingForward(all []forwarding, f fwrules.Forward) (missing error) {
	for _, subnet := range Subnets(f.Addresses) {
		led := false
		for _, now := range all {
			if now.V6() != subnet.Addr().Is6() {
				continue
			}
			err := fw.lacks(now, subnet, cmp.Or(f.AdminChain, chainAdmin))
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
