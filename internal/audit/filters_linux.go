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
		legacy, listed, err := f.legacyTables()
		if err != nil {
			return nil, err
		}
		t := tables{legacy: legacy, has: map[string]bool{
			"-nft":    blind || hasTable(ruleset, f.nft),
			"-legacy": len(legacy) > 0,
		}}
		t.has[""] = t.has["-nft"] || t.has["-legacy"]
		if listed {
			t.legacy = nil
		}
		rules, err := listIPTables(ctx, f, t, seen)
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

// tables are the tables of a family that the kernel has.
type tables struct {
	has    map[string]bool // by variant of the tool
	legacy []string        // those that a tool must be asked for by name
}

// listIPTables lists the rules of one family with each variant of the tool that
// has tables. It adds nft's tables among them to seen.
func listIPTables(ctx context.Context, f filterFamily, t tables, seen map[string]bool) ([]string, error) {
	var lines []string
	found := false
	// The plain name is the same as one of the variants, if those exist.
	for _, variant := range []string{"-nft", "-legacy", ""} {
		if variant == "" && found {
			continue
		}
		tool := f.tool + variant
		if _, err := lookPath(tool + "-save"); errors.Is(err, exec.ErrNotFound) {
			continue
		}
		found = true
		if !t.has[variant] {
			continue
		}
		out, err := t.save(ctx, tool, variant)
		if err != nil {
			return nil, err
		}
		rules, names := parseSave(tool, out)
		lines = append(lines, rules...)
		if variant == "-nft" || strings.Contains(out, "(nf_tables)") {
			for _, table := range names {
				seen[f.nft+" "+table] = true
			}
		}
	}
	if !found {
		lines = append(lines, "missing "+f.tool+"-save")
	}
	return lines, nil
}

// save returns the rules of a variant.
func (t tables) save(ctx context.Context, tool, variant string) (string, error) {
	if variant != "-legacy" || t.legacy == nil {
		return run(ctx, tool+"-save")
	}
	var all strings.Builder
	for _, table := range t.legacy {
		out, err := run(ctx, tool+"-save", "-t", table)
		if err != nil {
			return "", err
		}
		all.WriteString(out)
	}
	return all.String(), nil
}

// hasTable reports whether nft's ruleset has a table of the family.
func hasTable(ruleset, family string) bool {
	for line := range strings.Lines(ruleset) {
		if strings.HasPrefix(line, "table "+family+" ") {
			return true
		}
	}
	return false
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
