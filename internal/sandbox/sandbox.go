// Package sandbox runs the importing program again in user, network and mount
// namespaces of its own. Tests and examples can then change interfaces, routes,
// packet filters and the state below /run and /var/lib as root, for any user,
// and never touch the machine.
//
// A test package needs one line:
//
//	func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }
//
// and a program a few:
//
//	if inside, code, err := sandbox.Reexec(); err != nil {
//		log.Fatal(err)
//	} else if !inside {
//		os.Exit(code)
//	}
//
// A sandbox has root with the capabilities of root over these namespaces, a
// loopback interface that is up and no other network, an empty tmpfs on /run
// and on /var/lib, and private mounts. The process becomes the parent of its
// orphans (PR_SET_CHILD_SUBREAPER), so that leftover processes are among its
// descendants, unless OrphansOutside says otherwise. The rest of the file system is the machine's. So is /sys, which
// still shows the machine's interfaces. A home directory below /var/lib is
// covered too.
//
// It takes a few milliseconds.
package sandbox

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// ErrNotSupported is returned on systems other than Linux. It is an
// [errors.ErrUnsupported].
var ErrNotSupported = fmt.Errorf("a sandbox needs Linux: %w", errors.ErrUnsupported)

// ErrRefused: the kernel does not give this user the namespaces. The error names the
// settings to change.
var ErrRefused = errors.New("the kernel refuses user namespaces to this user: " +
	"run as root, or allow them with `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu), " +
	"`sysctl -w kernel.unprivileged_userns_clone=1` (Debian) or `sysctl -w user.max_user_namespaces=10000`; " +
	"in a container, with one that has CAP_SYS_ADMIN and no seccomp filter on unshare")

// marker is the environment variable that marks the inner process. It holds the
// outer process's network namespace, and the inner process must be in another
// one. It is unset at once: processes that the inner one starts are inside
// already.
const marker = "EMBEDCNI_SANDBOX_OUTSIDE"

// within is the environment variable by which Inside knows a sandbox: it holds the
// sandbox's mount namespace.
const within = "EMBEDCNI_SANDBOX_INSIDE"

// orphansOutside is the environment variable by which the inner process knows
// that the outer one adopts its orphans. It is unset at once, like the marker.
const orphansOutside = "EMBEDCNI_SANDBOX_ORPHANS_OUTSIDE"

// shard is the environment variable that marks the outer process of a shard.
const shard = "EMBEDCNI_SANDBOX_SHARD"

// Inside reports whether this process is in a sandbox, in which it or an ancestor has
// been started by Reexec.
func Inside() bool {
	of, ok := os.LookupEnv(within)
	if !ok {
		return false
	}
	now, err := mountNS()
	return err == nil && now == of
}

// An Option changes the start of the inner process.
type Option func(*options)

type options struct {
	before  []func() ([]string, error)
	refused func(error) int
	adopts  bool
	shards  int
}

// Shards has Main run the package's tests in n processes at a time, each in a sandbox of
// its own. It concerns whole runs only: the flags of [testing] that select tests, repeat
// them or write profiles are for one process.
func Shards(n int) Option { return func(o *options) { o.shards = n } }

// IfRefused has Main call fn, and return its exit code, if there can be no sandbox here:
// the error is ErrRefused or ErrNotSupported.
func IfRefused(fn func(error) int) Option { return func(o *options) { o.refused = fn } }

// OrphansOutside makes the outer process the parent of the sandbox's orphans. It
// waits for those that end. Without it they stay zombies, because the inner
// process cannot distinguish them from children that a goroutine of its own
// waits for. A program that kills thousands of parents needs this: zombies slow
// everything that reads /proc.
func OrphansOutside() Option { return func(o *options) { o.adopts = true } }

// Before calls fn outside, where the network and the user's files are, before
// the inner process starts. The inner process gets the environment entries
// ("key=value") that fn returns. If fn fails, nothing is started.
func Before(fn func() ([]string, error)) Option {
	return func(o *options) { o.before = append(o.before, fn) }
}

// Reexec starts the running program again in a sandbox, with the same
// arguments, standard streams and environment, and waits for it.
//
// Outside it returns inside == false and the exit code: the inner process's
// own, or 128 plus the number of the signal that killed it. An error means that
// there was no inner process, and code is then 1. SIGINT, SIGTERM and SIGQUIT
// are forwarded. When the outer process dies, the inner one is killed.
//
// Inside it returns inside == true once the sandbox is ready, or an error. Call
// it before the program starts processes or uses /run.
func Reexec(opts ...Option) (inside bool, code int, err error) {
	o := collect(opts)
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
	if o.shards > 1 && os.Getenv(shard) == "" && isWholeRun(os.Args[1:]) {
		code, err = runShards(o.shards, env)
	} else {
		code, err = start(env, o.adopts)
	}
	if err != nil {
		return false, 1, fmt.Errorf("start the sandbox: %w", err)
	}
	return false, code, nil
}

// isWholeRun reports whether these arguments are those with which go test runs all tests
// of a package once. The others are few and easily forgotten, so these are listed.
func isWholeRun(args []string) bool {
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch name {
		case "test.paniconexit0", "test.testlogfile", "test.timeout", "test.v", "test.short":
		case "test.count":
			if value != "1" {
				return false
			}
		default:
			return false
		}
	}
	return true
}

func collect(opts []Option) (o options) {
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// Main runs the tests of a package in a sandbox and returns the exit code. m is
// a *testing.M. The interface keeps package testing out of programs.
func Main(m interface{ Run() int }, opts ...Option) int {
	// A list of the tests touches nothing. The fuzzing engine is inside. It starts its workers from the same
	// executable and talks to them over descriptors that they must inherit.
	if slices.Contains(os.Args[1:], "-test.fuzzworker") || slices.Contains(os.Args[1:], "-test.list") {
		return m.Run()
	}
	inside, code, err := Reexec(opts...)
	if o := collect(opts); o.refused != nil && (errors.Is(err, ErrRefused) || errors.Is(err, ErrNotSupported)) {
		return o.refused(err)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandbox:", err)
		return 1
	}
	if !inside {
		return code
	}
	return m.Run()
}
