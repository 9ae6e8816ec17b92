package iptables

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/nft"
)

// SaveTables returns the output of iptables-save, which has all tables, unless none of
// the tables exists: then it starts no process. It also returns those of the tables
// that the tool may not show: see [ErrHidden], or because only root may list legacy
// tables. The error is [nft.ErrChanged] if rules have changed meanwhile; then the output
// may lack something.
func (x Tool) SaveTables(ctx context.Context, tables []string) (out string, hidden []string, err error) {
	if x.Legacy {
		there, err := x.legacyTables()
		if errors.Is(err, fs.ErrPermission) {
			return "", tables, nil
		}
		if err != nil || !slices.ContainsFunc(tables, func(t string) bool { return slices.Contains(there, t) }) {
			return "", nil, err
		}
		out, err = x.Run(ctx, "", "save")
		return out, nil, err
	}
	before, existing, err := x.nftTables(ctx, tables)
	if err != nil || len(existing) == 0 {
		return "", nil, err
	}
	if out, err = x.Run(ctx, "", "save"); err != nil {
		return "", nil, err
	}
	hidden = slices.DeleteFunc(existing, func(t string) bool { return strings.Contains("\n"+out, "\n*"+t+"\n") })
	after, _, err := x.nftTables(ctx, nil)
	if err == nil && after != before {
		err = nft.ErrChanged
	}
	return out, hidden, err
}

// nftTables returns those of the tables that the nf_tables variant has, and the
// generation.
func (x Tool) nftTables(ctx context.Context, tables []string) (generation uint32, existing []string, err error) {
	asked := make([]nft.Chain, len(tables))
	for i, t := range tables {
		asked[i] = nft.Chain{Table: t}
	}
	err = x.Sockets.Do(ctx, func(c *nft.Conn) error {
		var exist []bool
		generation, exist, err = c.Exist(x.nftFamily(), asked...)
		for i, t := range tables {
			if err == nil && exist[i] {
				existing = append(existing, t)
			}
		}
		return err
	})
	if errors.Is(err, nft.ErrNotSupported) {
		return 0, nil, nil
	}
	return generation, existing, err
}
