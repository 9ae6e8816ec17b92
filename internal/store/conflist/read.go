package conflist

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// maxFile limits the size of a configuration file. Kubernetes limits an object to
// 1.5 MiB; no conflist comes near.
const maxFile = 4 << 20

var (
	// ErrRead: a file or directory could not be read.
	ErrRead = errors.New("cannot be read")
	// ErrNone: there is no configuration where one was looked for.
	ErrNone = errors.New("no network config found")
)

// FileError is an error about a file.
type FileError struct {
	Path string
	Err  error
}

func (e *FileError) Error() string { return e.Path + ": " + e.Err.Error() }
func (e *FileError) Unwrap() error { return e.Err }

// Reader reads configuration files.
type Reader struct {
	// Insecure are directories in which files are accepted that every user may write.
	Insecure []string
}

// Single reads a file with one plugin's configuration.
func (r Reader) Single(path string) (*libcni.NetworkConfigList, error) {
	return parse(r, path, ParseSingle)
}

// List reads a file with a list of plugins, and appends the plugins of the
// directory beside it that has the network's name, unless the list sets
// loadOnlyInlinedPlugins. The name is validated before it becomes a path.
// Without a name there is no such directory.
func (r Reader) List(path string) (*libcni.NetworkConfigList, error) {
	return parse(r, path, func(data []byte) (*libcni.NetworkConfigList, error) { return r.list(path, data) })
}

// Folder returns the directory in which the list of a file has its plugins' files, whether
// or not it exists; empty if the file cannot be read or names none.
func Folder(path string) string {
	data, err := plainfile.ReadUpTo(path, maxFile)
	if err != nil {
		return ""
	}
	var list struct {
		Name                   string
		LoadOnlyInlinedPlugins bool
	}
	if json.Unmarshal(data, &list) != nil || list.LoadOnlyInlinedPlugins || list.Name == "" || ValidateName(list.Name) != nil {
		return ""
	}
	return filepath.Join(filepath.Dir(path), list.Name)
}

// list completes a list that was read from a file at path, if there is one.
func (r Reader) list(path string, data []byte) (*libcni.NetworkConfigList, error) {
	list, err := Parse(data)
	if err != nil {
		return nil, err
	}
	if path != "" && !list.LoadOnlyInlinedPlugins && list.Name != "" {
		more, err := r.plugins(filepath.Join(filepath.Dir(path), list.Name))
		if err != nil {
			return nil, err
		}
		list.Plugins = append(list.Plugins, more...)
	}
	return list, RequirePlugins(list)
}

// RequirePlugins refuses a list without plugins.
func RequirePlugins(list *libcni.NetworkConfigList) error {
	if len(list.Plugins) == 0 {
		err := errors.New("error parsing configuration list: no plugins in list")
		var single struct{ Type json.RawMessage }
		if json.Unmarshal(list.Bytes, &single) == nil && single.Type != nil {
			err = fmt.Errorf("%w; it has the form of a single plugin's configuration: load it with WithConf or WithConfFile, "+
				"or in a directory under a name that ends in .conf", err)
		}
		return err
	}
	return nil
}

// File reads a file of either kind, told apart by its extension as libcni does.
func (r Reader) File(path string) (*libcni.NetworkConfigList, error) {
	if filepath.Ext(path) == ".conflist" {
		return r.List(path)
	}
	return r.Single(path)
}

// ParseAny reads a list of plugins, or the configuration of a single plugin, which has a
// type.
func ParseAny(data []byte) (*libcni.NetworkConfigList, error) {
	var keys map[string]json.RawMessage
	if json.Unmarshal(data, &keys) == nil && keys["plugins"] == nil && keys["type"] != nil {
		return ParseSingle(data)
	}
	return Reader{}.list("", data)
}

// plugins reads the plugin files of a network's own directory, in name order.
func (r Reader) plugins(dir string) ([]*libcni.PluginConfig, error) {
	files, err := list(dir, ".conf")
	if err != nil {
		return nil, err
	}
	var plugins []*libcni.PluginConfig
	for _, path := range files {
		plugin, err := parse(r, path, func(data []byte) (*libcni.PluginConfig, error) {
			plugin, err := libcni.NetworkPluginConfFromBytes(data)
			if err != nil {
				return nil, Located(data, err)
			}
			return plugin, validatePlugin(plugin)
		})
		if err != nil {
			return nil, err
		}
		plugins = append(plugins, plugin)
	}
	return plugins, nil
}

// Files lists a directory's configuration files in name order, in which networks
// are loaded. It omits hidden files, because editors and file synchronisers
// write them before a rename. A directory that does not exist has no files.
func Files(dir string) ([]string, error) {
	return list(dir, ".conf", ".conflist", ".json")
}

func list(dir string, extensions ...string) ([]string, error) {
	files, err := libcni.ConfFiles(dir, extensions)
	if err != nil {
		return nil, fmt.Errorf("%s %w: %w", dir, ErrRead, err)
	}
	return slices.DeleteFunc(files, func(path string) bool { return strings.HasPrefix(filepath.Base(path), ".") }), nil
}

// read returns a file's content without ever waiting for it: it refuses a FIFO,
// a device or a socket before it opens the file, and again in case one has replaced
// the file in between.
func (r Reader) read(path string) ([]byte, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRead, err)
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: not a regular file but %s", ErrRead, fi.Mode().Type())
	}
	if err := plainfile.TrustUnless(r.Insecure, path); err != nil {
		return nil, err
	}
	data, err := plainfile.ReadUpTo(path, maxFile)
	if errors.Is(err, plainfile.ErrTooLong) {
		return nil, fmt.Errorf("%w: larger than %d bytes", ErrRead, maxFile)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRead, err)
	}
	return data, nil
}

// parse reads a file with a parser. The error is a *FileError.
func parse[T any](r Reader, path string, parser func(data []byte) (T, error)) (parsed T, err error) {
	data, err := r.read(path)
	if err == nil {
		parsed, err = parser(data)
	}
	if err != nil {
		return *new(T), &FileError{Path: path, Err: err}
	}
	return parsed, nil
}
