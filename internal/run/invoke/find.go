package invoke

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/kernel/thread"
)

// ErrNotFound means that no directory has an executable of that name.
var ErrNotFound = errors.New("plugin not found")

// CheckType returns an error unless the plugin type is a valid file name.
func CheckType(pluginType string) error {
	switch {
	case pluginType == "":
		return errors.New("no plugin name provided")
	case pluginType == ".", pluginType == "..", strings.ContainsAny(pluginType, "/\\\x00"):
		return fmt.Errorf("invalid plugin name: %q", pluginType)
	}
	return nil
}

// checkExecutable returns the reason why path must not be executed, or nil.
func checkExecutable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: not a regular file", path)
	case !mayExecute(info.Mode()):
		return fmt.Errorf("%s: not executable: %w", path, fs.ErrPermission)
	}
	return nil
}

// notFoundError begins with libcni's text, which callers match.
type notFoundError struct {
	plugin string
	dirs   []string
	near   []error // files of that name that cannot be used
}

func (e *notFoundError) note(err error) {
	if !errors.Is(err, fs.ErrNotExist) {
		e.near = append(e.near, err)
	}
}

func (e *notFoundError) Error() string {
	text := fmt.Sprintf("failed to find plugin %q in path %s", e.plugin, e.dirs)
	for _, err := range e.near {
		text += "; " + err.Error()
	}
	return text
}

func (e *notFoundError) Is(target error) bool { return target == ErrNotFound }

func (e *notFoundError) Unwrap() []error { return e.near }

// Root is the root directory of executed plugins, an absolute path. Paths of executables
// and plugin directories are then paths in it. The zero value is this process's own root.
type Root string

// Find returns the absolute path of a plugin type's executable: the first
// regular file of that name, symbolic links followed, that may be executed.
//
// But for the accepted directories, Find refuses with plainfile.ErrInsecure a file that other
// users could have put there or written; see [plainfile.Trust]. It does not try the
// directories after it, because that would be another plugin than the configured
// one. A root that cannot be entered, or that other users may replace, is no
// ErrNotFound for the same reason.
func (r Root) Find(pluginType string, dirs []string, accepted []string) (path string, err error) {
	var candidates []string
	for _, dir := range dirs {
		if dir == "" { // would mean the current directory
			continue
		}
		for _, ext := range invoke.ExecutableFileExtensions {
			candidates = append(candidates, filepath.Join(dir, pluginType)+ext)
		}
	}
	return r.first(pluginType, dirs, candidates, accepted)
}

// Check returns nil if the previously found executable of a plugin type is still
// one that Find would return, and ErrNotFound if it is gone.
func (r Root) Check(pluginType, path string, accepted []string) error {
	_, err := r.first(pluginType, []string{filepath.Dir(path)}, []string{path}, accepted)
	return err
}

// first returns the first of the candidates that can be executed.
func (r Root) first(pluginType string, dirs, candidates []string, accepted []string) (path string, err error) {
	missing := &notFoundError{plugin: pluginType, dirs: dirs}
	err = r.trusted(accepted, func() error {
		if err := CheckType(pluginType); err != nil {
			return err
		}
		for _, path = range candidates {
			if path, err = filepath.Abs(path); err != nil {
				return fmt.Errorf("plugin %q: %w", pluginType, err)
			}
			if err := checkExecutable(path); err != nil {
				missing.note(err)
				continue
			}
			if err := plainfile.TrustUnless(accepted, path); err != nil {
				return fmt.Errorf("plugin %q: %w", pluginType, err)
			}
			return nil
		}
		return missing
	})
	if err != nil {
		return "", err
	}
	return path, nil
}

// trusted is Do, unless other users may replace the root.
func (r Root) trusted(accepted []string, fn func() error) error {
	if r == "" {
		return fn()
	}
	if err := plainfile.TrustUnless(accepted, string(r)); err != nil {
		return r.error(err)
	}
	return r.Do(fn)
}

// Do runs fn with this root; see thread.AtRoot.
func (r Root) Do(fn func() error) error {
	if r == "" {
		return fn()
	}
	return r.error(thread.AtRoot(string(r), fn))
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
			return joined.Errors(err, rerr)
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
