package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const reloadSignal, endSignal = syscall.SIGHUP, syscall.SIGTERM

// process is a client in a process of its own.
type process struct {
	cmd  *exec.Cmd
	pipe io.ReadCloser

	mu    sync.Mutex
	lines []string
	news  chan struct{} // has a value when there are lines that nobody has looked at
	ended chan struct{}
	err   error // of Wait, once ended is closed
}

// begin starts a client, whose lines are printed.
func (s *show) begin() error {
	args := []string{"client", "-jobs", s.jobsFile(), "-dir", s.dir, "-cgroup", s.cgroup}
	if s.verbose {
		args = append(args, "-v")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p := &process{cmd: exec.Command(self, args...), news: make(chan struct{}, 1), ended: make(chan struct{})}
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.pipe, err = p.cmd.StdoutPipe(); err != nil {
		return err
	}
	if err := s.reaper.start(p.cmd); err != nil {
		return err
	}
	go p.follow(s.out)
	s.client = p
	return nil
}

// follow prints and keeps the client's lines until it ends.
func (p *process) follow(out io.Writer) {
	for lines := bufio.NewScanner(p.pipe); lines.Scan(); {
		fmt.Fprintln(out, "  "+lines.Text())
		p.mu.Lock()
		p.lines = append(p.lines, lines.Text())
		p.mu.Unlock()
		p.tell()
	}
	p.err = p.cmd.Wait()
	close(p.ended)
}

func (p *process) tell() {
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// tooLong limits each wait of the story.
const tooLong = time.Minute

// await waits for a line with that beginning.
func (p *process) await(ctx context.Context, beginning string) error {
	ctx, cancel := context.WithTimeout(ctx, tooLong)
	defer cancel()
	for {
		if p.has(beginning) {
			return nil
		}
		select {
		case <-p.news:
		case <-p.ended:
			if p.has(beginning) {
				return nil
			}
			return fmt.Errorf("the client ended before %q: %w", beginning, errors.Join(p.err, errors.New("too early")))
		case <-ctx.Done():
			return fmt.Errorf("the client has not printed %q: %w", beginning, context.Cause(ctx))
		}
	}
}

func (p *process) awaitAll(ctx context.Context, beginnings ...string) error {
	for _, b := range beginnings {
		if err := p.await(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

func (p *process) has(beginning string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range p.lines {
		if strings.HasPrefix(line, beginning) {
			return true
		}
	}
	return false
}

func (p *process) signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// kill is kill -9.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return err
	}
	<-p.ended
	return nil
}

// wait waits for the end.
func (p *process) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tooLong)
	defer cancel()
	select {
	case <-p.ended:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("the client does not end: %w", context.Cause(ctx))
	}
}

// awaitFile waits until a file exists.
func awaitFile(ctx context.Context, path string) error {
	return awaitNil(ctx, func() error { _, err := os.Stat(path); return err })
}

// awaitNil waits until f returns nil.
func awaitNil(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, tooLong)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		}
	}
}
