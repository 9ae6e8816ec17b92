package iptables

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// tools makes a directory with an iptables that is a link to a file of that name.
func tools(t *testing.T, target string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, target), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	link(t, target, filepath.Join(dir, "iptables"))
	return dir
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func wantVariant(t *testing.T, legacy bool) {
	t.Helper()
	x := Tool{Family: "iptables"}
	if err := x.Detect(t.Context()); err != nil || x.Legacy != legacy {
		t.Errorf("Detect found legacy %v and %v, want %v", x.Legacy, err, legacy)
	}
}

// What is remembered must not hide that an administrator chose another variant, removed
// it, or installed another.
func TestAChangeOfTheToolsIsNoticedAtOnce(t *testing.T) {
	first, dir, other := t.TempDir(), tools(t, "xtables-nft-multi"), tools(t, "xtables-legacy-multi")
	t.Setenv("PATH", first+":"+dir+":"+other)
	for range 2 {
		wantVariant(t, false)
	}
	link(t, filepath.Join(other, "xtables-legacy-multi"), filepath.Join(dir, "iptables"))
	wantVariant(t, true)
	link(t, "xtables-nft-multi", filepath.Join(dir, "iptables"))
	wantVariant(t, false)
	if err := os.Remove(filepath.Join(dir, "iptables")); err != nil {
		t.Fatal(err)
	}
	wantVariant(t, true) // in the next directory
	link(t, filepath.Join(dir, "xtables-nft-multi"), filepath.Join(first, "iptables"))
	wantVariant(t, false) // in an earlier one
}

// A link in the middle of a chain of them may change, as update-alternatives does.
func TestALinkBehindALinkIsNoticed(t *testing.T) {
	dir := tools(t, "xtables-nft-multi")
	other := tools(t, "xtables-legacy-multi")
	t.Setenv("PATH", dir)
	alternative := filepath.Join(dir, "alternative")
	link(t, "alternative", filepath.Join(dir, "iptables"))
	for range 3 {
		link(t, "xtables-nft-multi", alternative)
		wantVariant(t, false)
		link(t, filepath.Join(other, "xtables-legacy-multi"), alternative)
		wantVariant(t, true)
	}
}

func TestTheMemoryOfLinksIsLimited(t *testing.T) {
	for i := range 3 * mostFollowed {
		dir := filepath.Join(t.TempDir(), strconv.Itoa(i))
		if err := os.Rename(tools(t, "xtables-nft-multi"), dir); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir)
		wantVariant(t, false)
	}
	if n := len(links.all); n == 0 || n > mostFollowed {
		t.Errorf("%d links are remembered, want 1 to %d", n, mostFollowed)
	}
}
