package container

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/proc"
	"github.com/embedcni/cni/netns"
)

// TestLeadsAway: only a path that certainly leads elsewhere leads away.
func TestLeadsAway(t *testing.T) {
	dir := t.TempDir()
	file, loop := filepath.Join(dir, "file"), filepath.Join(dir, "loop")
	expect.NoError(t, os.WriteFile(file, nil, 0o600))
	expect.NoError(t, os.Symlink(loop, loop))
	want, ok := At(file)
	expect.Must(t, ok, "%s cannot be followed", file)
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
		expect.Same(t, what, LeadsAway(test.path, want), test.want)
	}
}

// TestThisThreadIsFound in its namespace, and the namespace through the thread.
func TestThisThreadIsFound(t *testing.T) {
	own, err := netns.CurrentID()
	expect.NoError(t, err)
	ns, _, err := search(own, proc.Thread)
	expect.Must(t, err == nil && ns != nil, "got %v, %v", ns, err)
	defer ns.Close()
	expect.That(t, ns.ID() == own && leadsTo(descriptorPath(ns), ns), "%s and %s are not %s", ns.ID(), descriptorPath(ns), own)
	expect.Same(t, "a thread is in it", expect.Value(inhabited())(t)[own.Ino], true)
	none, _, err := search(netns.ID{Dev: own.Dev, Ino: 1}, proc.Any)
	expect.That(t, none == nil && err == nil, "a namespace that does not exist: %v, %v", none, err)
}

// TestTheFirstProcesssNamespaceIsThatOfItsThreads, even if its leading thread
// is in another one.
func TestTheFirstProcesssNamespaceIsThatOfItsThreads(t *testing.T) {
	file := func(name string) (path string, id netns.ID) {
		path = filepath.Join(t.TempDir(), name)
		expect.NoError(t, os.WriteFile(path, nil, 0o600))
		id, _ = At(path)
		return path, id
	}
	host, want := file("host")
	container, other := file("container")
	const missing = "missing"
	for what, test := range map[string]struct {
		threads map[string]string
		want    netns.ID
		ok      bool
	}{
		"one thread":                    {map[string]string{"1": host}, want, true},
		"all in one":                    {map[string]string{"1": host, "2": host, "3": host}, want, true},
		"the leading one parked":        {map[string]string{"1": container, "2": host, "3": host}, want, true},
		"one at work":                   {map[string]string{"1": host, "2": container, "3": host}, want, true},
		"one that may not be asked":     {map[string]string{"1": missing, "2": container}, other, true},
		"none that may be asked":        {map[string]string{"1": missing, "2": missing}, netns.ID{}, false},
		"a process that cannot be seen": {nil, netns.ID{}, false},
	} {
		links := map[string]string{}
		for tid, to := range test.threads {
			links["1/task/"+tid+"/ns/net"] = to
		}
		got, ok := firstNetNS(procWith(t, links))
		expect.That(t, got == test.want && ok == test.ok, "%s: got %v, %v, want %v, %v", what, got, ok, test.want, test.ok)
	}
}

// procWith makes a directory with links, in the form of /proc.
func procWith(t *testing.T, links map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, to := range links {
		path = filepath.Join(dir, path)
		expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		expect.NoError(t, os.Symlink(to, path))
	}
	return dir
}

// TestHiddenNamespacesAreFound: one is mounted in a directory on a private mount, and a
// process is in another mount namespace.
func TestHiddenNamespacesAreFound(t *testing.T) {
	for _, tt := range []struct {
		what        string
		propagation uintptr
		unshare     bool
		want        bool
	}{
		{"private", unix.MS_PRIVATE, true, true},
		{"shared", unix.MS_SHARED, true, false},
		{"private, and the process is here", unix.MS_PRIVATE, false, false},
	} {
		dir := t.TempDir()
		expect.NoError(t, errors.Join(unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("", dir, "", tt.propagation, "")))
		root := another(t, tt.unshare)
		link, path := filepath.Join(t.TempDir(), "link"), filepath.Join(dir, "ns")
		ns := expect.Value(netns.Create(path))(t)
		expect.NoError(t, os.Symlink(dir, link))
		for _, path := range []string{path, filepath.Join(link, "ns")} {
			expect.Same(t, tt.what, hiddenFrom(root, path, ns.ID()), tt.want)
			expect.Same(t, tt.what+", and the process may not be looked at", hiddenFrom("/proc/0/root", path, ns.ID()), false)
		}
		expect.NoError(t, errors.Join(ns.Close(), netns.Remove(path), unix.Unmount(dir, unix.MNT_DETACH)))
	}
}

// another returns the root of another process, if so in a mount namespace of its own.
func another(t *testing.T, unshare bool) (root string) {
	t.Helper()
	args := []string{"sh", "-c", "echo /proc/$$/root; exec sleep 600"}
	if unshare {
		args = append([]string{"unshare", "-m", "--propagation", "unchanged"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	out, err := cmd.StdoutPipe()
	expect.NoError(t, errors.Join(err, cmd.Start()))
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it cannot have ended
		_ = cmd.Wait()         // it was killed
	})
	root, err = bufio.NewReader(out).ReadString('\n')
	expect.NoError(t, err)
	root = root[:len(root)-1]
	expect.NoError(t, expect.Err(os.Stat(root)))
	return root
}
