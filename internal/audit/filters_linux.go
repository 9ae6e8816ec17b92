package audit

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// listFilters lists the rules of every packet filter that there is a tool for.
func listFilters(ctx context.Context) ([]string, error) {
	var lines []string
	seen := make(map[string]bool) // nft tables that iptables has shown
	for _, fam := range []struct{ tool, nft string }{{"iptables", "ip"}, {"ip6tables", "ip6"}} {
		found := false
		// The plain name is one of the others, where there are others.
		for _, variant := range []string{"-nft", "-legacy", ""} {
			if variant == "" && found {
				continue
			}
			tool := fam.tool + variant
			out, err := run(ctx, tool+"-save")
			if errors.Is(err, exec.ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			found = true
			rules, tables := parseSave(tool, out)
			lines = append(lines, rules...)
			if variant == "-nft" || strings.Contains(out, "(nf_tables)") {
				for _, table := range tables {
					seen[fam.nft+" "+table] = true
				}
			}
		}
		if !found {
			lines = append(lines, "missing "+fam.tool+"-save")
		}
	}
	out, err := run(ctx, "nft", "-s", "list", "ruleset")
	if errors.Is(err, exec.ErrNotFound) {
		return append(lines, "missing nft"), nil
	}
	if err != nil {
		return nil, err
	}
	return append(lines, parseRuleset(out, seen)...), nil
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

// lookPath also looks where these tools are when a user's PATH, like Debian's,
// does not say so.
func lookPath(tool string) (string, error) {
	path, err := exec.LookPath(tool)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, tool)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: %w", exec.ErrNotFound, err)
}
