package netfilter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/nft"
)

// RemoveDuplicates deletes duplicates of the rules that r shares with other
// containers; plugins that run at the same time make them. One of several
// identical rules stays. It returns the number of rules that it deleted.
func (fw *Firewalls) RemoveDuplicates(ctx context.Context, r Rules) (removed int, err error) {
	err = fw.eachCommon(ctx, r, func(x maker, w desired) (err error) {
		unlock, err := lockNamespace(ctx)
		if err != nil {
			return err
		}
		n := 0
		if x.legacy {
			n, err = x.removeTwiceLegacy(ctx, w)
		} else {
			n, err = x.removeTwiceNFT(ctx, w)
		}
		removed += n
		return errors.Join(err, unlock())
	})
	return removed, err
}

// removeTwiceNFT deletes by handle, provided that nothing has changed since it
// looked.
func (x maker) removeTwiceNFT(ctx context.Context, w desired) (int, error) {
	n := 0
	err := x.fw.onSocket(ctx, func(c *nft.Conn) error {
		return nft.UntilUnchanged(ctx, func() error {
			before, err := c.Generation()
			if err != nil {
				return err
			}
			twice, err := x.findTwice(c, w)
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
		return 0, fmt.Errorf("%s: delete duplicate rules: %w", x.name(), err)
	}
	return n, nil
}

func (x maker) findTwice(c *nft.Conn, w desired) (twice []nft.Object, err error) {
	var looked []chainID
	for _, r := range w.rules {
		if slices.Contains(looked, r.chainID) {
			continue
		}
		looked = append(looked, r.chainID)
		table := x.nftTable(r.table)
		seen := make(map[string]bool)
		err := c.Rules(table, r.chain, nil, func(rule nft.Rule) error {
			shape := shapeOf(rule)
			if !slices.ContainsFunc(w.rules, func(d desiredRule) bool {
				return d.chainID == r.chainID && gistOf(d).isNFT(shape)
			}) {
				return nil
			}
			if text := rule.Exprs.String(); seen[text] {
				twice = append(twice, rule.Object(table))
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

// removeTwiceLegacy deletes by number. It holds the lock of xtables, so that no
// other tool changes the rules meanwhile.
func (x maker) removeTwiceLegacy(ctx context.Context, w desired) (removed int, err error) {
	x, unlock, err := x.lockXtables(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	for _, table := range []string{tableNAT, tableFilter} {
		part := w.of(table)
		if part.empty() {
			continue
		}
		has, err := x.legacyTable(table)
		if err != nil {
			return removed, err
		}
		if !has {
			continue
		}
		out, err := x.run(ctx, "", "save", "-t", table)
		if err != nil {
			return removed, err
		}
		s, err := part.twiceIn(out)
		if err != nil {
			return removed, err
		}
		if len(s) == 0 {
			continue
		}
		text, _ := s.render()
		if _, err := x.run(ctx, text, "restore", "--noflush"); err != nil {
			return removed, fmt.Errorf("delete duplicate rules: %w", err)
		}
		removed += len(s)
	}
	return removed, nil
}

// twiceIn returns the commands that delete duplicates of the rules in the
// output of iptables-save. The last rule goes first, so that the other numbers
// stay valid.
func (w desired) twiceIn(saved string) (s script, err error) {
	sets, err := parseSave(saved)
	if err != nil {
		return nil, err
	}
	for _, set := range sets {
		numbers := make(map[string]int)
		seen := make(map[string]bool)
		for _, r := range set.rules {
			numbers[r.chain]++
			if !slices.ContainsFunc(w.rules, func(d desiredRule) bool {
				return d.table == set.table && d.chain == r.chain && slices.Equal(canonical(d.args), r.args)
			}) {
				continue
			}
			if key := r.chain + " " + r.spec; !seen[key] {
				seen[key] = true
			} else if err := s.add(set.table, "-D", r.chain, fmt.Sprint(numbers[r.chain])); err != nil {
				return nil, err
			}
		}
	}
	slices.Reverse(s)
	return s, nil
}

// lockXtables takes the lock of the legacy tools. Those of the returned maker
// lock a file of their own instead. A tool that is too old for that (before
// iptables 1.8.5) fails, as the lock is taken.
func (x maker) lockXtables(ctx context.Context) (_ maker, unlock func() error, err error) {
	path := os.Getenv(lockFileVariable)
	if path == "" {
		path = "/run/xtables.lock"
	}
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return x, nil, fmt.Errorf("lock xtables: %w", err)
	}
	if err := flock(ctx, f); err != nil {
		return x, nil, errors.Join(fmt.Errorf("lock xtables: %w", err), f.Close())
	}
	own, err := unix.MemfdCreate("xtables.lock", unix.MFD_CLOEXEC) // leaves nothing behind if a process is killed
	if err != nil {
		return x, nil, errors.Join(fmt.Errorf("lock xtables: %w", err), f.Close())
	}
	x.lockFile = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), own)
	return x, func() error { return errors.Join(unix.Close(own), f.Close()) }, nil
}

// lockFileVariable names the file that the legacy tools lock.
const lockFileVariable = "XTABLES_LOCKFILE"

// env returns the environment of a tool; nil is this process's.
func (x xtables) env() []string {
	if x.lockFile == "" {
		return nil
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, lockFileVariable+"=") })
	return append(env, lockFileVariable+"="+x.lockFile)
}
