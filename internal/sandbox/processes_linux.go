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

// ErrProcessStarted is what NoProcess returns if one was.
var ErrProcessStarted = errors.New("a process was started")

// NoProcess runs fn, and returns [ErrProcessStarted] beside its error if this
// process, or a descendant of it, has started another process meanwhile, by
// whichever way. Threads are none, and what goes on on the machine does not
// matter; other goroutines do, so nothing else may run beside fn that starts
// processes.
//
// A process that was started is either still a child, or has been waited for,
// and then what it has used is added up in the kernel's account of children.
// Orphans become children of this process in a sandbox. That leaves no gap but a
// parent, itself a descendant, that lives on and waits for its children, and is
// a child that was there before.
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

// usedByChildren is the one figure of what children that were waited for have
// used that no process can keep at nothing: to begin a program is to fault its
// pages in.
func usedByChildren() (int64, error) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &usage); err != nil {
		return 0, fmt.Errorf("what the children have used: %w", err)
	}
	return int64(usage.Minflt) + int64(usage.Majflt), nil
}

// children are the processes below this one, zombies too. The kernel lists them
// by the thread that they were started from. A thread that ends hands its own on
// to another, whose list may have been read by then, so that this is repeated.
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
