package nsfind

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/proc"
	"github.com/embedcni/cni/netns"
)

// TestLeadsAway: only a path that certainly leads elsewhere leads away.
func TestLeadsAway(t *testing.T) {
	dir := t.TempDir()
	file, loop := filepath.Join(dir, "file"), filepath.Join(dir, "loop")
	expect.NoError(t, os.WriteFile(file, nil, 0o600))
	expect.NoError(t, os.Symlink(loop, loop))
	want, ok := At(file)
	if !ok {
		t.Fatalf("%s cannot be followed", file)
	}
	for what, test := range map[string]struct {
		path string
		want bool
	}{
		"the namespace":           {file, false},
		"another file":            {dir, true},
		"nothing":                 {filepath.Join(dir, "missing"), true},
		"below a file":            {filepath.Join(file, "x"), true},
		"a process that is gone":  {"/proc/4194305/ns/net", true},
		"a loop":                  {loop, false},
		"a relative path":         {"missing", false},
		"no path":                 {"", false},
		"relative to a process":   {"/proc/self/missing", false},
		"the same, spelled badly": {"/proc//self/missing", false},
		"relative to a thread":    {"/proc/thread-self/missing", false},
		"a descriptor":            {"/dev/fd/1000", false},
	} {
		if got := LeadsAway(test.path, want); got != test.want {
			t.Errorf("%s: got %v, want %v", what, got, test.want)
		}
	}
}

// TestThisThreadIsFound in its namespace, and the namespace through the thread.
func TestThisThreadIsFound(t *testing.T) {
	own, err := netns.CurrentID()
	expect.NoError(t, err)
	ns, err := OpenInhabited(own)
	if err != nil || ns == nil {
		t.Fatalf("got %v, %v", ns, err)
	}
	defer ns.Close()
	if ns.ID() != own || !LeadsTo(DescriptorPath(ns), ns) {
		t.Errorf("%s and %s are not %s", ns.ID(), DescriptorPath(ns), own)
	}
	all, err := Inhabitants()
	expect.NoError(t, err)
	for _, task := range all[own] {
		if task.PID == os.Getpid() {
			return
		}
	}
	t.Errorf("no thread of this process in %v", map[netns.ID][]proc.Task(all))
}
