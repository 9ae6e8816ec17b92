// Package refplugins provides the reference CNI plugins for tests, examples and
// benchmarks. It builds them as the go.mod of the mains folder requires, once
// per version, into the user's cache.
package refplugins

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/sandbox"
)

// ErrNotSupported is returned on systems other than Linux. It is an
// [errors.ErrUnsupported].
var ErrNotSupported = fmt.Errorf("the reference CNI plugins need Linux: %w", errors.ErrUnsupported)

// ErrNotRequired: there is nothing to build the plugins from.
var ErrNotRequired = errors.New("the module of the working directory does not require " + module +
	": add its packages with go get -tool, or set CNI_PATH to a directory that holds the plugins")

// dirVariable is the environment variable with a directory of the plugins, for
// processes that cannot build them, as in a sandbox without network.
const dirVariable = "EMBEDCNI_TEST_PLUGINS"

// module contains the plugins.
const module = "github.com/containernetworking/plugins"

// checkout is the module whose checkout contains mains, the folder whose go.mod
// lists the plugins to build. That is a module of its own, so that the plugins'
// requirements stay out of the module graphs of this library's importers.
const (
	checkout = "github.com/embedcni/cni"
	mains    = "internal/refplugins/mains"
)

// Names returns the names of the plugins, sorted.
func Names() (names []string) {
	for _, p := range packages() {
		names = append(names, path.Base(p))
	}
	slices.Sort(names)
	return names
}

// plugins are the packages to build, below those of the module; a test builds fewer.
var plugins = "ipam/host-local ipam/static main/bridge main/host-device main/ipvlan main/loopback " +
	"main/macvlan main/ptp main/vlan meta/bandwidth meta/firewall meta/portmap meta/tuning"

// packages returns the packages to build, which mains lists as tools.
func packages() []string {
	var all []string
	for _, name := range strings.Fields(plugins) {
		all = append(all, module+"/plugins/"+name)
	}
	return all
}

// Dir returns a directory that contains all plugins of Names.
//
// If EMBEDCNI_TEST_PLUGINS is set, Dir returns that directory. Otherwise it
// uses one in the user's cache, for the version that mains requires or, outside the
// checkout's modules, the module of the working directory. If that requires none, the
// error is [ErrNotRequired]. Dir builds missing plugins and announces that on progress. This takes about a minute,
// and happens only once if several processes ask concurrently. Without Go or
// that requirement, Dir returns the first directory in CNI_PATH that has all plugins.
//
// Call Dir outside a sandbox, because building can need the network; see [Env].
func Dir(ctx context.Context, progress io.Writer) (dir string, err error) {
	if dir = os.Getenv(dirVariable); dir == "" {
		dir, err = cached(ctx, progress)
	} else if missing := missingIn(dir); len(missing) > 0 {
		err = fmt.Errorf("%s=%s has no %s: unset it to have them built", dirVariable, dir, strings.Join(missing, ", "))
	}
	if err != nil {
		return "", fmt.Errorf("find the reference CNI plugins: %w", err)
	}
	return dir, nil
}

// Env returns an environment entry with the result of Dir, for a process in a
// sandbox. It fits the sandbox's Before option.
func Env(ctx context.Context, progress io.Writer) ([]string, error) {
	dir, err := Dir(ctx, progress)
	if err != nil {
		return nil, err
	}
	return []string{dirVariable + "=" + dir}, nil
}

// Main runs the tests of a package in a sandbox, as [sandbox.Main] does. It
// builds the reference plugins first, outside, where there is a network.
func Main(m interface{ Run() int }, opts ...sandbox.Option) int {
	return sandbox.Main(m, append(opts, sandbox.Before(func() ([]string, error) {
		return Env(context.Background(), os.Stderr)
	}))...)
}

// missingIn returns the names of the plugins that dir lacks.
func missingIn(dir string) []string {
	var missing []string
	for _, name := range Names() {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
			missing = append(missing, name)
		}
	}
	return missing
}
