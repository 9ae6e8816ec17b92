package audit

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// maxHashed limits the size of files whose content counts. State of CNI is a
// few kilobytes per file. A larger file is a log or a database.
const maxHashed = 64 << 10

// ofHostLocal marks files that host-local keeps for a network, not for a
// container.
const ofHostLocal = "host-local"

var (
	// ledger matches the name of an owner's ledger, of this version or an earlier one.
	ledger = regexp.MustCompile(`^ledger\.[0-9a-f]{16}(\.old|\.claims(\.new|\.prev-\d.*)?)?$`)
	// ofNetwork matches host-local's files of a network: the lock, and the last address of
	// a range.
	ofNetwork = regexp.MustCompile(`^(lock|last_reserved_ip\.\d.*)$`)
)

func listFiles(dirs []string) (lines []string, err error) {
	for _, dir := range dirs {
		more, _, err := listDir(dir)
		if err != nil {
			return nil, err
		}
		lines = append(lines, more...)
	}
	return lines, nil
}

// listDir lists the contents of dir. It reports whether dir holds only
// host-local's network files and reservations.
func listDir(dir string) (lines []string, hostLocal bool, err error) {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, nil
	case errors.Is(err, fs.ErrPermission):
		return []string{"unreadable " + dir}, false, nil
	case err != nil:
		return nil, false, err
	}
	network := isNetworkDir(entries)
	hostLocal = len(entries) > 0
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		var text, mark string
		switch {
		case e.IsDir():
			below, of, err := listDir(path)
			if err != nil {
				return nil, false, err
			}
			lines = append(lines, below...)
			if text = "dir " + path + "/"; of {
				mark = ofHostLocal
			}
			hostLocal = hostLocal && of
		case ledger.MatchString(e.Name()) && e.Type().IsRegular():
			text, mark = "file "+path, ofLedger
		case network && ofNetwork.MatchString(e.Name()):
			text, mark = "file "+path, ofHostLocal
		default:
			if text, err = describe(path, e); err != nil {
				return nil, false, err
			}
		}
		hostLocal = hostLocal && (network || e.IsDir())
		if text != "" {
			lines = append(lines, line(text, mark))
		}
	}
	return lines, hostLocal, nil
}

// isNetworkDir reports whether the entries are those of a host-local network
// directory: a lock, the last address per range, a file per reserved address,
// nothing else.
func isNetworkDir(entries []fs.DirEntry) bool {
	lock := false
	for _, e := range entries {
		_, err := netip.ParseAddr(e.Name())
		if !e.Type().IsRegular() || err != nil && !ofNetwork.MatchString(e.Name()) {
			return false
		}
		lock = lock || e.Name() == "lock"
	}
	return lock
}

// describe returns the line for a file, or nothing if the file has just
// disappeared.
func describe(path string, e fs.DirEntry) (string, error) {
	if e.Type() == fs.ModeSymlink {
		target, err := os.Readlink(path)
		if err != nil {
			return "", unlessGone(err)
		}
		return "symlink " + path + " " + target, nil
	}
	if !e.Type().IsRegular() {
		return fmt.Sprintf("special %s %v", path, e.Type()), nil
	}
	// A pinned namespace is a regular file that cannot be read.
	if h, err := netns.Open(path); err == nil {
		return "file " + path + " netns " + h.ID().String(), h.Close()
	}
	info, err := e.Info()
	if err != nil {
		return "", unlessGone(err)
	}
	if info.Size() > maxHashed {
		return "file " + path + " large", nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrPermission) {
		return "unreadable " + path, nil
	}
	if err != nil {
		return "", unlessGone(err)
	}
	sum := sha256.Sum256(data)
	return fmt.Sprintf("file %s sha256:%x", path, sum[:8]), nil
}

// unlessGone returns err, or nil if err means that a file, directory or process
// disappeared after it was found. It then does not exist and has no line.
func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// listMounts lists all namespace mounts, and all mounts at or below dirs. It reads a
// mountinfo, see proc_pid_mountinfo(5). The number of fields before the dash varies:
//
//	36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 - ext3 /dev/root rw
func listMounts(dirs []string) (lines []string, err error) {
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	// The kernel escapes separator characters.
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for l := range strings.Lines(string(text)) {
		head, tail, _ := strings.Cut(l, " - ")
		fields, types := strings.Fields(head), strings.Fields(tail)
		if len(fields) < 5 || len(types) < 1 {
			continue
		}
		path := unescape.Replace(fields[4])
		if types[0] == "nsfs" || slices.ContainsFunc(dirs, func(dir string) bool { return within(path, filepath.Clean(dir)) }) {
			lines = append(lines, "mount "+types[0]+" "+path)
		}
	}
	return lines, nil
}

func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// listNetNS lists the files in the directories where namespaces are pinned. A
// file that pins none is the leftover of an interrupted removal.
func listNetNS(dirs []string) (lines []string, err error) {
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrPermission) {
			lines = append(lines, "unreadable "+dir)
		} else if err = unlessGone(err); err != nil {
			return nil, err
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			h, err := netns.Open(path)
			switch {
			case err == nil:
				lines, err = append(lines, "netns "+path+" "+h.ID().String()), h.Close()
			case errors.Is(err, netns.ErrNotNetNS):
				lines, err = append(lines, "netns "+path+" none"), nil
			case errors.Is(err, fs.ErrPermission):
				lines, err = append(lines, "unreadable "+path), nil
			}
			if unlessGone(err) != nil {
				return nil, err
			}
		}
	}
	return lines, nil
}

// listDescriptors lists the process's open files, one line each, so that a
// difference shows how many more of a kind there are.
func listDescriptors() ([]string, error) {
	// The runtime opens its poller with the first pollable file, such as a
	// pipe.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(r.Close(), w.Close()); err != nil {
		return nil, err
	}
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	numbered := regexp.MustCompile(`^(\w+):\[\d+\]$`)
	var lines []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			// At least ReadDir's own descriptor disappears.
			if err = unlessGone(err); err != nil {
				return nil, err
			}
			continue
		}
		lines = append(lines, "fd "+numbered.ReplaceAllString(target, "$1"))
	}
	return lines, nil
}
