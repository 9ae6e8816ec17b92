package interchange

import (
	"context"
	"os"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
)

func TestMain(m *testing.M) { os.Exit(refplugins.Main(m, refplugins.WithFlannel(), sandbox.Shards(2))) }

// wantOutsideAsBefore compares, after the test and its subtests, the things
// outside the tests' hosts: the process's own namespace, which plugins must not
// change, its threads, descriptors, children and mounts.
func wantOutsideAsBefore(t *testing.T) {
	t.Helper()
	look := func() audit.Lines {
		return expect.Value(audit.Snapshot(context.Background(), audit.Options{}))(t)
	}
	before := look()
	t.Cleanup(func() {
		added, removed := audit.Diff(before, look())
		expect.Unchanged(t, "outside of all hosts", added, removed)
		wantThreadsHome(t)
	})
}

// wantThreadsHome checks that no thread was left in a test's namespace.
func wantThreadsHome(t *testing.T) {
	t.Helper()
	home := expect.Value(os.Readlink("/proc/self/ns/net"))(t)
	for _, thread := range expect.Value(os.ReadDir("/proc/self/task"))(t) {
		// A thread that has just ended is nowhere.
		at, err := os.Readlink("/proc/self/task/" + thread.Name() + "/ns/net")
		expect.That(t, err != nil || at == home, "thread %s is in namespace %s, the process in %s", thread.Name(), at, home)
	}
}
