package cnitest

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
)

// ErrNoReferencePlugins: the module of the working directory does not require the reference
// plugins, so that they cannot be built.
var ErrNoReferencePlugins = errors.New("no reference plugins")

// MainOption is an option of Main.
type MainOption func(*mainOptions)

type mainOptions struct {
	before  []sandbox.Option
	refused func(error)
}

// SkipHosts has Main run the tests also where it cannot have namespaces. A test that
// then calls Host or Container is skipped, with the reason.
func SkipHosts() MainOption {
	return func(o *mainOptions) {
		o.refused = func(err error) {
			fmt.Fprintln(os.Stderr, "cnitest: tests that need a host are skipped:", err)
		}
	}
}

// BuildReferencePlugins has Main build the reference plugins for [WithReferencePlugins], as
// [ReferencePlugins] does, before it enters its namespaces, in which there is no network.
func BuildReferencePlugins() MainOption {
	return func(o *mainOptions) {
		o.before = append(o.before, sandbox.Before(func() ([]string, error) {
			return refplugins.Env(context.Background(), os.Stderr)
		}))
	}
}

// ReferencePlugins returns a directory with the reference plugins. It builds them in the
// version that the module of the working directory requires, in a tool line for
// example, once for each version, into the user's cache; that takes about a minute.
// Without such a requirement it is the first directory in CNI_PATH that has all plugins,
// or else the error is [ErrNoReferencePlugins]. EMBEDCNI_TEST_PLUGINS can name another
// directory.
func ReferencePlugins(ctx context.Context) (string, error) {
	dir, err := refplugins.Dir(ctx, os.Stderr)
	if errors.Is(err, refplugins.ErrNotRequired) {
		err = fmt.Errorf("%w: %w", ErrNoReferencePlugins, err)
	}
	return dir, err
}

// skipVariable has the reason why there are no hosts here, for those who run tests.
const skipVariable = "EMBEDCNI_CNITEST_SKIP"

// Main runs the tests of a package in user, network and mount namespaces of their own,
// and returns the exit code. Tests can then change interfaces, routes, packet filters
// and everything below /run and /var/lib as root, for any user, and never touch the
// machine:
//
//	func TestMain(m *testing.M) { os.Exit(cnitest.Main(m)) }
//
// It starts the test binary again, with the same arguments, so call it before anything
// else. The binary is also the plugin of [TestHost.Plugin]. Inside are the capabilities of
// root over these namespaces, an interface lo that is up and no other, and an empty
// tmpfs on /run and on /var/lib. The rest of the file system is the machine's.
//
// If the kernel does not give this user namespaces, or on systems other than Linux, Main
// says why and returns 1, unless [SkipHosts] is given.
func Main(m interface{ Run() int }, opts ...MainOption) int {
	actAsPlugin()
	var o mainOptions
	for _, set := range opts {
		set(&o)
	}
	if o.refused != nil {
		o.before = append(o.before, sandbox.IfRefused(func(err error) int {
			o.refused(err)
			if err := os.Setenv(skipVariable, err.Error()); err != nil {
				fmt.Fprintln(os.Stderr, "cnitest:", err)
				return 1
			}
			return m.Run()
		}))
	}
	return sandbox.Main(m, o.before...)
}
