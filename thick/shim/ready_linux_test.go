package shim

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
)

// listenWithBacklog returns a descriptor that listens at a path.
func listenWithBacklog(t *testing.T, path string, backlog int) int {
	t.Helper()
	fd := expect.Value(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	expect.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	if backlog >= 0 {
		expect.NoError(t, unix.Listen(fd, backlog))
	}
	return fd
}

// start runs the shim and returns its outcome later.
func start(o Options, verb string) <-chan outcome {
	done := make(chan outcome, 1)
	go func() { done <- run(o, env(verb), conf("1.1.0")) }()
	return done
}

// awaitWatch waits until this process watches a directory.
func awaitWatch(t *testing.T, dir string) {
	t.Helper()
	var st unix.Stat_t
	expect.NoError(t, unix.Stat(dir, &st))
	watch := fmt.Sprintf(" ino:%x ", st.Ino)
	expect.Eventually(t, "a watch on "+dir, func() bool {
		fds := expect.Value(filepath.Glob("/proc/self/fdinfo/*"))(t)
		for _, fd := range fds {
			if data, err := os.ReadFile(fd); err == nil && strings.Contains(string(data), "inotify wd:") && strings.Contains(string(data), watch) {
				return true
			}
		}
		return false
	})
}

// TestADaemonThatComesLater: each way in which its socket may appear while ADD, CHECK and
// GC wait.
func TestADaemonThatComesLater(t *testing.T) {
	for name, appear := range map[string]func(t *testing.T, s *scripted){
		"in a directory": func(t *testing.T, s *scripted) { s.listen(t) },
		"with its directories": func(t *testing.T, s *scripted) {
			s.dir = filepath.Join(s.dir, "run", "thick")
			expect.NoError(t, os.MkdirAll(s.dir, 0o700))
			s.listen(t)
		},
		"renamed to its name": func(t *testing.T, s *scripted) {
			ln := expect.Value(net.Listen("unix", filepath.Join(s.dir, "x")))(t)
			t.Cleanup(func() { ln.Close() })
			go s.serve(ln)
			expect.NoError(t, os.Rename(filepath.Join(s.dir, "x"), s.socket()))
		},
		"in a directory that is renamed": func(t *testing.T, s *scripted) {
			final := filepath.Join(s.dir, "run", "thick")
			s.dir = filepath.Join(s.dir, "new")
			expect.NoError(t, os.MkdirAll(filepath.Join(s.dir, "thick"), 0o700))
			other := &scripted{dir: filepath.Join(s.dir, "thick"), answer: s.answer, asked: map[string]int{}}
			other.listen(t)
			expect.NoError(t, os.Rename(s.dir, filepath.Dir(final)))
		},
		"bound, and listening later": func(t *testing.T, s *scripted) {
			fd := listenWithBacklog(t, s.socket(), -1)
			expect.NoError(t, unix.Listen(fd, 10))
			ln := expect.Value(net.FileListener(os.NewFile(uintptr(fd), "")))(t)
			t.Cleanup(func() { ln.Close() })
			go s.serve(ln)
		},
		"after a dead one": func(t *testing.T, s *scripted) {
			expect.NoError(t, unix.Close(listenWithBacklog(t, s.socket(), 10)))
			expect.NoError(t, os.Remove(s.socket()))
			s.listen(t)
		},
	} {
		for _, verb := range []string{"ADD", "CHECK", "GC"} {
			s := &scripted{dir: t.TempDir(), answer: readyAnd(ok(result)), asked: map[string]int{}}
			o := Options{Socket: s.socket()}
			if name == "with its directories" || name == "in a directory that is renamed" {
				o.Socket = filepath.Join(s.dir, "run", "thick", "multus.sock")
			}
			done := start(o, verb)
			awaitWatch(t, s.dir)
			appear(t, s)
			if got := expect.Await(t, name, done); got.code != 0 {
				t.Errorf("%s: %s: %+v", name, verb, got)
			}
		}
	}
}

// TestTheSocketIsNoticed, and not by a poll.
func TestTheSocketIsNoticed(t *testing.T) {
	s := &scripted{dir: t.TempDir(), answer: readyAnd(ok(result)), asked: map[string]int{}}
	changed, stop := watchFor(s.socket())
	defer stop()
	expect.Await(t, "the watch", changed)
	s.listen(t)
	expect.Await(t, "the socket", changed)
}

// TestADaemonThatIsNotReady is asked again, and no CNI call is sent to it.
func TestADaemonThatIsNotReady(t *testing.T) {
	var asked atomic.Int32
	s := newScripted(t, nil)
	s.answer = func(path string, _ []byte) string {
		if path == "/readyz" && asked.Add(1) < 3 {
			return status(500, "shutting down")
		}
		return ok(result)
	}
	if got := run(Options{Socket: s.socket()}, env("ADD"), conf("1.0.0")); got.code != 0 {
		t.Errorf("got %+v", got)
	}
	expect.Same(t, "questions", asked.Load(), 3)

	// DEL is served during a shutdown.
	s.answer = func(path string, _ []byte) string {
		if path == "/cni" {
			return okEmpty
		}
		return status(500, "shutting down")
	}
	wantSilence(t, "DEL", run(Options{Socket: s.socket()}, env("DEL"), conf("1.0.0")))
	calls := s.count("/cni")
	for _, verb := range []string{"ADD", "CHECK", "GC"} {
		o := Options{Socket: s.socket(), ReadyWithin: time.Second}
		wantError(t, verb, run(o, env(verb), conf("1.1.0")), types.ErrTryAgainLater, "not ready within 1s", "status 500", "shutting down")
		o.ReadyWithin = -1
		before := s.count("/readyz")
		wantError(t, verb, run(o, env(verb), conf("1.1.0")), types.ErrTryAgainLater, "status 500")
		expect.Same(t, "questions", s.count("/readyz"), before+1)
	}
	wantError(t, "STATUS", run(Options{Socket: s.socket()}, env("STATUS"), conf("1.1.0")), notAvailable, "status 500")
	expect.Same(t, "calls", s.count("/cni"), calls)
}

// TestADaemonThatKnowsNoReadyz is asked for its health, as Multus v4.3.0 has it.
func TestADaemonThatKnowsNoReadyz(t *testing.T) {
	s := newScripted(t, func(path string, _ []byte) string {
		switch path {
		case "/readyz":
			return notFound
		case "/healthz":
			return okEmpty
		}
		return ok(result)
	})
	if got := run(Options{Socket: s.socket()}, env("ADD"), conf("1.0.0")); got.code != 0 {
		t.Errorf("got %+v", got)
	}
	expect.Same(t, "questions", s.count("/healthz"), 1)
}

// TestNoDaemon: nobody listens, and nobody will.
func TestNoDaemon(t *testing.T) {
	dead := filepath.Join(t.TempDir(), "multus.sock")
	expect.NoError(t, unix.Close(listenWithBacklog(t, dead, 10)))
	file := filepath.Join(t.TempDir(), "file")
	expect.NoError(t, os.WriteFile(file, nil, 0o600))
	for name, socket := range map[string]string{
		"no directory": "/nowhere/at/all/multus.sock", "no socket": filepath.Join(t.TempDir(), "multus.sock"),
		"a dead one": dead, "a file": file, "below a file": filepath.Join(file, "multus.sock"),
	} {
		o := Options{Socket: socket, ReadyWithin: 20 * time.Millisecond}
		for _, verb := range []string{"ADD", "CHECK", "GC"} {
			wantError(t, name+": "+verb, run(o, env(verb), conf("1.1.0")), types.ErrTryAgainLater, "not ready within 20ms", socket)
		}
		wantError(t, name+": STATUS", run(o, env("STATUS"), conf("1.1.0")), notAvailable, socket)
		wantError(t, name+": DEL", run(o, env("DEL"), conf("1.1.0")), types.ErrTryAgainLater, "no directory is configured", socket)
	}
	long := "/" + string(make([]byte, 200))
	wantError(t, "a path that no socket can have", run(Options{Socket: long}, env("ADD"), conf("1.0.0")), types.ErrIOFailure, "invalid argument")
}
