package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// fileSystemOf describes the file system of a directory. A sync takes much longer
// with a journal than without.
func fileSystemOf(dir string) (string, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "", err
	}
	name := fileSystem(int64(s.Type))
	if s.Type != unix.EXT4_SUPER_MAGIC {
		return name, nil
	}
	journal, err := journalOf("/", dir)
	if err != nil {
		return "", err
	}
	return name + " " + journal, nil
}

// journalOf reports in words whether the ext4 of a directory has a journal. Its
// options name a data mode only if it has one, see ext4(5) for data=ordered.
func journalOf(root, dir string) (string, error) {
	device, err := deviceOf(dir)
	if err != nil {
		return "", err
	}
	link, err := os.Readlink(filepath.Join(root, "sys/dev/block", device))
	if errors.Is(err, fs.ErrNotExist) {
		return journalUnknown, nil
	}
	if err != nil {
		return "", err
	}
	options, err := os.ReadFile(filepath.Join(root, "proc/fs/ext4", filepath.Base(link), "options"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return journalUnknown, nil
	}
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(options)) {
		if strings.HasPrefix(line, "data=") {
			return "with a journal", nil
		}
	}
	return "without a journal", nil
}

const journalUnknown = "of which nobody says whether it has a journal"

// deviceOf returns the numbers of a directory's device, as the kernel's files name
// it.
func deviceOf(dir string) (string, error) {
	var stat unix.Stat_t
	if err := unix.Stat(dir, &stat); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev)), nil
}

func fileSystem(magic int64) string {
	switch magic {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	}
	return fmt.Sprintf("file system %#x", magic)
}
