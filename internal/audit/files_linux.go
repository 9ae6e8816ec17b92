package audit

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
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

// isLedger reports whether a file belongs to an owner's ledger, of this version
// or an earlier one: .claims, .claims.new, .claims.prev-1; .old.
func isLedger(name string) bool {
	owner := "ledger." + strings.Repeat("[0-9a-f]", 16)
	for _, pattern := range []string{"", ".old", ".claims", ".claims.new", ".claims.prev-[0-9]*"} {
		if ok, err := filepath.Match(owner+pattern, name); err == nil && ok {
			return true
		}
	}
	return false
}

func listFiles(dirs []string) ([]string, error) {
	var lines []string
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
		if !e.IsDir() {
			hostLocal = hostLocal && network
			if isLedger(e.Name()) && e.Type().IsRegular() {
				lines = append(lines, "file "+path+" "+ofLedger)
				continue
			}
			text, err := describe(path, e)
			if err != nil {
				return nil, false, err
			}
			if text != "" && network && (e.Name() == "lock" || lastReserved(e.Name())) {
				text += " " + ofHostLocal
			}
			lines = append(lines, text)
			continue
		}
		below, of, err := listDir(path)
		if err != nil {
			return nil, false, err
		}
		hostLocal = hostLocal && of
		text := "dir " + path + "/"
		if of {
			text += " " + ofHostLocal
		}
		lines = append(append(lines, text), below...)
	}
	return Lines(lines).Without(func(l string) bool { return l == "" }), hostLocal, nil
}

// isNetworkDir reports whether the entries are those of a host-local network
// directory: a lock, the last address per range, a file per reserved address,
// nothing else.
func isNetworkDir(entries []fs.DirEntry) bool {
	lock := false
	for _, e := range entries {
		name := e.Name()
		_, err := netip.ParseAddr(name)
		if !e.Type().IsRegular() || name != "lock" && !lastReserved(name) && err != nil {
			return false
		}
		lock = lock || name == "lock"
	}
	return lock
}

func lastReserved(name string) bool {
	ok, err := filepath.Match("last_reserved_ip.[0-9]*", name)
	return err == nil && ok
}

// describe returns the line for a file, or nothing if the file has just
// disappeared.
func describe(path string, e fs.DirEntry) (string, error) {
	switch e.Type() {
	case 0:
		return describeRegular(path)
	case fs.ModeSymlink:
		target, err := os.Readlink(path)
		if err != nil {
			return "", unlessGone(err)
		}
		return "symlink " + path + " " + target, nil
	}
	return fmt.Sprintf("special %s %v", path, e.Type()), nil
}

func describeRegular(path string) (string, error) {
	// A pinned namespace is a regular file that cannot be read.
	if h, err := netns.Open(path); err == nil {
		return "file " + path + " netns " + h.ID().String(), h.Close()
	}
	info, err := os.Lstat(path)
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

// listMounts lists all namespace mounts, and all mounts at or below dirs.
func listMounts(dirs []string) ([]string, error) {
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, m := range parseMountinfo(string(text)) {
		listed := m.fstype == "nsfs"
		for _, dir := range dirs {
			listed = listed || within(m.path, filepath.Clean(dir))
		}
		if listed {
			lines = append(lines, "mount "+m.fstype+" "+m.path)
		}
	}
	return lines, nil
}

func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

type mount struct{ fstype, path string }

// parseMountinfo reads a mountinfo, see proc_pid_mountinfo(5). The number of
// fields before the dash varies:
//
//	36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 - ext3 /dev/root rw
func parseMountinfo(text string) []mount {
	var mounts []mount
	for l := range strings.Lines(text) {
		head, tail, _ := strings.Cut(l, " - ")
		fields, types := strings.Fields(head), strings.Fields(tail)
		if len(fields) < 5 || len(types) < 1 {
			continue
		}
		mounts = append(mounts, mount{fstype: types[0], path: unescape(fields[4])})
	}
	return mounts
}

// unescape undoes the kernel's escapes of separator characters.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// listNetNS lists the files in the directories where namespaces are pinned. A
// file that pins none is the leftover of an interrupted removal.
func listNetNS(dirs []string) ([]string, error) {
	var lines []string
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
				lines = append(lines, "netns "+path+" "+h.ID().String())
				if err := h.Close(); err != nil {
					return nil, err
				}
			case errors.Is(err, netns.ErrNotNetNS):
				lines = append(lines, "netns "+path+" none")
			case errors.Is(err, fs.ErrPermission):
				lines = append(lines, "unreadable "+path)
			case unlessGone(err) != nil:
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

// commandLine joins the arguments of /proc/PID/cmdline.
func commandLine(cmdline []byte) string {
	return strings.TrimSpace(string(bytes.ReplaceAll(cmdline, []byte{0}, []byte(" "))))
}
