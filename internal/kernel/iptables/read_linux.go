package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/embedcni/cni/internal/kernel/nft"
)

// ChainID names a chain.
type ChainID = nft.Chain

// ErrHidden means that rules exist that the tool does not show.
var ErrHidden = errors.New("the tool does not show the chain, probably because its table has rules that nft has made")

// Read returns the tables that have one of the chains, and perhaps others, with those of
// the rules whose lines keep accepts; nil: all. A chain without a name stands for its table.
// It starts no process if there is none of them: a missing tool would be an error, and an
// installed one would create its tables.
//
// hidden are those of the chains that may exist although the tool does not show them: see
// [ErrHidden], or because only root may list legacy tables.
func (x Tool) Read(ctx context.Context, chains []ChainID, keep func(line string) bool) (sets []Ruleset, hidden []ChainID, err error) {
	there, hidden, err := x.Have(ctx, chains)
	if err != nil || len(there) == 0 {
		return nil, hidden, err
	}
	out, err := x.save(ctx, there)
	if err != nil {
		return nil, nil, err
	}
	sets, err = ParseSave(out, keep)
	// The tool leaves out a table with a rule that it cannot express, with only a warning
	// and exit status 0.
	left := slices.DeleteFunc(there, func(id ChainID) bool {
		return slices.ContainsFunc(sets, func(s Ruleset) bool { return s.Table == id.Table })
	})
	if err != nil || len(left) == 0 {
		return sets, hidden, err
	}
	left, _, err = x.Have(ctx, left) // another process may have deleted it before the tool looked
	return sets, append(hidden, left...), err
}

// save runs iptables-save. Other users than root have to name the legacy table.
func (x Tool) save(ctx context.Context, there []ChainID) (all string, err error) {
	if !x.Legacy {
		return x.Run(ctx, "", "save")
	}
	var saved []string
	for _, id := range there {
		if slices.Contains(saved, id.Table) {
			continue
		}
		saved = append(saved, id.Table)
		out, err := x.Run(ctx, "", "save", "-t", id.Table)
		if err != nil {
			return "", fmt.Errorf("%w (other users than root need CAP_NET_RAW for legacy iptables)", err)
		}
		all += out
	}
	return all, nil
}

// Have returns those of the chains that exist, in order. unknown are legacy tables that the
// user may not look for.
func (x Tool) Have(ctx context.Context, chains []ChainID) (there, unknown []ChainID, err error) {
	if x.Legacy {
		return x.haveLegacy(chains)
	}
	err = x.Sockets.Do(ctx, func(c *nft.Conn) error {
		exist, err := c.Exist(x.Table("").Family, chains...)
		for i, id := range chains {
			if err == nil && exist[i] {
				there = append(there, id)
			}
		}
		return err
	})
	if errors.Is(err, nft.ErrNotSupported) {
		err = nil
	}
	return there, nil, err
}

// haveLegacy is Have for legacy iptables. The kernel's list of tables does not show chains,
// but reading it creates no table. Only root may read it. Other users ask the kernel for
// tables that may not exist: it creates an empty one for each, if it can.
func (x Tool) haveLegacy(chains []ChainID) (there, unknown []ChainID, err error) {
	tables, err := x.legacyTables()
	denied := errors.Is(err, fs.ErrPermission)
	if err != nil && !denied {
		return nil, nil, err
	}
	entries := make(map[string][]byte)
	for _, id := range chains {
		if !denied && !slices.Contains(tables, id.Table) {
			continue
		}
		if id.Chain != "" {
			if _, known := entries[id.Table]; !known {
				if entries[id.Table], err = x.kernelEntries(id.Table); err != nil {
					return nil, nil, fmt.Errorf("ask the kernel for table %s: %w", id.Table, err)
				}
			}
			if !bytes.Contains(entries[id.Table], append([]byte(id.Chain), 0)) {
				continue
			}
		} else if denied {
			unknown = append(unknown, id)
			continue
		}
		there = append(there, id)
	}
	return there, unknown, nil
}
