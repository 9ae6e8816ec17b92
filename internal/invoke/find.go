package invoke

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/embedcni/cni/internal/perm"
)

// ErrNotFound means that no directory has an executable of that name.
var ErrNotFound = errors.New("plugin not found")

// Find returns the absolute path of a plugin type's executable: the first
// regular file of that name, symbolic links followed, that may be executed.
//
// Unless allowInsecure, Find refuses with perm.ErrInsecure a file that other
// users could have put there or written; see package perm. It does not try the
// directories after it, because that would be another plugin than the configured
// one.
func Find(pluginType string, dirs []string, allowInsecure bool) (string, error) {
	if err := CheckType(pluginType); err != nil {
		return "", err
	}
	missing := &notFoundError{plugin: pluginType, dirs: dirs}
	for _, dir := range dirs {
		if dir == "" { // would mean the current directory
			continue
		}
		for _, ext := range invoke.ExecutableFileExtensions {
			path, err := filepath.Abs(filepath.Join(dir, pluginType) + ext)
			if err != nil {
				return "", fmt.Errorf("plugin %q: %w", pluginType, err)
			}
			if err := checkExecutable(path); err != nil {
				missing.note(err)
				continue
			}
			if err := checkPerm(pluginType, path, allowInsecure); err != nil {
				return "", err
			}
			return path, nil
		}
	}
	return "", missing
}

// Check returns nil if the previously found executable of a plugin type is still
// one that Find would return, and ErrNotFound if it is gone.
func Check(pluginType, path string, allowInsecure bool) error {
	if err := checkExecutable(path); err != nil {
		missing := &notFoundError{plugin: pluginType, dirs: []string{filepath.Dir(path)}}
		missing.note(err)
		return missing
	}
	return checkPerm(pluginType, path, allowInsecure)
}

func checkPerm(pluginType, path string, allowInsecure bool) error {
	if err := perm.CheckUnless(allowInsecure, path); err != nil {
		return fmt.Errorf("plugin %q: %w", pluginType, err)
	}
	return nil
}

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
