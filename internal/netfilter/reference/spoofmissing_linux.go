package reference

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// spoofKind is a kind of the rules against other addresses, of which there is one.
type spoofKind struct {
	chain string
	is    func(foundRule) bool // of the kind, for any port and address
	exact func(foundRule) bool // for the port and the address
}

// kinds are in the order of rules. Without a port and an address, any is exact.
func (s SpoofCheck) kinds(port string, mac net.HardwareAddr) []spoofKind {
	jumps := func(chain string) func(foundRule) bool {
		return func(r foundRule) bool { return bytes.HasSuffix(r.constants, []byte(chain)) }
	}
	begins := func(with []byte) func(foundRule) bool {
		return func(r foundRule) bool { return bytes.HasPrefix(r.constants, with) }
	}
	var name []byte
	if port != "" {
		name = append([]byte(port), 0)
	}
	return []spoofKind{
		{spoofHook, jumps(s.chain), begins(name)},
		{s.chain, jumps(s.macChain), begins(nil)},
		{s.macChain, func(r foundRule) bool { return !r.drops && len(r.constants) > 0 },
			func(r foundRule) bool { return bytes.Contains(r.constants, mac) }},
		{s.macChain, func(r foundRule) bool { return r.drops }, begins(nil)},
	}
}

// compare returns which of the kinds have no rule, a rule for another port or address,
// and the error of a Check.
func (s SpoofCheck) compare(at sight, port string, mac net.HardwareAddr) (lacking []bool, other string, err error) {
	kinds := s.kinds(port, mac)
	lacking = make([]bool, len(kinds))
	for i, k := range kinds {
		rules := slices.DeleteFunc(slices.Clone(at[place{spoofTable(), k.chain, s.comment}]), func(r foundRule) bool { return !k.is(r) })
		lacking[i] = len(rules) == 0
		if len(rules) > 0 && !slices.ContainsFunc(rules, k.exact) {
			other = fmt.Sprintf("rule %v %s with comment %q for another interface or address", spoofTable(), k.chain, s.comment)
		}
	}
	for i, k := range []int{1, 2, 0} {
		chain, want := kinds[k].chain, []int{1, 2, 1}[i]
		have := 0
		for j, other := range kinds {
			if other.chain == chain && !lacking[j] {
				have++
			}
		}
		if have < want {
			return lacking, other, fmt.Errorf("chain %q of table bridge nat has %d rules with the comment %q, not %d", chain, have, s.comment, want)
		}
	}
	if other != "" {
		err = fmt.Errorf("there is %s", other)
	}
	return lacking, other, err
}

// look reads the rules with the comment.
func (s SpoofCheck) look(k ruleTable) (sight, uint32, error) {
	return look(k, []nft.Table{spoofTable()}, func(comment string) bool { return comment == s.comment })
}

// Missing returns the rules for a port of the bridge as one part, if any of them does
// not exist.
func (s SpoofCheck) Missing(ctx context.Context, port string, mac net.HardwareAddr) (all []fwrules.Missing, err error) {
	err = s.sockets.Do(ctx, func(c *nft.Conn) error {
		return nft.UntilUnchanged(ctx, func() error {
			at, _, err := s.look(c)
			all = s.missing(at, port, mac)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// MissingIn is Missing in what was read before.
func (s SpoofCheck) MissingIn(t *Sight, port string, mac net.HardwareAddr) []fwrules.Missing {
	return s.missing(t.tables, port, mac)
}

func (s SpoofCheck) missing(at sight, port string, mac net.HardwareAddr) []fwrules.Missing {
	_, other, err := s.compare(at, port, mac)
	if err == nil {
		return nil
	}
	return []fwrules.Missing{{Object: "check of the MAC address", Found: other, Err: fwrules.AsMissing(err)}}
}

// SpoofRestoring is the rules against other addresses of an attachment that are to be
// restored, for a port of the bridge.
type SpoofRestoring struct {
	SpoofCheck
	Port string
	MAC  net.HardwareAddr
}

// RestoreSpoofChecks adds the missing rules and chains of attachments in one namespace, all
// or none, in one transaction. It leaves the rules of others in the same chains as they
// are. If there is a rule for another port or address, the error is a
// [fwrules.ErrInPlace].
func RestoreSpoofChecks(ctx context.Context, all []SpoofRestoring) error {
	comments := make(map[string]bool)
	for _, s := range all {
		if err := s.fits(); err != nil {
			return err
		}
		comments[s.comment] = true
	}
	return all[0].sockets.Do(ctx, func(c *nft.Conn) error {
		return nft.UntilUnchanged(ctx, func() error {
			at, generation, err := look(c, []nft.Table{spoofTable()}, func(comment string) bool { return comments[comment] })
			if err != nil {
				return err
			}
			msgs, err := spoofToAdd(c, all, at)
			if err != nil || len(msgs) == 0 {
				return err
			}
			return c.Transact(msgs, &generation)
		})
	})
}

// spoofToAdd returns the messages that make the missing rules and chains, each once. The
// hook that exists keeps its policy.
func spoofToAdd(c *nft.Conn, all []SpoofRestoring, at sight) (msgs []nft.Message, err error) {
	var rules []nft.Message
	chains := []nft.Chain{{Table: spoofTable().Name, Name: spoofHook}}
	done := make(map[string]bool)
	for _, s := range all {
		lacking, other, err := s.compare(at, s.Port, s.MAC)
		switch {
		case err == nil || done[s.comment]:
			continue
		case other != "":
			return nil, fmt.Errorf("nftables: %w: there is %s", fwrules.ErrInPlace, other)
		}
		done[s.comment] = true
		for _, name := range []string{s.chain, s.macChain} {
			chains = append(chains, nft.Chain{Table: spoofTable().Name, Name: name})
		}
		rules = append(rules, s.toAdd(lacking)...)
	}
	if len(rules) == 0 {
		return nil, nil
	}
	_, exist, err := c.Exist(spoofTable().Family, chains...)
	if err != nil {
		return nil, err
	}
	msgs = []nft.Message{nft.NewTable(spoofTable(), "")}
	for i, chain := range chains {
		if !exist[i] {
			msgs = append(msgs, newSpoofChain(chain.Name))
		}
	}
	return append(msgs, rules...), nil
}

// toAdd returns the messages that make the lacking rules.
func (s SpoofRestoring) toAdd(lacking []bool) (msgs []nft.Message) {
	rules := s.rules(s.Port, s.MAC)
	for i, r := range rules {
		switch {
		case !lacking[i]:
		case i+1 < len(rules) && rules[i+1].chain == r.chain:
			msgs = append(msgs, nft.InsertRule(spoofTable(), r.chain, r.exprs, s.comment))
		default:
			msgs = append(msgs, nft.NewRule(spoofTable(), r.chain, r.exprs, s.comment))
		}
	}
	return msgs
}
