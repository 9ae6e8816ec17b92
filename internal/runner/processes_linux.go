package runner

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/netns"
)

// anyRuns reports whether a visible process with one of these names runs in the
// namespace.
func anyRuns(host *netns.Handle, names ...string) (bool, error) {
	all, err := nsfind.Inhabitants()
	if err != nil {
		return false, err
	}
	for _, t := range all[host.ID()] {
		name, err := os.ReadFile(filepath.Join(t.Dir, "comm"))
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH): // it has ended
		case err != nil:
			return false, err
		case slices.Contains(names, strings.TrimSuffix(string(name), "\n")):
			return true, nil
		}
	}
	return false, nil
}
