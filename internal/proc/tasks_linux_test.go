package proc

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
)

// TestEachFindsThisThread among others of this process, the leading one first.
func TestEachFindsThisThread(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var ours []Task
	if _, err := EachTask("/proc", func(task Task) bool {
		if task.PID == os.Getpid() {
			ours = append(ours, task)
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	here := map[int]Task{}
	for i, task := range ours {
		here[task.TID] = task
		if task.Leads() != (i == 0) {
			t.Errorf("thread %d of %+v", i, ours)
		}
	}
	task, ok := here[unix.Gettid()]
	if !ok || len(ours) < 2 {
		t.Fatalf("thread %d is not among %+v", unix.Gettid(), ours)
	}
	got, err := os.Readlink(task.NetNS())
	expect.NoError(t, err)
	if want, err := os.Readlink("/proc/thread-self/ns/net"); got != want || err != nil {
		t.Errorf("in %s, want %s, %v", got, want, err)
	}
}

// TestEachSkipsEndedTasks, and stops on request.
func TestEachSkipsEndedTasks(t *testing.T) {
	proc := t.TempDir()
	for _, dir := range []string{"1/task/1", "1/task/7", "2", "3/task/3", "self/task/9", "4/task/4", "4/task/2", "4/task/3"} {
		expect.NoError(t, os.MkdirAll(filepath.Join(proc, dir), 0o700))
	}
	var seen []Task
	complete, err := EachTask(proc, func(task Task) bool {
		task.Dir, _ = filepath.Rel(proc, task.Dir)
		seen = append(seen, task)
		return true
	})
	if !complete || err != nil {
		t.Fatal(complete, err)
	}
	want := []Task{{1, 1, "1/task/1"}, {1, 7, "1/task/7"}, {3, 3, "3/task/3"}, {4, 4, "4/task/4"}, {4, 2, "4/task/2"}, {4, 3, "4/task/3"}}
	if !slices.Equal(seen, want) {
		t.Errorf("got %v, want %v", seen, want)
	}
	calls := 0
	if _, err := EachTask(proc, func(Task) bool { calls++; return false }); err != nil || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
	if complete, err := EachTask(filepath.Join(proc, "no"), func(Task) bool { return true }); complete || !Gone(err) {
		t.Errorf("without a directory: %v, %v", complete, err)
	}
	expect.NoError(t, os.WriteFile(filepath.Join(proc, "2", "task"), nil, 0o600))
	if complete, err := EachTask(proc, func(Task) bool { return true }); complete || err != nil {
		t.Errorf("with threads that cannot be listed: %v, %v", complete, err)
	}
}
