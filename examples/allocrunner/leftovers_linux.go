package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/embedcni/cni/internal/audit"
)

// audit lists what containers could leave: links, rules, mounts, files, processes.
func (s *show) audit(ctx context.Context) (lines audit.Lines, err error) {
	err = s.reaper.alone(func() (err error) {
		lines, err = audit.Snapshot(ctx, audit.Options{StateDirs: []string{
			stateDir(s.dir), filepath.Join(s.dir, "allocs"), filepath.Join(s.dir, "runc"), "/var/lib",
		}})
		return err
	})
	return append(lines, cgroups(s.cgroup)...), err
}

// leftovers removes the cgroups, and prints what else is left. The bridges, shared chains
// and locks, which the next container uses again, do not count.
func (s *show) leftovers(ctx context.Context, before audit.Lines) error {
	if err := removeCgroups(s.cgroup); err != nil {
		return err
	}
	var left, gone audit.Lines
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(tooLong); ; <-tick.C {
		after, err := s.audit(ctx)
		if err != nil {
			return err
		}
		left, gone = audit.Diff(before, after)
		left, gone = left.Without(s.isKept), gone.Without(s.isKept)
		// The kernel ends processes and namespaces in its own time.
		if len(left)+len(gone) == 0 || time.Now().After(end) {
			break
		}
	}
	if len(left)+len(gone) == 0 {
		fmt.Fprintf(s.out, "\nleft of all containers: nothing, no cgroup, no rule, no file\n")
		return nil
	}
	return fmt.Errorf("left:\n%s\ngone:\n%s", strings.Join(left, "\n"), strings.Join(gone, "\n"))
}

// isKept reports whether a line is of something that no container owns.
func (s *show) isKept(line string) bool {
	return audit.Shared(line) || strings.Contains(line, " "+stateDir(s.dir)+"/embedcni/") || strings.HasPrefix(line, "fd ")
}

// cgroups lists the cgroups of that name, in each hierarchy, and those below them.
func cgroups(name string) (all audit.Lines) {
	for _, pattern := range []string{"/sys/fs/cgroup/" + name, "/sys/fs/cgroup/*/" + name} {
		roots, _ := filepath.Glob(pattern) // the pattern is well formed
		for _, root := range roots {
			_ = filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
				if err == nil && e.IsDir() { // else it is gone
					all = append(all, "cgroup "+path)
				}
				return nil
			})
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// removeCgroups removes them, the lowest first. The kernel refuses while a process in one
// is ending.
func removeCgroups(name string) (err error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(tooLong); ; <-tick.C {
		err = nil
		for _, line := range slices.Backward(cgroups(name)) {
			if rerr := os.Remove(strings.TrimPrefix(line, "cgroup ")); !errors.Is(rerr, os.ErrNotExist) {
				err = errors.Join(err, rerr)
			}
		}
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// reaper waits for the orphans of this process, which is their parent in place of init:
// containers, and plugins of a killed client.
type reaper struct {
	mu     sync.Mutex
	own    map[int]bool // started by this program, which waits for them itself
	sigs   chan os.Signal
	ended  chan struct{}
	ending chan struct{}
}

func newReaper() *reaper {
	r := &reaper{own: map[int]bool{}, sigs: make(chan os.Signal, 1), ended: make(chan struct{}), ending: make(chan struct{})}
	signal.Notify(r.sigs, syscall.SIGCHLD)
	go func() {
		defer close(r.ended)
		for {
			select {
			case <-r.sigs:
				r.reap()
			case <-r.ending:
				return
			}
		}
	}()
	return r
}

func (r *reaper) stop() {
	signal.Stop(r.sigs)
	close(r.ending)
	<-r.ended
}

// start starts a command that the reaper leaves alone.
func (r *reaper) start(cmd *exec.Cmd) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := cmd.Start()
	if err == nil {
		r.own[cmd.Process.Pid] = true
	}
	return err
}

// alone calls f, which may start processes and waits for them.
func (r *reaper) alone(f func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return f()
}

// output runs a command, and returns its output as an error if it fails.
func (r *reaper) output(cmd *exec.Cmd) error {
	return r.alone(func() error {
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, out)
		}
		return nil
	})
}

// reap waits for the orphans that have ended.
func (r *reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	lists, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is well formed
	for _, list := range lists {
		children, _ := os.ReadFile(list) // of a thread that may have ended
		for _, child := range strings.Fields(string(children)) {
			if pid, err := strconv.Atoi(child); err == nil && !r.own[pid] {
				_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil) // one that runs stays
			}
		}
	}
}
