// Package sandbox runs the program that imports it a second time, in user,
// network and mount namespaces of its own, so that tests and examples can
// change interfaces, routes, packet filters and the state below /run and
// /var/lib as root, whoever runs them, and never touch the machine.
//
// A test package needs one line:
//
//	func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }
//
// and a program three:
//
//	if inside, code, err := sandbox.Reexec(); err != nil {
//		log.Fatal(err)
//	} else if !inside {
//		os.Exit(code)
//	}
//
// What is inside: root with the capabilities of root over these namespaces,
// a loopback interface that is up, nothing else on the network, an empty
// tmpfs on /run and on /var/lib, mounts that reach no one, and the parenthood
// of its orphans (PR_SET_CHILD_SUBREAPER), so that a process left behind can
// be found among its descendants. The rest of the file system is the machine's,
// and so is /sys, which goes on to show the machine's interfaces. A home
// directory below /var/lib is covered like everything else there.
//
// It takes a few milliseconds.
package sandbox

import (
	"errors"
	"fmt"
	"os"
	"slices"
)

// ErrNotSupported is returned off Linux. It is an [errors.ErrUnsupported].
var ErrNotSupported = fmt.Errorf("a sandbox needs Linux: %w", errors.ErrUnsupported)

// marker is the environment variable by which the inner process knows itself.
// It holds the network namespace that the outer one is in, as the inner one
// must find itself elsewhere. It is unset at once: what the inner process
// starts is inside already, and takes itself for nothing else.
const marker = "EMBEDCNI_SANDBOX_OUTSIDE"

// An Option changes how the inner process is started.
type Option func(*options)

type options struct {
	before []func() ([]string, error)
}

// Before has fn called outside, where the network and the user's files are,
// before the inner process is started. The inner one gets the environment
// entries ("key=value") that fn returns. If fn fails, nothing is started.
func Before(fn func() ([]string, error)) Option {
	return func(o *options) { o.before = append(o.before, fn) }
}

// Reexec starts the running program again in a sandbox, with the same
// arguments, standard streams and environment, and waits for it.
//
// Outside it returns inside == false and the code to exit with: the inner
// process's own, or 128 plus the number of the signal that killed it. An error
// means that there was no inner process, and code is then 1. SIGINT, SIGTERM
// and SIGQUIT are passed on; when the outer process dies, the inner is killed.
//
// Inside it returns inside == true once the sandbox is ready, or an error. It
// must be called before the program starts processes or relies on /run.
func Reexec(opts ...Option) (inside bool, code int, err error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if outside, ok := os.LookupEnv(marker); ok {
		if err := enter(outside); err != nil {
			return true, 1, fmt.Errorf("set up the sandbox: %w", err)
		}
		return true, 0, nil
	}
	env := os.Environ()
	for _, fn := range o.before {
		more, err := fn()
		if err != nil {
			return false, 1, fmt.Errorf("prepare the sandbox: %w", err)
		}
		env = append(env, more...)
	}
	code, err = start(env)
	if err != nil {
		return false, 1, fmt.Errorf("start the sandbox: %w", err)
	}
	return false, code, nil
}

// Main runs the tests of a package in a sandbox and returns the code to exit
// with. m is a *testing.M; the interface keeps testing out of programs.
func Main(m interface{ Run() int }, opts ...Option) int {
	// The fuzzing engine, which is inside, starts its workers from the same
	// executable and talks to them over descriptors that they must inherit.
	if slices.Contains(os.Args[1:], "-test.fuzzworker") {
		return m.Run()
	}
	inside, code, err := Reexec(opts...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandbox:", err)
		return 1
	}
	if !inside {
		return code
	}
	return m.Run()
}
