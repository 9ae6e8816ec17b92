package shim

import (
	"context"
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
	"github.com/embedcni/cni/internal/testhost/servertest"
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

// looking is a context that says that the shim has found no daemon, and waits: it asks
// the context each time whether the call is to end.
type looking struct {
	context.Context
	waits chan struct{}
}

func (l looking) Err() error {
	select {
	case l.waits <- struct{}{}:
	default:
	}
	return l.Context.Err()
}

// TestADaemonThatComesLater: its socket appears while ADD, CHECK and GC wait. The shim asks
// connect(2) again and again, and sees of the ways only whether a name is there, and whether
// somebody listens.
func TestADaemonThatComesLater(t *testing.T) {
	for name, appear := range map[string]func(t *testing.T, s *servertest.Daemon){
		"in a directory": func(t *testing.T, s *servertest.Daemon) { s.Listen(t) },
		"with its directories": func(t *testing.T, s *servertest.Daemon) {
			s.Dir = filepath.Join(s.Dir, "run", "thick")
			expect.NoError(t, os.MkdirAll(s.Dir, 0o700))
			s.Listen(t)
		},
		"bound, and listening later": func(t *testing.T, s *servertest.Daemon) {
			fd := listenWithBacklog(t, s.Socket(), -1)
			expect.NoError(t, unix.Listen(fd, 10))
			ln := expect.Value(net.FileListener(os.NewFile(uintptr(fd), "")))(t)
			t.Cleanup(func() { ln.Close() })
			go s.Serve(ln)
		},
		"after a dead one": func(t *testing.T, s *servertest.Daemon) {
			expect.NoError(t, unix.Close(listenWithBacklog(t, s.Socket(), 10)))
			expect.NoError(t, os.Remove(s.Socket()))
			s.Listen(t)
		},
	} {
		for _, verb := range []string{"ADD", "CHECK", "GC"} {
			t.Run(name+" "+verb, func(t *testing.T) {
				t.Parallel()
				s := &servertest.Daemon{Dir: t.TempDir(), Answer: readyAnd(ok(result))}
				o := Options{Socket: s.Socket()}
				if name == "with its directories" {
					o.Socket = filepath.Join(s.Dir, "run", "thick", "multus.sock")
				}
				ctx, done := looking{t.Context(), make(chan struct{}, 1)}, make(chan outcome, 1)
				go func() { done <- runUntil(ctx, o, env(verb), conf("1.1.0")) }()
				expect.Await(t, "the shim to find no daemon", ctx.waits)
				appear(t, s)
				if got := expect.Await(t, "the answer", done); got.code != 0 {
					t.Errorf("%+v", got)
				}
			})
		}
	}
}

// TestADaemonThatIsNotReady is asked again, and no CNI call is sent to it.
func TestADaemonThatIsNotReady(t *testing.T) {
	var asked atomic.Int32
	s := newScripted(t, nil)
	s.Answer = func(path string, _ []byte) string {
		if path == "/readyz" && asked.Add(1) < 3 {
			return status(500, "shutting down")
		}
		return ok(result)
	}
	if got := run(Options{Socket: s.Socket()}, env("ADD"), conf("1.0.0")); got.code != 0 {
		t.Errorf("got %+v", got)
	}
	expect.Same(t, "questions", asked.Load(), 3)

	// DEL is served during a shutdown.
	s.Answer = func(path string, _ []byte) string {
		if path == "/cni" {
			return okEmpty
		}
		return status(500, "shutting down")
	}
	wantSilence(t, "DEL", run(Options{Socket: s.Socket()}, env("DEL"), conf("1.0.0")))
	calls := len(s.Asked("/cni"))
	for _, verb := range []string{"ADD", "CHECK", "GC"} {
		o := Options{Socket: s.Socket()}
		var got outcome
		expect.Limited(300*time.Millisecond, func(limit time.Duration) bool {
			o.ReadyWithin = limit
			got = run(o, env(verb), conf("1.1.0"))
			return !strings.Contains(got.stdout, "status 500") // it has had no answer
		})
		wantError(t, verb, got, types.ErrTryAgainLater, fmt.Sprint("not ready within ", o.ReadyWithin), "status 500", "shutting down")
		o.ReadyWithin = -1
		before := len(s.Asked("/readyz"))
		wantError(t, verb, run(o, env(verb), conf("1.1.0")), types.ErrTryAgainLater, "status 500")
		expect.Same(t, "questions", len(s.Asked("/readyz")), before+1)
	}
	wantError(t, "STATUS", run(Options{Socket: s.Socket()}, env("STATUS"), conf("1.1.0")), notAvailable, "status 500")
	expect.Same(t, "calls", len(s.Asked("/cni")), calls)
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
	if got := run(Options{Socket: s.Socket()}, env("ADD"), conf("1.0.0")); got.code != 0 {
		t.Errorf("got %+v", got)
	}
	expect.Same(t, "questions", len(s.Asked("/healthz")), 1)
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
