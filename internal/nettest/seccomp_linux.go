package nettest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// RefuseNetfilter has the kernel refuse this process sockets to the packet filter from
// now on, as a kernel without it does. Its children inherit that.
func RefuseNetfilter() error {
	// Offsets in struct seccomp_data: the number, and the low half of arguments.
	const number, first, eachArg = 0, 16, 8
	low := uint32(0)
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		low = 4
	}
	const load, equal, end = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	program := []unix.SockFilter{ // unless equal, it skips to the last instruction
		{Code: load, K: number}, {Code: equal, Jf: 5, K: unix.SYS_SOCKET},
		{Code: load, K: first + low}, {Code: equal, Jf: 3, K: unix.AF_NETLINK},
		{Code: load, K: first + 2*eachArg + low}, {Code: equal, Jf: 1, K: unix.NETLINK_NETFILTER},
		{Code: end, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)}, {Code: end, K: unix.SECCOMP_RET_ALLOW},
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}

// HideIPTables makes the programs of iptables invisible. The caller's process has
// a mount namespace of its own.
func HideIPTables() error {
	errs := []error{unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")}
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/local/sbin", "/usr/sbin", "/sbin") {
		if _, err := os.Stat(filepath.Join(dir, "iptables")); err == nil {
			errs = append(errs, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
		}
	}
	return errors.Join(errs...)
}
