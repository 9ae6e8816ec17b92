package chain

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/expect"
)

// TestForgetUnneeded deletes only files of that container that nobody needs.
func TestForgetUnneeded(t *testing.T) {
	dir := t.TempDir()
	is := func(want string) func(string) bool { return func(id string) bool { return id == want } }
	unneeded := func(c *libcni.NetworkAttachment) bool { return string(c.Config) == "lo" }
	expect.NoError(t, ForgetUnneeded(dir, is("a-b"), unneeded)) // there is no cache

	cached := func(id, config string) string {
		return `{"kind": "cniCacheV1", "containerId": "` + id + `", "config": "` + map[string]string{"lo": "bG8=", "pods": "cG9kcw=="}[config] + `"}`
	}
	const goes, stays = true, false
	results := filepath.Join(dir, "results")
	expect.NoError(t, os.Mkdir(results, 0o700))
	files := map[string]struct {
		content string
		goes    bool
	}{
		"cni-loopback-a-b-lo": {cached("a-b", "lo"), goes},
		"other-lo-a-b-lo":     {cached("a-b", "lo"), goes},
		"pods-a-b-eth0":       {cached("a-b", "pods"), stays},
		"torn-a-b-eth1":       {cached("a-b", "lo")[:40], goes},
		"empty-a-b-eth2":      {"", goes},
		"zeros-a-b-if-3":      {strings.Repeat("\x00", 40), goes},
		"result-a-b-eth4":     {`{"cniVersion": "0.4.0"}`, stays}, // as libcni once wrote it
		"shared-a-b-c-lo":     {cached("a-b-c", "lo"), stays},     // network "shared", or "shared-a", or …
		"cni-loopback-a-lo":   {cached("a", "lo"), stays},
		"torn-a-lo":           {"{", stays},
		"a-b":                 {"", stays},
		"a-b-lo":              {"", stays},
		"x-a-b":               {"", stays},
	}
	var want []string
	for name, f := range files {
		expect.NoError(t, os.WriteFile(filepath.Join(results, name), []byte(f.content), 0o600))
		if !f.goes {
			want = append(want, name)
		}
	}
	slices.Sort(want)
	for range 2 {
		expect.NoError(t, ForgetUnneeded(dir, is("a-b"), unneeded))
		entries := expect.Value(os.ReadDir(results))(t)
		var left []string
		for _, e := range entries {
			left = append(left, e.Name())
		}
		expect.Same(t, "left", left, want)
	}
	expect.NoError(t, os.RemoveAll(results), os.WriteFile(results, nil, 0o600))
	err := ForgetUnneeded(dir, is("a-b"), unneeded)
	expect.That(t, err != nil && !errors.Is(err, fs.ErrNotExist), "a cache that cannot be read: %v", err)
}
