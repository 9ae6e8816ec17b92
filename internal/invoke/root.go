package invoke

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/embedcni/cni/internal/chroot"
	"github.com/embedcni/cni/internal/perm"
)

// Root is the root directory of executed plugins, an absolute path. Paths of executables
// and plugin directories are then paths in it. The zero value is this process's own root.
type Root string

// Find is the function Find, in the root. A root that cannot be entered, or that other users
// may replace, is no ErrNotFound: another plugin must not run in the place of one that
// nobody has looked for.
func (r Root) Find(pluginType string, dirs []string, allowInsecure bool) (path string, err error) {
	err = r.trusted(allowInsecure, func() (err error) {
		path, err = Find(pluginType, dirs, allowInsecure)
		return err
	})
	return path, err
}

// Check is the function Check, in the root.
func (r Root) Check(pluginType, path string, allowInsecure bool) error {
	return r.trusted(allowInsecure, func() error { return Check(pluginType, path, allowInsecure) })
}

// trusted is Do, unless other users may replace the root.
func (r Root) trusted(allowInsecure bool, fn func() error) error {
	if r == "" {
		return fn()
	}
	if err := perm.CheckUnless(allowInsecure, string(r)); err != nil {
		return r.error(err)
	}
	return r.Do(fn)
}

// Do runs fn with this root; see chroot.Do.
func (r Root) Do(fn func() error) error {
	if r == "" {
		return fn()
	}
	return r.error(chroot.Do(string(r), fn))
}

// Shares returns an error unless a path leads to the same file in this root and in the
// process's own. Parts of it that exist in neither do not matter.
func (r Root) Shares(path string) error {
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		own, err := os.Stat(at)
		var its fs.FileInfo
		rerr := r.Do(func() (err error) {
			its, err = os.Stat(at)
			return err
		})
		none, rnone := errors.Is(err, fs.ErrNotExist), errors.Is(rerr, fs.ErrNotExist)
		switch {
		case none && rnone:
			continue
		case err != nil && !none, rerr != nil && !rnone:
			return errors.Join(err, rerr)
		case none || rnone || !os.SameFile(own, its):
			return fmt.Errorf("%s is another file in the plugin root %s: mount it, or a directory above it, so that the path leads to the same file in both", at, r)
		}
		return nil
	}
}

// error says of which root an error is.
func (r Root) error(err error) error {
	if err == nil || r == "" {
		return err
	}
	return &rootError{r, err}
}

// rootError names the root after the error's own text, which callers match.
type rootError struct {
	root Root
	err  error
}

func (e *rootError) Error() string { return fmt.Sprintf("%v (plugin root %s)", e.err, e.root) }

// Unwrap returns the error inside the root.
func (e *rootError) Unwrap() error { return e.err }
