package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience limits every wait for something that must happen. What it takes is measured.
const patience = 2 * time.Minute

// service is a daemon that says when it is ready, by the protocol of sd_notify(3), which both
// etcd and flanneld speak.
type service struct {
	name  string
	cmd   *exec.Cmd
	log   lockedBuffer
	ended chan struct{} // closed when it has ended
}

// startService starts a daemon, and returns when it is ready.
func startService(ctx context.Context, name string, args ...string) (*service, error) {
	path := filepath.Join("/run", filepath.Base(name)+".notify")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	defer notify.Close()
	s := &service{name: filepath.Base(name), cmd: exec.Command(name, args...), ended: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+path)
	// Ctrl-C at the terminal is for this program, which stops it.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = s.cmd.Wait() // why it has ended is in its log
		close(s.ended)
	}()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-ready(notify):
		return s, nil
	case <-s.ended:
		return nil, fmt.Errorf("%s has ended: %v; its log:\n%s", s.name, s.cmd.ProcessState, &s.log)
	case <-ctx.Done():
		s.stop(unix.SIGKILL)
		return nil, fmt.Errorf("%s is not ready: %w; its log:\n%s", s.name, context.Cause(ctx), &s.log)
	}
}

// ready returns a channel that is closed when a daemon has said that it is ready.
func ready(notify *net.UnixConn) <-chan struct{} {
	said := make(chan struct{})
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := notify.Read(buf)
			if err != nil {
				return // closed
			}
			if strings.Contains("\n"+string(buf[:n])+"\n", "\nREADY=1\n") {
				close(said)
				return
			}
		}
	}()
	return said
}

// stop sends a signal, and returns when the daemon has ended.
func (s *service) stop(sig syscall.Signal) {
	_ = s.cmd.Process.Signal(sig) // or it has ended
	<-s.ended
}

// lockedBuffer is a buffer that is written and read at the same time.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
