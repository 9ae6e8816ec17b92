package cni

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// inhabitants are the processes that can be seen, by the network namespace that
// they are in. It takes some microseconds for each process there is, so it is
// for what no path leads to.
func inhabitants() (map[netns.ID][]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("look for processes in a namespace: %w", err)
	}
	names, err := proc.Readdirnames(-1)
	if err = errors.Join(err, proc.Close()); err != nil {
		return nil, fmt.Errorf("look for processes in a namespace: %w", err)
	}
	found := make(map[netns.ID][]int)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		// One that has ended since is in none, and one that may not be looked at
		// cannot be found.
		if unix.Stat("/proc/"+name+"/ns/net", &st) == nil {
			id := netns.ID{Dev: uint64(st.Dev), Ino: uint64(st.Ino)}
			found[id] = append(found[id], pid)
		}
	}
	return found, nil
}

// openInhabited opens the namespace of a process if it has that identity. The
// number of one that has ended is given to the next, so whether it is the one
// that is meant is to be found out. It returns nil if there is none.
func openInhabited(want netns.ID) (*netns.Handle, error) {
	found, err := inhabitants()
	if err != nil {
		return nil, err
	}
	for _, pid := range found[want] {
		ns, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
		case err != nil:
			return nil, err
		case ns.ID() == want:
			return ns, nil
		default:
			if err := ns.Close(); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}
