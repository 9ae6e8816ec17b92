package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// workDir is on a tmpfs of this program's own.
	workDir = "/run/faas"
	// cgroup is all that this program makes outside its namespaces.
	cgroup = "embedcni-faas"

	// insideVariable marks process 1 of the namespaces.
	insideVariable = "EMBEDCNI_FAAS_INSIDE"
)

// reexec starts the program again in mount, network and process namespaces of its own,
// and returns its exit code. It is process 1 there: everything that it starts ends with it.
// Inside reexec returns true.
func reexec(ctx context.Context) (inside bool, code int, err error) {
	if os.Getenv(insideVariable) != "" {
		return true, 0, enter()
	}
	if os.Geteuid() != 0 {
		return false, 1, errors.New("containerd needs root")
	}
	// Pdeathsig is about the thread that starts the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return false, 1, err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(unix.SIGTERM) }) // or it has ended
	defer stop()
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return false, max(exit.ExitCode(), 1), nil
	}
	return false, 0, err
}

// enter covers the directories in which containerd and the library keep their state.
func enter() error {
	if os.Getpid() != 1 {
		return fmt.Errorf("%s is for this program alone: unset it", insideVariable)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range []string{"/run", "/var/lib"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
			return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
		}
	}
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo") // on which the gateway listens
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// findCgroup returns the directories of this program's cgroup, in all hierarchies.
func findCgroup() ([]string, error) {
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/" + cgroup, "/sys/fs/cgroup/*/" + cgroup} {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		found = append(found, dirs...)
	}
	return found, nil
}

// removeCgroup removes the cgroup with those below it. It waits for processes that are
// ending, and fails if others are in it.
func removeCgroup(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		err := tryRemoveCgroup()
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: another faas may be running", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func tryRemoveCgroup() error {
	roots, err := findCgroup()
	errs := []error{err}
	for _, root := range roots {
		var dirs []string
		errs = append(errs, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		}))
		for _, dir := range slices.Backward(dirs) {
			errs = append(errs, unix.Rmdir(dir))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove cgroup %s: %w", cgroup, err)
	}
	return nil
}
