package shim

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost/servertest"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/thick/internal/delqueue"
)

// queued returns the entries of a directory.
func queued(t *testing.T, dir string) []*delqueue.Entry {
	t.Helper()
	return expect.Value(delqueue.Open(dir).List())(t)
}

func TestADELWithoutADaemonIsQueued(t *testing.T) {
	before := expect.Value(delqueue.Now())(t)
	own := expect.Value(netns.Current())(t)
	defer own.Close()
	dead := filepath.Join(t.TempDir(), "multus.sock")
	expect.NoError(t, unix.Close(listenWithBacklog(t, dead, 10)))
	for name, socket := range map[string]string{"no socket": filepath.Join(t.TempDir(), "multus.sock"), "a dead one": dead} {
		o := Options{Socket: socket, QueueDir: filepath.Join(t.TempDir(), "dels")}
		for _, path := range []string{"/proc/self/ns/net", "/run/netns/gone", ""} {
			got := run(o, env("DEL", "CNI_NETNS="+path, "TRACEPARENT=00-1"), conf("1.0.0"))
			if got.code != 0 || got.stdout != "" || !strings.Contains(got.stderr, "container c1, interface eth0, network net is queued") {
				t.Errorf("%s: %+v", name, got)
			}
			all := queued(t, o.QueueDir)
			if len(all) != 1 {
				t.Fatalf("%s: queued %v", name, all)
			}
			e := all[0]
			expect.Same(t, "env", e.Env, map[string]string{
				"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_NETNS": path, "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin",
			})
			expect.Same(t, "config", string(e.Config), conf("1.0.0"))
			expect.Same(t, "trace", e.Trace, map[string]string{"traceparent": "00-1"})
			want := own.ID()
			if path != "/proc/self/ns/net" {
				want = netns.ID{}
			}
			expect.Same(t, "namespace", e.NetNS, want)
			if e.At.Boot != before.Boot || e.At.Nanos <= before.Nanos || e.Network != "net" {
				t.Errorf("%s: %+v", name, e)
			}
			expect.NoError(t, delqueue.Open(o.QueueDir).Remove(e))
		}
	}
}

func TestADELThatCannotBeQueuedFails(t *testing.T) {
	shared := filepath.Join(t.TempDir(), "dels")
	expect.NoError(t, os.Mkdir(shared, 0o700), os.Chmod(shared, 0o777))
	file := filepath.Join(t.TempDir(), "file")
	expect.NoError(t, os.WriteFile(file, nil, 0o600))
	for dir, why := range map[string]string{shared: "not private", file: "not private", filepath.Join(file, "dels"): "not a directory", "/proc/self/dels": "proc"} {
		o := Options{Socket: filepath.Join(t.TempDir(), "multus.sock"), QueueDir: dir}
		wantError(t, dir, run(o, env("DEL"), conf("1.0.0")), types.ErrTryAgainLater, o.Socket, why)
	}
}

// TestADaemonThatDiesDuringADEL, at any moment of it: the DEL is queued.
func TestADaemonThatDiesDuringADEL(t *testing.T) {
	for name, said := range map[string]string{
		"without a word": "", "in the status": "HTTP/1.0 2", "in the header": "HTTP/1.0 200 OK\r\nContent-", "before the body": status(200, "{}")[:39],
	} {
		var s *servertest.Daemon
		s = newScripted(t, func(string, []byte) string {
			s.Listener.Close() // the connection is closed after the answer
			return said
		})
		o := Options{Socket: s.Socket(), QueueDir: filepath.Join(t.TempDir(), "dels")}
		if got := run(o, env("DEL"), conf("1.0.0")); got.code != 0 || got.stderr == "" {
			t.Errorf("%s: %+v", name, got)
		}
		expect.Same(t, name, len(queued(t, o.QueueDir)), 1)
	}
	// A reset connection: the daemon dies before it has read the request.
	dir := t.TempDir()
	fd := listenWithBacklog(t, filepath.Join(dir, "multus.sock"), 10)
	o := Options{Socket: filepath.Join(dir, "multus.sock"), QueueDir: filepath.Join(dir, "dels")}
	done := start(o, "DEL")
	expect.NoError(t, unix.SetNonblock(fd, true))
	expect.Eventually(t, "a connection", func() bool {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(polled, 0)
		return err == nil && n == 1
	})
	expect.NoError(t, unix.Close(fd))
	if got := expect.Await(t, "DEL", done); got.code != 0 {
		t.Errorf("got %+v", got)
	}
	expect.Same(t, "queued", len(queued(t, o.QueueDir)), 1)
}

// TestADaemonThatHangsUp is alive: the DEL fails, and is not queued.
func TestADaemonThatHangsUp(t *testing.T) {
	s := newScripted(t, func(string, []byte) string { return "" })
	o := Options{Socket: s.Socket(), QueueDir: filepath.Join(t.TempDir(), "dels")}
	wantError(t, "DEL", run(o, env("DEL"), conf("1.0.0")), types.ErrTryAgainLater, s.Socket())
	expect.Same(t, "queued", len(queued(t, o.QueueDir)), 0)
	expect.Same(t, "requests", len(s.Asked("/cni")), 2)
}

// TestADaemonThatStartsWhileADELIsQueued: it listens first and drains then. Whenever the
// shim finds that nobody listens, the entry is there before the daemon drains; otherwise
// the daemon is asked.
func TestADaemonThatStartsWhileADELIsQueued(t *testing.T) {
	for range 50 {
		dir := t.TempDir()
		o := Options{Socket: filepath.Join(dir, "multus.sock"), QueueDir: filepath.Join(dir, "dels")}
		var asked atomic.Int32
		done := start(o, "DEL")
		s := &servertest.Daemon{Dir: dir, Answer: func(string, []byte) string {
			asked.Add(1)
			return okEmpty
		}}
		ln := expect.Value(net.Listen("unix", s.Socket()))(t)
		drained := len(queued(t, o.QueueDir))
		go s.Serve(ln)
		got := expect.Await(t, "DEL", done)
		if got.code != 0 || drained == 0 && asked.Load() == 0 {
			t.Fatalf("%+v: %d drained, %d asked: it is lost", got, drained, asked.Load())
		}
		if asked.Load() > 0 {
			expect.Same(t, "queued after the daemon has answered", len(queued(t, o.QueueDir)), 0)
		}
		expect.NoError(t, ln.Close())
	}
}

// TestASecondAttemptThatFails: its error is returned, although the DEL was queued after the
// first.
func TestASecondAttemptThatFails(t *testing.T) {
	var s *servertest.Daemon
	calls := 0
	s = newScripted(t, func(string, []byte) string {
		if calls++; calls == 1 {
			return ""
		}
		return status(400, `{"code": 7, "msg": "no"}`)
	})
	o := Options{Socket: s.Socket(), QueueDir: filepath.Join(t.TempDir(), "dels")}
	wantError(t, "DEL", run(o, env("DEL"), conf("1.0.0")), 7, "no")
	expect.Same(t, "queued", len(queued(t, o.QueueDir)), 0)
}
