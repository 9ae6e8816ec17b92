package iptables

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestDetect: the file at the end of the links decides, whichever link of the chain an
// administrator has changed.
func TestDetect(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	link := func(target, name string) {
		t.Helper()
		path := filepath.Join(dir, name)
		expect.NoError(t, os.RemoveAll(path))
		expect.NoError(t, os.Symlink(target, path))
	}
	for _, tool := range []string{"xtables-nft-multi", "xtables-legacy-multi"} {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, tool), []byte("#!/bin/sh\n"), 0o755))
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
