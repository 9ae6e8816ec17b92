package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/server"
)

// modeOf returns type, mode and owner of a file.
func modeOf(t testing.TB, path string) string {
	t.Helper()
	info := expect.Value(os.Lstat(path))(t)
	return fmt.Sprint(info.Mode(), " ", info.Sys().(*syscall.Stat_t).Uid)
}

func TestTheSocketIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "run", "multus.sock")
	old := syscall.Umask(0)
	l := expect.Value(newServer(t, &backend{}, server.Options{}).Listen(path))(t)
	syscall.Umask(old)
	expect.Same(t, "the socket", modeOf(t, path), "Srw------- 0")
	expect.Same(t, "its directory", modeOf(t, filepath.Dir(path)), "drwx------ 0")
	expect.Same(t, "the address", l.Addr().String(), path)
	expect.NoError(t, l.Close(), l.Close())

	path = filepath.Join(t.TempDir(), "run", "multus.sock")
	l = expect.Value(newServer(t, &backend{}, server.Options{UID: 1234}).Listen(path))(t)
	expect.Same(t, "the socket of a user", modeOf(t, path), "Srw------- 1234")
	expect.Same(t, "its directory", modeOf(t, filepath.Dir(path)), "drwx--x--x 0")
	expect.NoError(t, l.Close())
}

func TestAStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "multus.sock")
	dead := expect.Value(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	dead.SetUnlinkOnClose(false)
	expect.NoError(t, dead.Close())
	s := newServer(t, &backend{}, server.Options{})
	l := expect.Value(s.Listen(path))(t)
	conn := expect.Value(net.Dial("unix", path))(t)
	expect.NoError(t, conn.Close(), l.Close())
	again := expect.Value(s.Listen(path))(t)
	expect.NoError(t, again.Close())
}

func TestWhatIsNotOursIsLeft(t *testing.T) {
	s := newServer(t, &backend{}, server.Options{})
	refuse := func(name, path string, kinds ...error) {
		t.Helper()
		l, err := s.Listen(path)
		if err == nil {
			t.Errorf("%s: %v", name, errors.Join(errors.New("accepted"), l.Close()))
			return
		}
		expect.Is(t, err, kinds...)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "multus.sock")

	live := expect.Value(net.Listen("unix", path))(t) // of a program that knows no lock
	before := expect.Value(os.Stat(path))(t)
	refuse("a live socket", path, syscall.EADDRINUSE)
	if !os.SameFile(before, expect.Value(os.Stat(path))(t)) {
		t.Error("the live socket was replaced")
	}
	expect.NoError(t, live.Close())

	expect.NoError(t, os.WriteFile(path, []byte("kept"), 0o600))
	refuse("a file", path)
	expect.Same(t, "the file", string(expect.Value(os.ReadFile(path))(t)), "kept")
	expect.NoError(t, os.Remove(path))

	full := expect.Value(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t) // hangs, with a full queue
	defer unix.Close(full)
	expect.NoError(t, unix.Bind(full, &unix.SockaddrUnix{Name: path}), unix.Listen(full, 0))
	waiting := expect.Value(net.Dial("unix", path))(t)
	defer waiting.Close()
	refuse("a socket whose daemon hangs", path, syscall.EADDRINUSE)
	expect.NoError(t, os.Remove(path))

	expect.NoError(t, os.Chmod(dir, 0o770))
	refuse("a directory that a group can write", path)
	expect.NoError(t, os.Chmod(dir, 0o777))
	refuse("a directory that everybody can write", path)
	if _, err := s.Listen(path); err == nil || strings.Contains(err.Error(), "WithInsecureFiles") {
		t.Errorf("got %v, which must not name an option that Listen does not have", err)
	}
	expect.NoError(t, os.Chmod(dir, 0o755), os.Chown(dir, 1234, 0))
	refuse("a directory of somebody else", path)
	expect.NoError(t, os.Chown(dir, 0, 0))
	refuse("a relative path", "multus.sock")
	refuse("a path that is too long", filepath.Join(dir, strings.Repeat("x", 108)))
	l := expect.Value(s.Listen(path))(t)
	expect.Same(t, "a directory that may be read", modeOf(t, dir), "drwxr-xr-x 0")

	// Another socket at the path is not removed with ours.
	expect.NoError(t, os.Rename(path, path+".old"))
	other := expect.Value(net.Listen("unix", path))(t)
	expect.NoError(t, l.Close())
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the other socket is gone: %v", err)
	}
	expect.NoError(t, other.Close())
}

func TestOfDaemonsThatStartTogetherOneListens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "multus.sock")
	dead := expect.Value(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	dead.SetUnlinkOnClose(false)
	expect.NoError(t, dead.Close())
	var mu sync.Mutex
	var winners []net.Listener
	var all sync.WaitGroup
	for range 16 {
		s := newServer(t, &backend{}, server.Options{})
		all.Go(func() {
			l, err := s.Listen(path)
			if err != nil {
				expect.Is(t, err, syscall.EADDRINUSE)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			winners = append(winners, l)
		})
	}
	all.Wait()
	expect.Same(t, "daemons that listen", len(winners), 1)
	for _, l := range winners {
		expect.NoError(t, l.Close())
	}
}

// lines is a log that may be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// as runs f on a thread of its own with the rights of a user.
func as(t testing.TB, uid int, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			done <- errno
			return
		}
		done <- f()
	}()
	return expect.Await(t, "a thread", done)
}

// dialAs connects with the rights of the calling thread.
func dialAs(path string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "client"), nil
}

func TestOnlyRootAndTheUserMayCall(t *testing.T) {
	for name, c := range map[string]struct {
		uid, caller int
		open        bool // the socket lets everybody connect, as an administrator's chmod may
		want        string
	}{
		"root":                          {0, 0, false, "HTTP/1.1 200 OK"},
		"root beside a user":            {4321, 0, false, "HTTP/1.1 200 OK"},
		"the user":                      {4321, 4321, false, "HTTP/1.1 200 OK"},
		"another user":                  {0, 4321, false, "permission denied"},
		"another user who gets through": {0, 4321, true, ""},
		"nobody":                        {4321, 65534, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := &backend{}
			var log lines
			d := serve(t, b, server.Options{UID: c.uid, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			// Only below: the test's directory may be elsewhere, with GOTMPDIR.
			for dir := filepath.Dir(d.path); strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) {
				expect.NoError(t, os.Chmod(dir, 0o711))
			}
			if c.open {
				expect.NoError(t, os.Chmod(d.path, 0o666))
			}
			var answer []byte
			err := as(t, c.caller, func() error {
				f, err := dialAs(d.path)
				if err != nil {
					return err
				}
				defer f.Close()
				body := request("DEL", "c1")
				if _, err := f.Write(append([]byte(head("/cni", len(body))), body...)); err != nil && !errors.Is(err, syscall.EPIPE) {
					return err
				}
				answer, err = io.ReadAll(f)
				if errors.Is(err, syscall.ECONNRESET) {
					err = nil
				}
				return err
			})
			got := string(answer)
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, c.want) || (c.want == "" && got != "") {
				t.Errorf("%q, want %q", got, c.want)
			}
			if wants := strings.HasPrefix(c.want, "HTTP"); (b.Count("DEL") == 1) != wants {
				t.Errorf("the backend was asked for %v", b.Verbs())
			}
			refused := fmt.Sprintf(`msg="refused a client" uid=%d`, c.caller)
			if c.want == "" {
				expect.Eventually(t, "a line of the log", func() bool { return strings.Contains(log.String(), refused) })
			} else if log.String() != "" {
				t.Errorf("the log: %s", log.String())
			}
		})
	}
}

func TestClientsWithoutCredentialsAreRefused(t *testing.T) {
	b := &backend{}
	s := newServer(t, b, server.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	l := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	conn := expect.Value(net.Dial("tcp", l.Addr().String()))(t)
	body := request("DEL", "c1")
	_, err := conn.Write(append([]byte(head("/cni", len(body))), body...))
	if err == nil {
		_, err = io.Copy(io.Discard, conn)
	}
	if err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Error(err)
	}
	expect.Empty(t, "the backend was asked for", b.Verbs())
	expect.NoError(t, conn.Close(), s.Shutdown(context.Background()))
	expect.Is(t, expect.Await(t, "the end of Serve", served), http.ErrServerClosed)
}

func TestConnectionsBeyondTheLimitWait(t *testing.T) {
	b := &backend{}
	d := serve(t, b, server.Options{Limits: server.Limits{Concurrent: 1, Queued: 1}})
	const limit = 76 // ten of calls that run or have run for long, two of calls that wait, and 64 beside
	before := sockets(t)
	var conns []*net.UnixConn
	for range limit {
		conns = append(conns, d.dial(t))
	}
	late := d.dial(t)
	send(t, late, "/cni", request("DEL", "c1"))
	expect.Eventually(t, "connections up to the limit are accepted", func() bool { return sockets(t) == before+limit+1+limit })
	expect.Same(t, "DELs ran", b.Count("DEL"), 0)
	expect.NoError(t, conns[0].Close())
	wantAnswer(t, late, 200)
}

// sockets returns how many sockets this process has.
func sockets(t testing.TB) (n int) { return descriptors(t, "socket:") }
