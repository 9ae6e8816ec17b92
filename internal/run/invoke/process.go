package invoke

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// process is a plugin that was started.
type process struct {
	cmd     *exec.Cmd
	printed *printed

	exited  chan struct{} // closed when the two below are set
	exit    exit
	exitErr error // the plugin's exit is unknown: somebody else reaped it

	killed atomic.Bool
}

// exit is a process's exit.
type exit struct {
	code   int // -1 if by a signal
	signal syscall.Signal
}

// start starts the plugin. It retries while the executable is open for writing,
// with a new exec.Cmd each time, because one that has failed cannot be started
// again. The writer may be an installer, or this program: if it writes a plugin
// and forks in another thread at the same moment, the child has the file open
// for writing until it execs.
func (p *process) start(ctx context.Context, req Request, busyWait time.Duration) error {
	const longest = 100 * time.Millisecond
	busy, cancel := context.WithTimeout(ctx, busyWait)
	defer cancel()
	in := req.In
	if in == nil {
		in = func(start func() error) error { return start() }
	}
	for pause := time.Millisecond; ; pause = min(2*pause, longest) {
		p.cmd = command(req, p.printed)
		err := in(p.cmd.Start)
		if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
			err = pe.Err // the caller names the path
		}
		if !errors.Is(err, syscall.ETXTBSY) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-busy.Done():
			if ctx.Err() != nil {
				err = fmt.Errorf("%w: %w", err, ended(ctx))
			}
			return err
		}
	}
}

// command does not use exec.CommandContext, which kills only one process, and
// waits for the pipes as long as any child holds them.
func command(req Request, printed *printed) *exec.Cmd {
	dir := "" // the runtime's
	if req.Root != "" {
		dir = "/" // after the chroot: else it would be outside of the root
	}
	return &exec.Cmd{
		Dir:         dir,
		Path:        req.Path,
		Args:        []string{req.Path},
		Env:         append([]string{}, req.Env...), // nil would mean the runtime's own environment
		Stdin:       bytes.NewReader(req.Stdin),
		Stdout:      printed.child[0],
		Stderr:      printed.child[1],
		ExtraFiles:  req.Inherit,
		SysProcAttr: attributes(req.Root),
		WaitDelay:   time.Millisecond, // for a child that does not read what a plugin has left of stdin
	}
}

// finish waits for the end of the plugin, kills it if necessary, and leaves no
// process behind.
func (p *process) finish(ctx context.Context, killWait time.Duration) error {
	go func() {
		p.exit, p.exitErr = awaitExit(p.cmd)
		close(p.exited)
	}()
	var why error
	select {
	case <-p.exited:
	case <-ctx.Done():
		why = ended(ctx)
	}
	if why != nil || p.exit != (exit{}) {
		p.kill()
	}
	// Wait for the exit and the end of the output, during which a child may print too much.
	late, cancel := context.WithTimeout(context.Background(), killWait)
	defer cancel()
	for _, end := range []<-chan struct{}{p.exited, p.printed.done} {
		select {
		case <-end:
		case <-late.Done():
		}
	}
	p.printed.stop()
	if p.printed.tooLarge && (why == nil || errors.Is(why, ErrOutputTooLarge)) {
		why = ErrOutputTooLarge
	}
	select {
	case <-p.exited:
	default:
		go func() { <-p.exited; p.reap() }()
		return fmt.Errorf("%s: %w: %w", p.cmd.Path, ErrStillRunning, why)
	}
	group := p.cmd.Process.Pid // reap sets it to -1
	p.reap()
	if p.killed.Load() {
		awaitGroup(late, group)
	}
	return p.verdict(why)
}

// verdict returns the error of a plugin that has ended.
func (p *process) verdict(why error) error {
	switch {
	case why != nil:
		return fmt.Errorf("%s killed: %w", p.cmd.Path, why)
	case p.exitErr != nil:
		return fmt.Errorf("%s ended, but %w: %w", p.cmd.Path, ErrUnknownExit, p.exitErr)
	case p.exit != (exit{}):
		return &ExitError{Path: p.cmd.Path, Code: p.exit.code, Signal: p.exit.signal}
	}
	return nil
}

// kill kills the plugin and its group. It must not be called after reap, when
// the number of the group may belong to another.
func (p *process) kill() {
	select {
	case <-p.exited:
		if p.exitErr != nil { // somebody else reaped it
			return
		}
	default:
	}
	p.killed.Store(true)
	killGroup(p.cmd.Process)
}

// awaitGroup waits until a killed group has no process left. They are not
// children of this process, so nothing announces their end, and it has to ask
// the kernel repeatedly. Usually the first answer is that they are gone. Zombies keep
// a group in existence until init reaps them, and in many containers init never does:
// then it waits to the end.
func awaitGroup(late context.Context, pgid int) {
	const longest = 20 * time.Millisecond
	for pause := 250 * time.Microsecond; late.Err() == nil && groupExists(pgid); pause = min(2*pause, longest) {
		time.Sleep(pause)
	}
}
