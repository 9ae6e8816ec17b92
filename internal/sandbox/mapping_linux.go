package sandbox

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/cut"
)

// maxID is the largest id that is mapped: what the classic sixteen bits of
// users and groups hold, nobody (65534) among them.
const maxID = 65535

// ownNetworkAndMounts are the namespaces to unshare, which Go does after it has
// written the mappings. Cloned together with the user namespace they would come
// before: files that the kernel makes with a network namespace, such as
// /proc/net/ip_tables_names, belong to whoever root is at that time, and as long
// as nothing is mapped that is the machine's.
const ownNetworkAndMounts = unix.CLONE_NEWNET | unix.CLONE_NEWNS

// attempts returns the ways to start inside, best first: with every user and
// group there is, which takes privilege; with the caller alone, as root; and for
// a root caller whom user namespaces are refused, without one.
func attempts() []*syscall.SysProcAttr {
	single := &syscall.SysProcAttr{
		Cloneflags:   unix.CLONE_NEWUSER,
		Unshareflags: ownNetworkAndMounts,
		Pdeathsig:    unix.SIGKILL,
		UidMappings:  []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings:  []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		// An unprivileged process may map its group only after it has given
		// up setgroups (CVE-2014-8989).
		GidMappingsEnableSetgroups: false,
	}
	if os.Geteuid() != 0 {
		return []*syscall.SysProcAttr{single}
	}
	plain := &syscall.SysProcAttr{Unshareflags: ownNetworkAndMounts, Pdeathsig: unix.SIGKILL}

	uids, uidErr := loadMap("/proc/self/uid_map")
	gids, gidErr := loadMap("/proc/self/gid_map")
	if uidErr != nil || gidErr != nil {
		// Not worth failing for: the single mapping needs no file.
		return []*syscall.SysProcAttr{single, plain}
	}
	full := &syscall.SysProcAttr{
		Cloneflags:                 unix.CLONE_NEWUSER,
		Unshareflags:               ownNetworkAndMounts,
		Pdeathsig:                  unix.SIGKILL,
		UidMappings:                uids,
		GidMappings:                gids,
		GidMappingsEnableSetgroups: true,
	}
	return []*syscall.SysProcAttr{full, single, plain}
}

func loadMap(path string) ([]syscall.SysProcIDMap, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	ids, err := parseMap(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return ids, nil
}

// parseMap reads a uid_map or gid_map and returns the mapping of all ids up to
// maxID that exist here to themselves. A line is "first id here, first id in
// the parent, count":
//
//	0       1000          1
//	1     100000      65536
func parseMap(text string) ([]syscall.SysProcIDMap, error) {
	var ids []syscall.SysProcIDMap
	for line := range cut.Lines(text) {
		var here, parent, count int64
		if _, err := fmt.Sscan(line, &here, &parent, &count); err != nil {
			return nil, fmt.Errorf("line %q: %w", line, err)
		}
		if here > maxID {
			continue
		}
		size := min(count, maxID+1-here)
		ids = append(ids, syscall.SysProcIDMap{ContainerID: int(here), HostID: int(here), Size: int(size)})
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("no id up to %d is mapped", maxID)
	}
	return ids, nil
}
