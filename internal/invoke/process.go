package invoke

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"syscall"
	"time"
)

// process is a plugin that was started.
type process struct {
	cmd   *exec.Cmd
	pipes *stdio

	exited  chan struct{} // closed when the two below are set
	exit    exit
	exitErr error // the plugin's exit is unknown: somebody else reaped it

	killed bool
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
func start(ctx context.Context, req Request, pipes *stdio, busyWait time.Duration) (*exec.Cmd, error) {
	const longest = 100 * time.Millisecond
	giveUp := time.Now().Add(busyWait)
	in := req.In
	if in == nil {
		in = func(start func() error) error { return start() }
	}
	for pause := time.Millisecond; ; pause = min(2*pause, longest) {
		cmd := command(req, pipes)
		err := in(cmd.Start)
		if err == nil {
			return cmd, nil
		}
		if !errors.Is(err, syscall.ETXTBSY) || time.Now().After(giveUp) {
			return nil, withoutPath(err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("%w: %w", withoutPath(err), ended(ctx))
		}
	}
}

// command does not use exec.CommandContext, which kills only one process, and
// waits for the pipes as long as any child holds them.
func command(req Request, pipes *stdio) *exec.Cmd {
	dir := "" // the runtime's
	if req.Root != "" {
		dir = "/" // after the chroot: else it would be outside of the root
	}
	return &exec.Cmd{
		Dir:         dir,
		Path:        req.Path,
		Args:        []string{req.Path},
		Env:         append([]string{}, req.Env...), // nil would mean the runtime's own environment
		Stdin:       pipes.child[0],
		Stdout:      pipes.child[1],
		Stderr:      pipes.child[2],
		ExtraFiles:  req.Inherit,
		SysProcAttr: attributes(req.Root),
	}
}

// withoutPath drops the path, which the caller's wrapping contains.
func withoutPath(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// finish waits for the end of the plugin, kills it if necessary, and leaves no
// process behind.
func (p *process) finish(ctx context.Context, killWait time.Duration) error {
	go func() {
		p.exit, p.exitErr = awaitExit(p.cmd.Process)
		close(p.exited)
	}()
	var why error
	select {
	case <-p.exited:
	case <-ctx.Done():
		why = ended(ctx)
	case <-p.pipes.tooLarge:
		why = ErrOutputTooLarge
	}
	if why != nil || p.exit != (exit{}) {
		p.kill()
	}
	giveUp := time.Now().Add(killWait)
	why = p.drain(why, killWait)
	select {
	case <-p.exited:
	default:
		go func() { <-p.exited; p.reap() }()
		return fmt.Errorf("%s: %w: %w", p.cmd.Path, ErrStillRunning, why)
	}
	group := p.cmd.Process.Pid // reap sets it to -1
	p.reap()
	if p.killed {
		awaitGroup(group, giveUp)
	}
	return p.verdict(why)
}

// drain waits at most killWait for the plugin's exit and the end of its output.
// It also notices too much output, because a child may go on printing.
func (p *process) drain(why error, killWait time.Duration) error {
	timer := time.NewTimer(killWait)
	defer timer.Stop()
	exited, done, tooLarge := p.exited, p.pipes.done, p.pipes.tooLarge
	if why != nil {
		tooLarge = nil
	}
	for exited != nil || done != nil {
		select {
		case <-exited:
			exited = nil
		case <-done:
			done = nil
		case <-tooLarge:
			tooLarge, why = nil, ErrOutputTooLarge
			p.kill()
		case <-timer.C:
			exited, done = nil, nil
		}
	}
	p.pipes.stop()
	if why == nil && p.pipes.isTooLarge() { // found by the last read
		why = ErrOutputTooLarge
		p.kill()
	}
	return why
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
	p.killed = true
	killGroup(p.cmd.Process)
}

// awaitGroup waits until a killed group has no process left. They are not
// children of this process, so nothing announces their end, and it has to ask
// the kernel repeatedly. Usually the first answer is that they are gone.
func awaitGroup(pgid int, giveUp time.Time) {
	const longest = 20 * time.Millisecond
	for pause := 250 * time.Microsecond; groupExists(pgid); pause = min(2*pause, longest) {
		if time.Now().After(giveUp) {
			return
		}
		time.Sleep(pause)
		// Zombies keep a group in existence until init reaps them, and in many
		// containers init never does.
		if groupExists(pgid) && !groupLives(pgid) {
			return
		}
	}
}
