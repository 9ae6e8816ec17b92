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
	asked := make([]nft.Chain, len(tables))
	for i, t := range tables {
		asked[i] = nft.Chain{Table: t}
	}
	err = x.Sockets.Do(ctx, func(c *nft.Conn) error {
		return c.InOneGeneration(func() error {
			exist, err := c.Exist(x.nftFamily(), asked...)
			if err != nil || !slices.Contains(exist, true) {
				return err
			}
			if out, err = x.Run(ctx, "", "save"); err != nil {
				return err
			}
			for i, t := range tables {
				if exist[i] && !strings.Contains("\n"+out, "\n*"+t+"\n") {
					hidden = append(hidden, t)
				}
			}
			return nil
		})
	})
	if errors.Is(err, nft.ErrNotSupported) {
		err = nil
	}
	return out, hidden, err
}
