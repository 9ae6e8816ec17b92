package sandbox

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownNetworkAndMounts are the namespaces to unshare. Go unshares them after it
// has written the mappings. Cloned together with the user namespace they would
// come first. Files that the kernel makes with a network namespace, such as
// /proc/net/ip_tables_names, belong to the root of that time, which is the
// machine's root until the mappings exist.
const ownNetworkAndMounts = unix.CLONE_NEWNET | unix.CLONE_NEWNS

// attempts returns the ways to start inside, best first: with the classic sixteen bits of
// users and groups, including nobody (65534), which needs privilege; with the caller
// alone, as root; and, for a root caller who may not make user namespaces, without one.
func attempts() []*syscall.SysProcAttr {
	alone := mapped(
		[]syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		[]syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	)
	if os.Geteuid() != 0 {
		return []*syscall.SysProcAttr{alone}
	}
	// Each line of a mapping lies within one line of the parent's. In a container that
	// an ordinary user has started, root is on a line of its own.
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 1, HostID: 1, Size: 65535}}
	full := mapped(ids, ids)
	// An unprivileged process may map its group only after giving up
	// setgroups (CVE-2014-8989).
	full.GidMappingsEnableSetgroups = true
	return []*syscall.SysProcAttr{full, alone, {Unshareflags: ownNetworkAndMounts, Pdeathsig: unix.SIGKILL}}
}

func mapped(uids, gids []syscall.SysProcIDMap) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, Unshareflags: ownNetworkAndMounts, Pdeathsig: unix.SIGKILL,
		UidMappings: uids, GidMappings: gids,
	}
}
