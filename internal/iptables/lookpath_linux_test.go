package iptables

import (
	"os"
	"path/filepath"
	"testing"
)

// TestDetect: the file at the end of the links decides, whichever link of the chain an
// administrator has changed.
func TestDetect(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	link := func(target, name string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	for _, tool := range []string{"xtables-nft-multi", "xtables-legacy-multi"} {
		if err := os.WriteFile(filepath.Join(dir, tool), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link("alternative", "iptables")
	for target, legacy := range map[string]bool{"xtables-nft-multi": false, "xtables-legacy-multi": true} {
		link(target, "alternative")
		x := Tool{Family: "iptables"}
		if err := x.Detect(t.Context()); err != nil || x.Legacy != legacy {
			t.Errorf("%s: found legacy %v and %v", target, x.Legacy, err)
		}
	}
}
