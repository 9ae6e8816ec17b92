// Package invoke runs CNI plugins. It is the only place of this module that
// starts a process.
//
// A plugin is a foreign program that runs as root on behalf of a caller with a
// deadline. So everything about a run is limited: its time, including all processes
// that it starts, its output, and the environment that it sees.
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
	// ErrOutputTooLarge means that a plugin printed more than Limits.Stdout and
	// was killed.
	ErrOutputTooLarge = errors.New("output too large")

	// ErrNotStarted means that nothing has run: there is no such executable, it
	// may not be executed or is none, or there was no time left for it.
	ErrNotStarted = errors.New("not started")

	// ErrUnknownExit means that another part of the program reaped the plugin, or
	// the kernel did because SIGCHLD is ignored. Only the plugin's output is known.
	ErrUnknownExit = errors.New("its exit status is lost, because this program reaps all its children")

	// ErrStillRunning means that a plugin did not go away although it was
	// killed, because the kernel does not let it: it is stuck in a system call
	// that nothing interrupts. It ends when that call does, and is then reaped.
	ErrStillRunning = errors.New("still running after it was killed")
)

// Request is one execution of a plugin.
type Request struct {
	Path    string     // absolute path of the executable
	Env     []string   // the complete environment; nothing is added to it
	Stdin   []byte     // a plugin that does not read it is no error
	NetNS   NetNS      // the network namespace the process starts in; nil: that of the calling thread
	Inherit []*os.File // handed down as file descriptors 3, 4, …: lock files that an orphan keeps
}

// NetNS is an open network namespace. It must stay open until Run returns.
type NetNS interface {
	File() *os.File
}

// Limits bound an execution. Zero values mean the defaults.
type Limits struct {
	// Stdout is how many bytes a plugin may print. The default, 4 MiB, is a
	// thousand times the largest result seen in the field.
	Stdout int64
	// Stderr is how many bytes of the plugin's log are kept: the last ones,
	// since a program says why it fails just before it does. Default 64 KiB.
	Stderr int
	// KillWait limits waits that should be short: for the end of killed processes,
	// and for the end of the output of a plugin that has exited. Only a process stuck in the kernel, or a child that keeps the
	// plugin's pipes open, uses it up. Default 200 ms.
	KillWait time.Duration
	// BusyWait is how long an executable that is open for writing (ETXTBSY) is
	// tried again. An installer that writes in place needs no longer than the
	// default of 2 s for a plugin.
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
	Stdout        []byte
	Stderr        []byte // the last Limits.Stderr bytes
	StderrDropped int64  // how many bytes came before those
}

// ExitError means that a plugin failed by itself. The Output has its explanation: a
// CNI error on stdout, its log on stderr.
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

// Run executes a plugin and waits for it. It returns the plugin's output beside an
// error too.
//
// On Linux and other Unix systems the plugin is the leader of a process group
// of its own. When ctx ends, or the plugin prints too much, exits with an error
// or dies, the whole group is killed, and is gone when Run returns; that takes
// Limits.KillWait at the most, whatever any child holds open. (Zombies that init
// does not reap may stay.) A process that has left the group (setsid) is out of
// reach. A plugin that succeeds may
// leave children behind; they are not killed, but output that they alone could
// still print is waited for no longer than KillWait, and its pipe then closed.
//
// Without a NetNS the process starts from the thread that calls Run, in that
// thread's network namespace; a caller that cares has locked its goroutine to
// the thread (runtime.LockOSThread). Starting cannot be interrupted: an
// executable on a network file system that hangs makes Run hang.
//
// An error is an *ExitError; or it satisfies errors.Is for the error of ctx and
// its cause, for ErrOutputTooLarge, ErrStillRunning, ErrUnknownExit or ErrNotStarted. If ctx is
// already over, nothing is started.
func Run(ctx context.Context, req Request, lim Limits) (Output, error) {
	lim = lim.withDefaults()
	if !filepath.IsAbs(req.Path) {
		return Output{}, &notStarted{fmt.Errorf("start plugin %q: not an absolute path", req.Path)}
	}
	if ctx.Err() != nil {
		return Output{}, &notStarted{fmt.Errorf("%s not started: %w", req.Path, ended(ctx))}
	}
	pipes, err := newStdio(lim)
	if err != nil {
		return Output{}, &notStarted{fmt.Errorf("start %s: %w", req.Path, err)}
	}
	cmd, err := start(ctx, req, pipes, lim.BusyWait)
	if err != nil {
		pipes.discard()
		return Output{}, &notStarted{fmt.Errorf("start %s: %w", req.Path, err)}
	}
	pipes.begin(req.Stdin)
	p := &process{cmd: cmd, pipes: pipes, exited: make(chan struct{})}
	err = p.finish(ctx, lim.KillWait)
	return pipes.output(), err
}

// notStarted is an ErrNotStarted that says no more than its cause.
type notStarted struct{ error }

func (n *notStarted) Unwrap() error        { return n.error }
func (n *notStarted) Is(target error) bool { return target == ErrNotStarted }

// ended is why ctx is over: its own error, and the cause if it has another.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
