// Package invoke runs CNI plugins. It is the only package of this module that
// starts a process.
//
// A plugin is a foreign program that runs as root for a caller with a deadline.
// So invoke limits everything about a run: its time, including all processes
// that it starts, its output, and its environment.
package invoke

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

var (
	// ErrOutputTooLarge means that a plugin was killed because it printed more
	// than Limits.Stdout.
	ErrOutputTooLarge = errors.New("output too large")

	// ErrNotStarted means that nothing has run: the executable is missing, cannot
	// be executed, or there was no time left for it.
	ErrNotStarted = errors.New("not started")

	// ErrUnknownExit means that another part of the program reaped the plugin, or
	// the kernel did because SIGCHLD is ignored. Only the plugin's output is
	// known.
	ErrUnknownExit = errors.New("its exit status is lost, because this program reaps all its children")

	// ErrStillRunning means that a killed plugin has not ended, because it is
	// stuck in an uninterruptible system call. It ends with that call, and is
	// then reaped.
	ErrStillRunning = errors.New("still running after it was killed")
)

// Request is one execution of a plugin.
type Request struct {
	Path    string     // absolute path of the executable, in Root
	Root    Root       // the root directory of the process; with one, it is the working directory too
	Env     []string   // the complete environment; nothing is added to it
	Stdin   []byte     // a plugin need not read it
	Inherit []*os.File // become file descriptors 3, 4, …: lock files that an orphan keeps

	// In calls start on a thread in the network namespace in which the process is to
	// start, and returns its error. nil: on the calling thread.
	In func(start func() error) error
}

// Limits bound an execution. Zero values mean the defaults.
type Limits struct {
	// Stdout limits the bytes that a plugin may print. The default, 4 MiB, is a
	// thousand times the largest result seen in the field.
	Stdout int64
	// Stderr is the number of bytes of the plugin's log that are kept: the last
	// ones, because a program explains a failure just before it ends. Default 64
	// KiB.
	Stderr int
	// KillWait limits waits that should be short: for the end of killed
	// processes, and for the end of the output of a plugin that has exited. Only
	// a process stuck in the kernel, or a child that keeps the plugin's pipes
	// open, takes that long. Default 200 ms.
	KillWait time.Duration
	// BusyWait limits the retries while an executable is open for writing
	// (ETXTBSY). The default, 2 s, is enough for an installer that writes a
	// plugin in place.
	BusyWait time.Duration
}

func (l Limits) withDefaults() Limits {
	return Limits{
		Stdout:   cmp.Or(l.Stdout, 4<<20),
		Stderr:   cmp.Or(l.Stderr, 64<<10),
		KillWait: cmp.Or(l.KillWait, 200*time.Millisecond),
		BusyWait: cmp.Or(l.BusyWait, 2*time.Second),
	}
}

// Output holds a plugin's stdout and stderr.
type Output struct {
	Stdout []byte
	Stderr []byte // the last Limits.Stderr bytes
}

// ExitError means that a plugin failed by itself. The Output has its
// explanation: a CNI error on stdout, its log on stderr.
type ExitError struct {
	Path   string
	Code   int            // the exit status; -1 if a signal ended it
	Signal syscall.Signal // the signal that ended it, or 0
}

func (e *ExitError) Error() string {
	if e.Signal != 0 {
		return fmt.Sprintf("%s: killed by signal %d (%s)", e.Path, int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("%s: exit status %d", e.Path, e.Code)
}

// Run executes a plugin and waits for it. It returns the plugin's output even
// with an error.
//
// On Linux and other Unix systems the plugin leads a process group of its own.
// When ctx ends, or the plugin prints too much, exits with an error or dies, the
// whole group is killed, and is gone when Run returns. That takes at most
// Limits.KillWait, even if a child keeps something open. (Zombies that init does
// not reap may stay.) A process that has left the group (setsid) is out of
// reach. A plugin that succeeds may leave children behind. They are not killed,
// but Run waits for their output for at most KillWait, and then closes the pipe.
//
// Without an In the process starts from the thread that calls Run, in that
// thread's network namespace. A caller that depends on it must lock its
// goroutine to the thread (runtime.LockOSThread). Starting cannot be
// interrupted: an executable on a network file system that hangs makes Run hang.
//
// An error is an *ExitError; or it satisfies errors.Is for the error of ctx and
// its cause, for ErrOutputTooLarge, ErrStillRunning, ErrUnknownExit or
// ErrNotStarted. If ctx is already over, nothing is started.
func Run(ctx context.Context, req Request, lim Limits) (Output, error) {
	lim = lim.withDefaults()
	if !filepath.IsAbs(req.Path) {
		return Output{}, &notStarted{fmt.Errorf("start plugin %q: not an absolute path", req.Path)}
	}
	if ctx.Err() != nil {
		return Output{}, &notStarted{fmt.Errorf("%s not started: %w", req.Path, ended(ctx))}
	}
	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &process{exited: make(chan struct{})}
	var err error
	p.printed, err = newPrinted(lim, func() { cancel(ErrOutputTooLarge); p.kill() })
	if err == nil {
		if err = p.start(ctx, req, lim.BusyWait); err != nil {
			p.printed.discard()
		}
	}
	if err != nil {
		return Output{}, &notStarted{fmt.Errorf("start %s: %w", req.Path, req.Root.error(err))}
	}
	p.printed.begin()
	err = p.finish(run, lim.KillWait)
	return p.printed.output(), err
}

// NotStarted returns an ErrNotStarted with the text of its cause.
func NotStarted(cause error) error { return &notStarted{cause} }

// notStarted is an ErrNotStarted with the text of its cause alone.
type notStarted struct{ error }

func (n *notStarted) Unwrap() error        { return n.error }
func (n *notStarted) Is(target error) bool { return target == ErrNotStarted }

// ended returns the error of ctx, with its cause if that is another.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
