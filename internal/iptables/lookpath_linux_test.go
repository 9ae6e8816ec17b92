package iptables

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// tools makes a directory with an iptables that is a link to a file of that name.
func tools(t *testing.T, target string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, target), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(dir, "iptables")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func wantVariant(t *testing.T, legacy bool) {
	t.Helper()
	x := Tool{Family: "iptables"}
	if err := x.Detect(t.Context()); err != nil || x.Legacy != legacy {
		t.Errorf("Detect found legacy %v and %v, want %v", x.Legacy, err, legacy)
	}
}

// What is remembered must not hide that an administrator chose another variant, or
// removed it.
func TestAChangedLinkIsNoticedAtOnce(t *testing.T) {
	dir, other := tools(t, "xtables-nft-multi"), tools(t, "xtables-legacy-multi")
	t.Setenv("PATH", dir+":"+other)
	for range 2 {
		wantVariant(t, false)
	}
	link := filepath.Join(dir, "iptables")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	wantVariant(t, true) // in the next directory
	if path, err := LookPath("iptables"); err != nil || path != filepath.Join(other, "iptables") {
		t.Errorf("LookPath returned %q, %v", path, err)
	}
	if err := os.Remove(filepath.Join(other, "iptables")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "xtables-nft-multi"), filepath.Join(other, "iptables")); err != nil {
		t.Fatal(err)
	}
	wantVariant(t, false) // the same path leads to another file
}

func TestAnotherPathIsLookedUp(t *testing.T) {
	t.Setenv("PATH", tools(t, "xtables-nft-multi"))
	wantVariant(t, false)
	t.Setenv("PATH", tools(t, "xtables-legacy-multi"))
	wantVariant(t, true)
}

// A tool in an earlier directory of PATH wins, as for executable plugins, within fresh.
func TestAToolInAnEarlierDirectoryIsNoticed(t *testing.T) {
	first, second := t.TempDir(), tools(t, "xtables-nft-multi")
	t.Setenv("PATH", first+":"+second)
	wantVariant(t, false)
	if err := os.Symlink(filepath.Join(tools(t, "xtables-legacy-multi"), "iptables"), filepath.Join(first, "iptables")); err != nil {
		t.Fatal(err)
	}
	lookups.mu.Lock()
	for key, f := range lookups.found {
		f.at = f.at.Add(-fresh - time.Nanosecond)
		lookups.found[key] = f
	}
	lookups.mu.Unlock()
	wantVariant(t, true)
}

func TestTheMemoryOfLookupsIsLimited(t *testing.T) {
	dir := tools(t, "xtables-nft-multi")
	for i := range 3 * mostLookups {
		t.Setenv("PATH", dir+string(filepath.ListSeparator)+filepath.Join(dir, "none", string(rune('a'+i))))
		wantVariant(t, false)
	}
	if n := len(lookups.found); n > mostLookups {
		t.Errorf("%d lookups are remembered, at most %d should be", n, mostLookups)
	}
}
