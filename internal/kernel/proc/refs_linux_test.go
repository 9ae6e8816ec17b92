package proc

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
)

// proc makes a directory in the form of /proc: links and files by path.
func proc(t *testing.T, links, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	make := func(path string) string {
		path = filepath.Join(dir, path)
		expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		return path
	}
	for path, to := range links {
		expect.NoError(t, os.Symlink(to, make(path)))
	}
	for path, content := range files {
		expect.NoError(t, os.WriteFile(make(path), []byte(content), 0o600))
	}
	return dir
}

func TestANamespaceIsLookedForInProcessesMountsAndDescriptors(t *testing.T) {
	const link, other = "net:[4026532231]", "net:[4026531840]"
	thread := func(of string) string { return "3/task/1073741824/" + of }
	dir := proc(t, map[string]string{
		"1/task/1/ns/net": other, "1/task/1/ns/mnt": "mnt:[1]", "1/task/1/fd/0": "/dev/null",
		"2/task/2/ns/net": other, "2/task/2/ns/mnt": "mnt:[1]", "2/task/2/fd/7": link,
		"3/task/3/ns/net": link, "3/task/3/ns/mnt": "mnt:[2]", "3/task/3/fd/0": other,
		// Threads besides the leading one, with a number that no thread of this
		// machine has.
		thread("ns/net"): link, thread("ns/mnt"): "mnt:[3]", thread("fd/9"): link,
		"self/ns/net": link, // equal to one of the numbers
	}, map[string]string{
		"1/task/1/mountinfo": "1 0 8:1 / / rw - ext4 root rw\n" +
			"2 1 0:4 net:[4026532231] /run/my\\040netns rw shared:3 - nsfs nsfs rw\n" +
			"3 1 0:4 net:[40265322310] /run/longer rw shared:3 - nsfs nsfs rw\n",
		"2/task/2/mountinfo": "2 1 0:4 net:[4026532231] /of/the/same/namespace rw - nsfs nsfs rw\n",
		"3/task/3/mountinfo": "2 1 0:4 net:[4026532231] /run/its rw - nsfs nsfs rw\n",
		thread("mountinfo"):  "2 1 0:4 net:[4026532231] /run/of/the/thread rw - nsfs nsfs rw\n",
	})
	var paths []string
	search := func(stop bool) (complete bool) {
		t.Helper()
		paths = nil
		complete, err := Scan(dir, Any, func(r Ref) bool {
			if r.Inode != 4026532231 {
				return true
			}
			path, err := filepath.Rel(dir, r.Path)
			expect.That(t, err == nil, "%v", err)
			paths = append(paths, path)
			return !stop
		})
		expect.NoError(t, err)
		return complete
	}
	complete := search(false)
	want := []string{"1/task/1/root/run/my netns", "2/task/2/fd/7", "3/task/3/ns/net", "3/task/3/root/run/its",
		thread("ns/net"), thread("root/run/of/the/thread"), thread("fd/9")}
	expect.That(t, complete && slices.Equal(paths, want), "paths %q, complete %v, want %q", paths, complete, want)
	search(true)
	expect.That(t, slices.Equal(paths, want[:1]), "after the first: %q", paths)
	threads := 0
	expect.Value(Scan(dir, Thread, func(r Ref) bool {
		if strings.HasSuffix(r.Path, "/ns/net") {
			threads++
		} else {
			t.Errorf("beside threads: %+v", r)
		}
		return true
	}))(t)
	expect.Same(t, "threads alone", threads, 4)
	// A process that has ended does not count, but one that may not be
	// inspected does.
	for _, more := range []struct {
		path         string
		wantComplete bool
	}{{"4/comm", true}, {"5/task/5/ns/net", false}} { // in this order: each stays
		path := filepath.Join(dir, more.path)
		expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if err := os.WriteFile(path, nil, 0o600); err != nil { // not a link: EINVAL stands for EACCES
			t.Fatal(err)
		}
		complete := search(false)
		expect.That(t, complete == more.wantComplete && slices.Equal(paths, want), "with %s: complete %v, paths %q", path, complete, paths)
	}
}

// TestScanNamesTheNamespaceOfEachReference, of a descriptor too that was opened through a mount.
func TestScanNamesTheNamespaceOfEachReference(t *testing.T) {
	const link = "net:[7]"
	dir := proc(t, map[string]string{
		"1/task/1/ns/net": link, "1/task/1/ns/mnt": "mnt:[1]", "1/task/1/fd/3": link,
		"1/task/1/fd/4": "/proc/thread-self/ns/net", // as if opened through a mount
		"1/task/1/fd/5": "/dev/null", "1/task/1/fd/6": "/is/closed/by/now",
	}, map[string]string{"1/task/1/mountinfo": "2 1 0:4 net:[7] /run/x rw - nsfs nsfs rw\n3 1 0:4 mnt:[7] /run/y rw - nsfs nsfs rw\n"})
	var got []Ref
	complete, err := Scan(dir, Any, func(r Ref) bool {
		r.Path, _ = filepath.Rel(dir, r.Path)
		got = append(got, r)
		return true
	})
	var own unix.Stat_t
	expect.NoError(t, unix.Stat("/proc/thread-self/ns/net", &own))
	want := []Ref{
		{7, "1/task/1/ns/net"}, {7, "1/task/1/root/run/x"}, {7, "1/task/1/fd/3"}, {own.Ino, "1/task/1/fd/4"},
	}
	expect.That(t, complete && err == nil && slices.Equal(got, want), "got %+v, %v, %v, want %+v", got, complete, err, want)
}

// TestEachFindsThisThread among others of this process, the leading one first.
func TestEachFindsThisThread(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var ours []Task
	expect.Value(eachTask("/proc", func(task Task) bool {
		if task.PID == os.Getpid() {
			ours = append(ours, task)
		}
		return true
	}))(t)
	here := map[int]Task{}
	for i, task := range ours {
		here[task.TID] = task
		expect.That(t, task.Leads() == (i == 0), "thread %d of %+v", i, ours)
	}
	task, ok := here[unix.Gettid()]
	expect.Must(t, ok && len(ours) >= 2, "thread %d is not among %+v", unix.Gettid(), ours)
	got := expect.Value(os.Readlink(task.NetNS()))(t)
	want, err := os.Readlink("/proc/thread-self/ns/net")
	expect.That(t, got == want && err == nil, "in %s, want %s, %v", got, want, err)
}

// TestEachSkipsEndedTasks, and stops on request.
func TestEachSkipsEndedTasks(t *testing.T) {
	proc := t.TempDir()
	for _, dir := range []string{"1/task/1", "1/task/7", "2", "3/task/3", "self/task/9", "4/task/4", "4/task/2", "4/task/3"} {
		expect.NoError(t, os.MkdirAll(filepath.Join(proc, dir), 0o700))
	}
	var seen []Task
	complete, err := eachTask(proc, func(task Task) bool {
		task.Dir, _ = filepath.Rel(proc, task.Dir)
		seen = append(seen, task)
		return true
	})
	if !complete || err != nil {
		t.Fatal(complete, err)
	}
	want := []Task{{1, 1, "1/task/1"}, {1, 7, "1/task/7"}, {3, 3, "3/task/3"}, {4, 4, "4/task/4"}, {4, 2, "4/task/2"}, {4, 3, "4/task/3"}}
	expect.That(t, slices.Equal(seen, want), "got %v, want %v", seen, want)
	calls := 0
	if _, err := eachTask(proc, func(Task) bool { calls++; return false }); err != nil || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
	if complete, err := eachTask(filepath.Join(proc, "no"), func(Task) bool { return true }); complete || !Gone(err) {
		t.Errorf("without a directory: %v, %v", complete, err)
	}
	expect.NoError(t, os.WriteFile(filepath.Join(proc, "2", "task"), nil, 0o600))
	if complete, err := eachTask(proc, func(Task) bool { return true }); complete || err != nil {
		t.Errorf("with threads that cannot be listed: %v, %v", complete, err)
	}
}
