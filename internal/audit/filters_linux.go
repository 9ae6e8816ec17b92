package audit

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// listFilters lists the rules of every packet filter whose tool is installed.
// It runs a tool only if that part of the kernel has a table: processes are
// most of the cost.
func listFilters(ctx context.Context) ([]string, error) {
	ruleset, err := run(ctx, "nft", "-s", "list", "ruleset")
	blind := errors.Is(err, exec.ErrNotFound)
	if err != nil && !blind {
		return nil, err
	}
	var lines []string
	seen := make(map[string]bool) // nft tables that iptables has listed
	for _, f := range filterFamilies() {
		legacy, err := f.legacyTables()
		if err != nil {
			return nil, err
		}
		nft := blind || strings.Contains("\n"+ruleset, "\ntable "+f.nft+" ")
		rules, err := f.rules(ctx, nft, legacy, seen)
		if err != nil {
			return nil, err
		}
		lines = append(lines, rules...)
	}
	if blind {
		return append(lines, "missing nft"), nil
	}
	return append(lines, parseRuleset(ruleset, seen)...), nil
}

// rules lists the rules of one family with each variant of the tool that
// has tables. It adds nft's tables among them to seen.
func (f filterFamily) rules(ctx context.Context, nft bool, legacy []string, seen map[string]bool) (lines []string, err error) {
	found := false
	// The plain name is the same as one of the variants, if those exist.
	for _, variant := range []string{"-nft", "-legacy", ""} {
		tool := f.tool + variant
		if _, err := lookPath(tool + "-save"); errors.Is(err, exec.ErrNotFound) || variant == "" && found {
			continue
		}
		found = true
		calls := [][]string{{}} // all tables
		switch {
		case variant == "-legacy": // by name: the tool may be unable to read the list
			calls = nil
			for _, table := range legacy {
				calls = append(calls, []string{"-t", table})
			}
		case !nft && (variant == "-nft" || len(legacy) == 0):
			calls = nil
		}
		for _, args := range calls {
			out, err := run(ctx, tool+"-save", args...)
			if err != nil {
				return nil, err
			}
			rules, names := parseSave(tool, out)
			lines = append(lines, rules...)
			for _, table := range names {
				seen[f.nft+" "+table] = seen[f.nft+" "+table] || variant == "-nft" || strings.Contains(out, "(nf_tables)")
			}
		}
	}
	if !found {
		lines = append(lines, "missing "+f.tool+"-save")
	}
	return lines, nil
}

// run runs a tool in the calling thread's namespaces and returns its output.
func run(ctx context.Context, tool string, args ...string) (string, error) {
	path, err := lookPath(tool)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf("%s: %w: %s", tool, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// lookPath also searches the usual directories of these tools, which are
// missing in a user's PATH on systems like Debian.
func lookPath(tool string) (string, error) {
	for _, dir := range []string{"", "/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, tool)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", tool, exec.ErrNotFound)
}
