package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/embedcni/cni/internal/cut"
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
	for _, fam := range []struct{ tool, nft, legacy string }{{"iptables", "ip", "ip_tables_names"}, {"ip6tables", "ip6", "ip6_tables_names"}} {
		has := map[string]bool{
			"-nft":    blind || hasTable(ruleset, fam.nft),
			"-legacy": legacyTables(fam.legacy),
		}
		has[""] = has["-nft"] || has["-legacy"]
		rules, err := listIPTables(ctx, fam.tool, fam.nft, has, seen)
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

// listIPTables lists the rules of one family with each variant of the tool that
// has tables. It adds nft's tables among them to seen.
func listIPTables(ctx context.Context, plain, family string, has, seen map[string]bool) ([]string, error) {
	var lines []string
	found := false
	// The plain name is the same as one of the variants, if those exist.
	for _, variant := range []string{"-nft", "-legacy", ""} {
		if variant == "" && found {
			continue
		}
		tool := plain + variant
		if _, err := lookPath(tool + "-save"); errors.Is(err, exec.ErrNotFound) {
			continue
		}
		found = true
		if !has[variant] {
			continue
		}
		out, err := run(ctx, tool+"-save")
		if err != nil {
			return nil, err
		}
		rules, tables := parseSave(tool, out)
		lines = append(lines, rules...)
		if variant == "-nft" || strings.Contains(out, "(nf_tables)") {
			for _, table := range tables {
				seen[family+" "+table] = true
			}
		}
	}
	if !found {
		lines = append(lines, "missing "+plain+"-save")
	}
	return lines, nil
}

// hasTable reports whether nft's ruleset has a table of the family.
func hasTable(ruleset, family string) bool {
	for line := range cut.Lines(ruleset) {
		if strings.HasPrefix(line, "table "+family+" ") {
			return true
		}
	}
	return false
}

// legacyTables reports whether the calling thread's namespace has legacy
// tables. The kernel lists them in a file that does not exist while there are
// none. A file that cannot be read does not count as empty.
func legacyTables(file string) bool {
	names, err := os.ReadFile("/proc/thread-self/net/" + file)
	return len(names) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
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
