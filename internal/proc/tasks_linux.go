package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Task is a thread. It may have ended since it was listed.
type Task struct {
	PID, TID int
	// Dir is its directory, for example /proc/4711/task/4712.
	Dir string
}

// Leads reports whether the thread is its process's leading one.
func (t Task) Leads() bool { return t.PID == t.TID }

// NetNS returns the path of the thread's network namespace.
func (t Task) NetNS() string { return filepath.Join(t.Dir, "ns/net") }

// EachTask calls f with every thread below proc, a process's leading one before its
// others, until f returns false. It skips processes that end meanwhile, and
// those whose threads may not be listed; complete is false if there was one of
// the latter. It takes some microseconds for each process and each thread.
func EachTask(proc string, f func(Task) (more bool)) (complete bool, err error) {
	pids, err := Numbers(proc)
	if err != nil {
		return false, err
	}
	complete = true
	for _, pid := range pids {
		all, err := TasksOf(proc, pid)
		if err != nil && !Gone(err) {
			complete = false
		}
		for _, t := range all {
			if !f(t) {
				return complete, nil
			}
		}
	}
	return complete, nil
}

// TasksOf lists the threads of one process, the leading one first.
func TasksOf(proc string, pid int) ([]Task, error) {
	dir := filepath.Join(proc, strconv.Itoa(pid), "task")
	tids, err := Numbers(dir)
	if err != nil {
		return nil, err
	}
	all := make([]Task, 0, len(tids))
	for _, tid := range tids {
		all = append(all, Task{pid, tid, filepath.Join(dir, strconv.Itoa(tid))})
	}
	if i := slices.IndexFunc(all, Task.Leads); i > 0 { // its number may be the higher one, because numbers are reused
		leading := all[i]
		copy(all[1:], all[:i])
		all[0] = leading
	}
	return all, nil
}

// Gone reports whether an error of reading about a process or a thread means
// that it has ended.
func Gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// Numbers lists the processes below a proc, or the threads in the directory "task" of
// one, in order.
func Numbers(dir string) ([]int, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("list threads: %w", err)
	}
	names, err := d.Readdirnames(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return nil, fmt.Errorf("list threads: %w", err)
	}
	var all []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all, nil
}
