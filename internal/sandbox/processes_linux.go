package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrProcessStarted is the error of NoProcess if a process was started.
var ErrProcessStarted = errors.New("a process was started")

// NoProcess runs fn. It adds [ErrProcessStarted] to fn's error if this process
// or one of its descendants has started another process meanwhile, in any way.
// Threads do not count, and neither do other processes of the machine. Other
// goroutines do count, so none of them may start processes meanwhile.
//
// A started process is either still a child, or has been waited for and appears
// in the kernel's account of children. In a sandbox, orphans become children of
// this process. There is one gap: a descendant that existed before may start
// children, wait for them and live on.
func NoProcess(fn func() error) error {
	before, err := children()
	if err != nil {
		return err
	}
	used, err := usedByChildren()
	if err != nil {
		return err
	}
	failed := fn()
	now, err := usedByChildren()
	if err == nil && now != used {
		err = fmt.Errorf("%w, and has ended: %d page faults of it", ErrProcessStarted, now-used)
	}
	after, cerr := children()
	for _, pid := range after {
		if !slices.Contains(before, pid) {
			err = errors.Join(err, fmt.Errorf("%w: %d", ErrProcessStarted, pid))
		}
	}
	return errors.Join(failed, err, cerr)
}

// usedByChildren returns the page faults of children that were waited for. It
// is the only figure that no process can keep at zero: starting a program
// faults its pages in.
func usedByChildren() (int64, error) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &usage); err != nil {
		return 0, fmt.Errorf("resources used by children: %w", err)
	}
	return int64(usage.Minflt) + int64(usage.Majflt), nil
}

// children returns the processes below this one, including zombies. The kernel
// lists them by their starting thread. A thread that ends passes its children
// to another thread, whose list may have been read already, so the listing is
// repeated.
func children() ([]int, error) {
	for {
		before, err := threads()
		if err != nil {
			return nil, err
		}
		found, err := childrenOf(before)
		if err != nil {
			return nil, err
		}
		after, err := threads()
		if err != nil || slices.Equal(before, after) {
			return found, err
		}
	}
}

func threads() ([]string, error) {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err == nil && len(lists) == 0 {
		err = errors.New("the kernel does not list children: it needs CONFIG_PROC_CHILDREN")
	}
	return lists, err
}

func childrenOf(lists []string) ([]int, error) {
	var found []int
	for _, path := range lists {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			return nil, err
		}
		for _, field := range strings.Fields(string(data)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			found = append(found, pid)
		}
	}
	return found, nil
}
