package nsfind

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// MountsArePrivate reports whether only this process and its children see mounts
// in dir: the process is in another mount namespace than first, and mounts at
// dir are not propagated. It is false if first cannot be read.
func MountsArePrivate(dir, first string) (bool, error) {
	var own, other unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/mnt", &own); err != nil {
		return false, fmt.Errorf("look up the mount namespace: %w", err)
	}
	if unix.Stat(first, &other) != nil || own.Ino == other.Ino && own.Dev == other.Dev {
		return false, nil
	}
	id, err := mountOf(dir)
	if err != nil {
		return false, err
	}
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return false, err
	}
	// 36 35 98:0 /mnt1 /mnt2 rw,noatime shared:1 - ext3 /dev/root rw
	for line := range bytes.Lines(mounts) {
		fields := strings.Fields(string(line))
		if len(fields) < 7 || fields[0] != id {
			continue
		}
		for _, optional := range fields[6:] {
			if strings.HasPrefix(optional, "shared:") {
				return false, nil
			}
			if optional == "-" {
				break
			}
		}
		return true, nil
	}
	return false, nil
}

// mountOf returns the number of the mount that contains a directory.
func mountOf(dir string) (string, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", dir, err)
	}
	defer func() { _ = unix.Close(fd) }() // it was only asked about
	info, err := os.ReadFile(fmt.Sprintf("/proc/thread-self/fdinfo/%d", fd))
	if err != nil {
		return "", err
	}
	for line := range bytes.Lines(info) {
		if id, ok := strings.CutPrefix(string(line), "mnt_id:"); ok {
			return strings.TrimSpace(id), nil
		}
	}
	return "", nil
}
