// Package orphan deals with plugins that outlive the runtime that started them:
// killed while one ran, it could neither wait for it nor kill it. They hold the
// lock file of their container, which they inherited.
package orphan

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/plainfile"
)

// Self identifies this process: its number and when it started, since numbers
// are used again.
func Self() (string, error) { return identify(os.Getpid()) }

func identify(pid int) (string, error) {
	data, err := plainfile.Read(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	started, err := startTime(string(data))
	if err != nil {
		return "", fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	return fmt.Sprintf("%d:%s", pid, started), nil
}

// errEnded: nobody has waited for the process yet, but it is over.
var errEnded = errors.New("the process has ended")

// startTime is field 22 of proc_pid_stat(5). The second field is the command in
// parentheses and may hold anything, parentheses too.
func startTime(stat string) (string, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const after = 22 - 3 // the first field behind the command is the third
	if len(fields) <= after {
		return "", errors.New("too few fields")
	}
	if state := fields[0]; state == "Z" || state == "X" {
		return "", errEnded
	}
	return fields[after], nil
}

// Alive tells whether the process of an identity that Self returned still runs.
func Alive(identity string) (bool, error) {
	number, _, ok := strings.Cut(identity, ":")
	pid, err := strconv.Atoi(number)
	if !ok || err != nil {
		return false, fmt.Errorf("%q is not the identity of a process", identity)
	}
	now, err := identify(pid)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, errEnded) {
		return false, nil
	}
	return now == identity, err
}

// Kill kills the processes that have the lock file open and were started for
// the container. The caller knows that the runtime which started them is dead.
// It returns how many there were.
func Kill(lockFile, containerID string) (killed int, err error) {
	pids, err := find(lockFile, containerID)
	var errs []error
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("kill plugin process %d: %w", pid, err))
			continue
		}
		killed++
	}
	return killed, errors.Join(append(errs, err)...)
}

func find(lockFile, containerID string) ([]int, error) {
	lock, err := os.Stat(lockFile)
	if err != nil {
		return nil, fmt.Errorf("plugins that outlived their runtime: %w", err)
	}
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	variable := []byte("CNI_CONTAINERID=" + containerID)
	var pids []int
	for _, dir := range procs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		// A process that ends while it is looked at, or that is another
		// user's, is not one of ours.
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !slices.ContainsFunc(bytes.Split(env, []byte{0}), func(kv []byte) bool { return bytes.Equal(kv, variable) }) {
			continue
		}
		if hasOpen(dir, lock) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func hasOpen(dir string, file os.FileInfo) bool {
	fds, err := filepath.Glob(filepath.Join(dir, "fd", "*"))
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if fi, err := os.Stat(fd); err == nil && os.SameFile(fi, file) {
			return true
		}
	}
	return false
}
