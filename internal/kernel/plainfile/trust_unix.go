//go:build unix

package plainfile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// trust walks the path as the kernel does, so that no part of it goes unseen.
func trust(path string, accepted []string) error {
	w := &trusting{self: uint32(os.Geteuid()), open: make(map[string]bool)}
	for _, dir := range accepted {
		// Walk's paths have no links. A directory that does not exist has nothing to accept.
		if dir, err := filepath.EvalSymlinks(dir); err == nil {
			w.accepted = append(w.accepted, dir)
		}
	}
	_, err := Walk(path, w.look)
	return err
}

type trusting struct {
	self     uint32
	accepted []string        // directories with whatever is in them
	open     map[string]bool // directories in which everybody may create an entry, as in /tmp
}

// look examines the file at path, and returns the reason if it is refused.
func (w *trusting) look(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(w.accepted, func(dir string) bool { return isIn(path, dir) }) {
		return info, nil
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("%s: no owner is known", path)
	}
	trusted := !w.open[filepath.Dir(path)] || st.Uid == 0 || st.Uid == w.self || st.Uid == overflowUID && inUserNS()
	mode := info.Mode()
	writable := mode&worldWritable != 0
	w.open[path] = info.IsDir() && writable
	why := ""
	switch {
	case mode&fs.ModeSymlink == 0 && writable && !(info.IsDir() && mode&fs.ModeSticky != 0):
		why = "is writable by everybody: run chmod o-w on it"
	case !trusted:
		why = fmt.Sprintf("is in a directory where everybody makes files, and belongs neither to root nor to user %d, as which this program runs: run chown root on it", w.self)
	default:
		return info, nil
	}
	return info, &refusal{fmt.Sprintf("%s (mode %v, owner %d) %s", path, mode, st.Uid, why)}
}

// isIn reports whether a path is a directory or leads into it, both without links.
func isIn(path, dir string) bool {
	rest, found := strings.CutPrefix(path, dir)
	return found && (rest == "" || rest[0] == '/' || dir == "/")
}

// inUserNS reports whether this process is in a user namespace other than the
// machine's first, which maps every user.
//
//	0          0 4294967295
func inUserNS() bool {
	data, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	return strings.Join(strings.Fields(string(data)), " ") != "0 0 4294967295"
}

// worldWritable is the write bit for all users.
const worldWritable = 0o002

// overflowUID is the owner that the kernel shows for an owner without a number
// in the user namespace (/proc/sys/kernel/overflowuid).
const overflowUID = 65534

// refusal is an ErrInsecure that begins with the path.
type refusal struct{ text string }

func (r *refusal) Error() string        { return r.text }
func (r *refusal) Is(target error) bool { return target == ErrInsecure }
