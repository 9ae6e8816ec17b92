package iptform

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/iptables/nftrules"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// RemoveDuplicates deletes duplicates of the rules that r shares with other
// containers; plugins that run at the same time make them. One of several
// identical rules stays. It returns the number of rules that it deleted.
func (f Form) RemoveDuplicates(ctx context.Context, r fwrules.Rules) (removed int, err error) {
	err = f.eachCommon(ctx, r, func(x maker, w desired) (err error) {
		unlock, err := iptables.LockNamespace(ctx)
		if err != nil {
			return err
		}
		n := 0
		if x.Legacy {
			n, err = x.removeDuplicatesLegacy(ctx, w)
		} else {
			n, err = x.removeDuplicatesNFT(ctx, w)
		}
		removed += n
		return errors.Join(err, unlock())
	})
	return removed, err
}

// removeDuplicatesNFT deletes by handle, provided that nothing has changed since it
// looked.
func (x maker) removeDuplicatesNFT(ctx context.Context, w desired) (int, error) {
	n := 0
	err := x.Sockets.Do(ctx, func(c *nft.Conn) error {
		return nft.UntilUnchanged(ctx, func() error {
			before, err := c.Generation()
			if err != nil {
				return err
			}
			twice, err := x.findDuplicates(c, w)
			if err != nil || len(twice) == 0 {
				return err
			}
			n = len(twice)
			return c.Delete(before, twice)
		})
	})
	if errors.Is(err, nft.ErrNotSupported) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("%s: delete duplicate rules: %w", x.Name(), err)
	}
	return n, nil
}

func (x maker) findDuplicates(c *nft.Conn, w desired) (twice []nft.Object, err error) {
	var looked []iptables.ChainID
	for _, r := range w.rules {
		if slices.Contains(looked, r.ChainID) {
			continue
		}
		looked = append(looked, r.ChainID)
		table := x.Table(r.Table)
		seen := make(map[string]bool)
		err := c.Rules(table, r.Chain, nil, func(rule nft.Rule) error {
			nftRule := iptables.NFTRuleOf(rule)
			if !slices.ContainsFunc(w.rules, func(d desiredRule) bool {
				return d.ChainID == r.ChainID && gistOf(d).isNFT(nftRule)
			}) {
				return nil
			}
			if text := nftrules.Text(table.Family, rule.Exprs); seen[text] {
				twice = append(twice, nftRule.Object(table))
			} else {
				seen[text] = true
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return twice, nil
}

// removeDuplicatesLegacy deletes by number. It holds the lock of xtables, so that no
// other tool changes the rules meanwhile.
func (x maker) removeDuplicatesLegacy(ctx context.Context, w desired) (removed int, err error) {
	tool, unlock, err := x.LockTools(ctx)
	if err != nil {
		return 0, err
	}
	x.Tool = tool
	defer func() { err = errors.Join(err, unlock()) }()
	for _, table := range []string{tableNAT, tableFilter} {
		part := w.of(table)
		if part.empty() {
			continue
		}
		has, err := x.HasLegacyTable(table)
		if err != nil {
			return removed, err
		}
		if !has {
			continue
		}
		out, err := x.Run(ctx, "", "save", "-t", table)
		if err != nil {
			return removed, err
		}
		s, err := part.duplicatesIn(out)
		if err != nil {
			return removed, err
		}
		if len(s) == 0 {
			continue
		}
		text, _ := s.Render()
		if _, err := x.Run(ctx, text, "restore", "--noflush"); err != nil {
			return removed, fmt.Errorf("delete duplicate rules: %w", err)
		}
		removed += len(s)
	}
	return removed, nil
}

// duplicatesIn returns the commands that delete duplicates of the rules in the
// output of iptables-save. The last rule goes first, so that the other numbers
// stay valid.
func (w desired) duplicatesIn(saved string) (s iptables.Script, err error) {
	sets, err := iptables.ParseSave(saved)
	if err != nil {
		return nil, err
	}
	for _, set := range sets {
		numbers := make(map[string]int)
		seen := make(map[string]bool)
		for _, r := range set.Rules {
			numbers[r.Chain]++
			if !slices.ContainsFunc(w.rules, func(d desiredRule) bool {
				return d.Table == set.Table && d.Chain == r.Chain && slices.Equal(iptables.Canonical(d.args), r.Args)
			}) {
				continue
			}
			if key := r.Chain + " " + r.Spec; !seen[key] {
				seen[key] = true
			} else if err := s.Add(set.Table, "-D", r.Chain, fmt.Sprint(numbers[r.Chain])); err != nil {
				return nil, err
			}
		}
	}
	slices.Reverse(s)
	return s, nil
}
