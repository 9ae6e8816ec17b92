package sandbox

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxID is the largest mapped ID. It covers the classic sixteen bits of users
// and groups, including nobody (65534).
const maxID = 65535

// ownNetworkAndMounts are the namespaces to unshare. Go unshares them after it
// has written the mappings. Cloned together with the user namespace they would
// come first. Files that the kernel makes with a network namespace, such as
// /proc/net/ip_tables_names, belong to the root of that time, which is the
// machine's root until the mappings exist.
const ownNetworkAndMounts = unix.CLONE_NEWNET | unix.CLONE_NEWNS

// attempts returns the ways to start inside, best first: with every existing
// user and group, which needs privilege; with the caller alone, as root; and,
// for a root caller who may not make user namespaces, without one.
func attempts() []*syscall.SysProcAttr {
	ways := []*syscall.SysProcAttr{mapped(
		[]syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		[]syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	)}
	if os.Geteuid() != 0 {
		return ways
	}
	uids, uidErr := loadMap("/proc/self/uid_map")
	gids, gidErr := loadMap("/proc/self/gid_map")
	if uidErr == nil && gidErr == nil { // not a reason to fail: the single mapping needs no file
		full := mapped(uids, gids)
		// An unprivileged process may map its group only after giving up
		// setgroups (CVE-2014-8989).
		full.GidMappingsEnableSetgroups = true
		ways = []*syscall.SysProcAttr{full, ways[0]}
	}
	return append(ways, &syscall.SysProcAttr{Unshareflags: ownNetworkAndMounts, Pdeathsig: unix.SIGKILL})
}

func mapped(uids, gids []syscall.SysProcIDMap) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, Unshareflags: ownNetworkAndMounts, Pdeathsig: unix.SIGKILL,
		UidMappings: uids, GidMappings: gids,
	}
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
	for line := range strings.Lines(text) {
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
