package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestPages writes the pages, with and without cnitool's environment, and reads them.
func TestPages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1767323045")
	first, second := pages(t), func() map[string]string { t.Setenv("NETCONFPATH", "/elsewhere"); return pages(t) }()
	var names []string
	for name, text := range first {
		names = append(names, name)
		if text != second[name] {
			t.Errorf("%s depends on the environment", name)
		}
	}
	slices.Sort(names)
	want := wanted(root())
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("the pages are %q, not %q", names, want)
	}
	for name, part := range map[string]string{
		"embedcni-list.8":   `.TH "EMBEDCNI-LIST" "8" "Jan 2026" "embedcni" "System administration"`,
		"embedcni.8":        "\n.EX\n0  all is well, or done\n1  the command failed; stderr says where, why, and what to do\n",
		"embedcni-repair.8": "\n.SH NAME\nembedcni-repair - adds the missing parts of containers (with --yes)\n",
		"embedcni-health.8": "\nbroken    the lines say what is missing or different; see repair\n",
	} {
		if !strings.Contains(first[name], part) {
			t.Errorf("%s has no\n%s\nbut\n%s", name, part, first[name])
		}
	}
}

func pages(t *testing.T) map[string]string {
	dir := filepath.Join(t.TempDir(), "man8") // is made
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[entry.Name()] = string(text)
	}
	return all
}

// wanted returns a name for each command.
func wanted(cmd *cobra.Command) (names []string) {
	if cmd.Name() != "help" {
		names = append(names, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".8")
	}
	for _, below := range cmd.Commands() {
		names = append(names, wanted(below)...)
	}
	return names
}
