//go:build unix

package invoke

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// attributes puts a plugin into a process group of its own, with the root.
func attributes(root Root) *syscall.SysProcAttr {
	// No Pdeathsig: it refers to the thread that forked, not the process, and Go
	// ends threads at any time.
	return &syscall.SysProcAttr{Setpgid: true, Chroot: string(root)}
}

// killGroup also kills the leader by itself, in case it moved to another group.
// It ignores errors: waiting for the process shows whether it worked.
func killGroup(leader *os.Process) {
	_ = syscall.Kill(-leader.Pid, syscall.SIGKILL)
	_ = leader.Kill()
}

// groupExists reports whether the group still has a process, zombies included.
func groupExists(pgid int) bool {
	return !errors.Is(syscall.Kill(-pgid, 0), syscall.ESRCH)
}

// defaultPath contains iptables, nft, tc and sysctl on every distribution. sbin
// comes first, as it does for root.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// DefaultAllow returns the variables that plugins get by default: those that
// name the machine's services. Without them a plugin would talk to another
// service than the runtime, or to none.
//
// Left out on purpose: HOME, because a network must not depend on who started
// the runtime; LANG and LC_*, because plugins parse other programs' output,
// which is stable only in the C locale; HTTP_PROXY and the like, because they
// contain passwords; LD_*, because they load code; NOTIFY_SOCKET and LISTEN_*,
// because they are meant for the runtime alone.
func DefaultAllow() []string {
	return []string{
		"DBUS_SYSTEM_BUS_ADDRESS", // the firewall plugin asks firewalld
		"SSL_CERT_DIR",            // plugins with an API server behind them: public
		"SSL_CERT_FILE",           //   certificates, where a distribution has moved them
		"TMPDIR",                  // the only place to write, on some hardened machines
		"TZ",                      // the times in a plugin's log are those in the runtime's
		"XDG_RUNTIME_DIR",         // rootless: /run is not writable
		"XTABLES_LIBDIR",          // iptables finds its modules
		"XTABLES_LOCKFILE",        // iptables takes the lock that the others take; rootless has no /run/xtables.lock
	}
}

func mayExecute(mode fs.FileMode) bool {
	return mode&0o111 != 0
}
