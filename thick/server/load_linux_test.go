package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost/servertest"
	"github.com/embedcni/cni/thick/server"
)

// daemon is a Server that serves a socket, until the end of the test. Then none of its
// goroutines may be left.
type daemon struct {
	*server.Server
	path string
}

func serve(t testing.TB, b server.Backend, o server.Options) *daemon {
	t.Helper()
	before, path := runtime.NumGoroutine(), filepath.Join(t.TempDir(), "run", "multus.sock")
	t.Cleanup(func() {
		expect.Eventually(t, "no goroutine left", func() bool { return runtime.NumGoroutine() <= before })
		expect.Is(t, expect.Err(os.Lstat(path)), fs.ErrNotExist)
	})
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	d := &daemon{Server: servertest.Serve(t, b, o, path), path: path}
	room := server.Room(d.Server)
	t.Cleanup(func() {
		expect.Eventually(t, "every slot, place and byte is free", func() bool {
			return server.Running(d.Server) == 0 && server.Waiting(d.Server) == 0 && server.Room(d.Server) == room
		})
	})
	return d
}

func (d *daemon) dial(t testing.TB) *net.UnixConn {
	t.Helper()
	conn := expect.Value(net.Dial("unix", d.path))(t)
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.UnixConn)
}

// head is the head of a request as Go's client sends it.
func head(path string, length int) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: dummy\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: %d\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n", path, length)
}

// send writes a whole request.
func send(t testing.TB, conn net.Conn, path string, body []byte) {
	t.Helper()
	expect.Value(conn.Write(append([]byte(head(path, len(body))), body...)))(t)
}

// wantAnswer reads an answer, which has a status, if it is not 0, and these parts.
func wantAnswer(t testing.TB, conn net.Conn, status int, parts ...string) {
	t.Helper()
	r := expect.Value(http.ReadResponse(bufio.NewReader(conn), nil))(t)
	defer r.Body.Close()
	body := string(expect.Value(io.ReadAll(r.Body))(t))
	if status != 0 && r.StatusCode != status || slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(body, part) }) {
		t.Errorf("status %d: %s; want status %d and %q", r.StatusCode, body, status, parts)
	}
}

// wants sends a request on a connection of its own, and wants that answer.
func (d *daemon) wants(t testing.TB, path string, body []byte, status int, parts ...string) {
	t.Helper()
	conn := d.dial(t)
	defer conn.Close()
	send(t, conn, path, body)
	wantAnswer(t, conn, status, parts...)
}

// held is a backend whose calls wait until release, or until their context ends.
type held struct {
	backend
	entered chan string // the container of each call that has begun
	release chan struct{}
	ended   chan error // why the context of a call ended
}

func newHeld(verbs ...string) *held {
	h := &held{entered: make(chan string, 2000), release: make(chan struct{}), ended: make(chan error, 2000)}
	h.Do = func(ctx context.Context, verb string, r *server.Request) (types.Result, error) {
		for _, v := range verbs {
			if v != verb {
				continue
			}
			h.entered <- r.ContainerID
			select {
			case <-h.release:
			case <-ctx.Done():
				h.ended <- context.Cause(ctx)
				return nil, ctx.Err()
			}
		}
		return addressed("10.1.0.7/16"), nil
	}
	return h
}

func TestAnAnswerIsInMultusFormToTheByte(t *testing.T) {
	d := serve(t, &backend{}, server.Options{})
	for verb, want := range map[string]string{
		"ADD": fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n", len(answered)) + "Content-Type: application/json\r\nDate: *\r\nConnection: close\r\n\r\n" + answered,
		"DEL": "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Type: application/json\r\nDate: *\r\nConnection: close\r\n\r\n",
	} {
		conn := d.dial(t)
		send(t, conn, "/cni", request(verb, "c1"))
		got := string(expect.Value(io.ReadAll(conn))(t))
		before, after, _ := strings.Cut(got, "Date: ")
		_, after, _ = strings.Cut(after, "\r\n")
		expect.Same(t, verb, before+"Date: *\r\n"+after, want)
	}
}

func TestSlowClientsAreDropped(t *testing.T) {
	b := &backend{}
	d := serve(t, b, server.Options{Limits: server.Limits{Transfer: 100 * time.Millisecond}})
	body := request("ADD", "c1")
	for name, sent := range map[string]string{
		"nothing":                        "",
		"half a head":                    "POST /cni HTTP/1.1\r\nHost: du",
		"no body":                        head("/cni", len(body)),
		"half a body":                    head("/cni", len(body)) + string(body[:50]),
		"a probe without its body":       head("/healthz", 4),
		"a body that is too long":        head("/cni", 100<<20) + "{",
		"a chunked body without its end": "POST /cni HTTP/1.1\r\nHost: dummy\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"env",
	} {
		t.Run(name, func(t *testing.T) {
			conn := d.dial(t)
			if _, err := conn.Write([]byte(sent)); err != nil {
				return // it was too slow, and is dropped already
			}
			expect.NoError(t, conn.SetReadDeadline(time.Now().Add(expect.Patience)))
			if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the connection is still open: %v", err)
			}
		})
	}
	expect.Empty(t, "the backend was asked for", b.Verbs())
	honest := serve(t, b, server.Options{}) // with time enough on a slow machine
	honest.wants(t, "/cni", body, 200)
}

func TestAClientThatDoesNotReadIsDropped(t *testing.T) {
	observed := make(chan server.Observation, 1)
	b := &backend{Do: func(context.Context, string, *server.Request) (types.Result, error) {
		r := addressed("10.1.0.7/16")
		r.DNS.Domain = strings.Repeat("x", 8<<20) // more than a socket holds
		return r, nil
	}}
	d := serve(t, b, server.Options{
		Observe: func(o server.Observation) { observed <- o },
		Limits:  server.Limits{Transfer: 100 * time.Millisecond},
	})
	send(t, d.dial(t), "/cni", request("ADD", "c1"))
	o := expect.Await(t, "the end of the request", observed)
	expect.Is(t, o.Err, os.ErrDeadlineExceeded)
}

func TestDeadClientsEndTheirCalls(t *testing.T) {
	for name, leave := range map[string]func(*net.UnixConn) error{
		"closed": (*net.UnixConn).Close, "half-closed": (*net.UnixConn).CloseWrite,
	} {
		t.Run(name, func(t *testing.T) {
			b := newHeld("ADD")
			d := serve(t, b, server.Options{Limits: server.Limits{Concurrent: 1}})
			runs, queued := d.dial(t), d.dial(t)
			send(t, runs, "/cni", request("ADD", "c1"))
			expect.Await(t, "the first ADD", b.entered)
			send(t, queued, "/cni", request("ADD", "c2"))
			expect.Eventually(t, "the second ADD waits", func() bool { return server.Waiting(d.Server) == 1 })
			expect.NoError(t, leave(queued))
			expect.Eventually(t, "the second ADD has left", func() bool { return server.Waiting(d.Server) == 0 })
			expect.NoError(t, leave(runs))
			expect.Is(t, expect.Await(t, "the end of the first ADD", b.ended), context.Canceled)
			expect.Same(t, "ADDs reached the backend", b.Count("ADD"), 1)
		})
	}
}

func TestTheDeadlineEndsACallThatRunsOrWaits(t *testing.T) {
	b := newHeld("ADD")
	d := serve(t, b, server.Options{Limits: server.Limits{Concurrent: 1, Deadline: 3 * time.Second}})
	runs, queued := d.dial(t), d.dial(t)
	send(t, runs, "/cni", request("ADD", "c1"))
	expect.Await(t, "the first ADD", b.entered)
	send(t, queued, "/cni", request("ADD", "c2"))
	wantAnswer(t, runs, 400, `"code":11`, "no answer within 3s")
	wantAnswer(t, queued, 0, `"code":11`) // it may have had its turn
}

func TestLimits(t *testing.T) {
	b := newHeld("ADD")
	d := serve(t, b, server.Options{Limits: server.Limits{Concurrent: 2, Queued: 1, Request: 4096, Requests: 8192}})
	var conns []*net.UnixConn
	for i := range 3 {
		conns = append(conns, d.dial(t))
		send(t, conns[i], "/cni", request("ADD", fmt.Sprint("c", i)))
		if i < 2 {
			expect.Await(t, "an ADD", b.entered)
		}
	}
	expect.Eventually(t, "the third ADD waits", func() bool { return server.Waiting(d.Server) == 1 })
	d.wants(t, "/cni", request("ADD", "c3"), 503, `"code":11`, "too many calls")
	// DELs and probes do not wait for ADDs.
	d.wants(t, "/cni", request("DEL", "c9"), 200)
	d.wants(t, "/readyz", []byte("null"), 200)
	// Three requests of some 700 bytes are in hand.
	room, conn := server.Room(d.Server), d.dial(t)
	_, err := conn.Write([]byte(head("/cni", 4096) + strings.Repeat("x", 4000)))
	expect.NoError(t, err)
	expect.Eventually(t, "the bytes that have come are accounted", func() bool { return server.Room(d.Server) == room-4000 })
	large := request("DEL", "c9", configured(`{"name":"n","x":"%s"}`, strings.Repeat("x", 2500)))
	d.wants(t, "/cni", large, 503, "no room")
	conn.Close()
	expect.Eventually(t, "the room is free again", func() bool { return server.Room(d.Server) == room })
	close(b.release)
	for _, conn := range conns {
		wantAnswer(t, conn, 200)
	}
	expect.Eventually(t, "all room is free", func() bool { return server.Room(d.Server) == 8192 })
}

func TestShutdownFinishesWhatRunsAndRefusesNewADDs(t *testing.T) {
	b := newHeld("ADD", "DEL")
	d := serve(t, b, server.Options{Limits: server.Limits{Concurrent: 1}})
	runs, queued, detaches := d.dial(t), d.dial(t), d.dial(t)
	send(t, runs, "/cni", request("ADD", "c1"))
	expect.Await(t, "the ADD", b.entered)
	send(t, queued, "/cni", request("ADD", "c2"))
	expect.Eventually(t, "the second ADD waits", func() bool { return server.Waiting(d.Server) == 1 })

	down := make(chan error, 1)
	go func() { down <- d.Shutdown(context.Background()) }()
	wantAnswer(t, queued, 503, `"code":11`, "shutting down")
	d.wants(t, "/readyz", nil, 500)
	d.wants(t, "/healthz", nil, 200)
	d.wants(t, "/cni", request("ADD", "c3"), 503, `"code":11`)
	send(t, detaches, "/cni", request("DEL", "c4"))
	expect.Same(t, "the container that was asked for", expect.Await(t, "DEL during the shutdown", b.entered), "c4")
	select {
	case err := <-down:
		t.Fatalf("Shutdown returned %v while calls run", err)
	default:
	}
	close(b.release)
	for _, conn := range []net.Conn{runs, detaches} {
		wantAnswer(t, conn, 200)
	}
	expect.NoError(t, expect.Await(t, "the end of Shutdown", down))
	expect.Same(t, "ADDs reached the backend", b.Count("ADD"), 1)
	if conn, err := net.Dial("unix", d.path); err == nil {
		conn.Close()
		t.Error("somebody still listens")
	}
}

func TestShutdownGivesUp(t *testing.T) {
	b := newHeld("ADD")
	d := serve(t, b, server.Options{})
	conn := d.dial(t)
	send(t, conn, "/cni", request("ADD", "c1"))
	expect.Await(t, "the ADD", b.entered)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := d.Shutdown(ctx)
	expect.Is(t, err, context.Canceled)
	if !strings.Contains(fmt.Sprint(err), "1 calls were cancelled, 0 of them have not ended") {
		t.Error(err)
	}
	expect.Is(t, expect.Await(t, "the end of the ADD", b.ended), context.Canceled)
	wantAnswer(t, conn, 400, "the server shut down")
}

func TestShutdownDoesNotWaitForACallThatIgnoresItsContext(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	b := &backend{Do: func(context.Context, string, *server.Request) (types.Result, error) {
		close(entered)
		<-release
		return nil, nil
	}}
	d := serve(t, b, server.Options{})
	server.SetGiveUp(d.Server, 10*time.Millisecond)
	send(t, d.dial(t), "/cni", request("DEL", "c1"))
	expect.Await(t, "the DEL", entered)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := d.Shutdown(ctx); !strings.Contains(fmt.Sprint(err), "1 of them have not ended") {
		t.Error(err)
	}
	close(release)
}

func TestAReadinessFileHoldsADDsBack(t *testing.T) {
	b := &backend{}
	dir := t.TempDir()
	ofServer, ofConfig := filepath.Join(dir, "net.d", "10-default.conflist"), filepath.Join(dir, "ready")
	d := serve(t, b, server.Options{ReadinessFile: ofServer})
	before := instances(t)
	var conns []*net.UnixConn
	for i := range 50 {
		conns = append(conns, d.dial(t))
		send(t, conns[i], "/cni", request("ADD", fmt.Sprint("c", i), configured(`{"name":"n","readinessIndicatorFile":%q}`, ofConfig)))
	}
	expect.Eventually(t, "all ADDs wait", func() bool { return server.Waiting(d.Server) == 50 })
	expect.Eventually(t, "they share one watch", func() bool { return instances(t) == before+1 })
	d.wants(t, "/cni", request("DEL", "c1"), 200)
	d.wants(t, "/cni", request("STATUS", ""), 400, `"code":50`)
	expect.NoError(t, os.Mkdir(filepath.Dir(ofServer), 0o755))
	expect.NoError(t, os.WriteFile(ofServer, nil, 0o644))
	expect.Eventually(t, "the other file is waited for", func() bool { return server.Awaited(d.Server, ofConfig) == 50 })
	expect.Same(t, "ADDs ran before the second file was there", b.Count("ADD"), 0)
	d.wants(t, "/cni", request("STATUS", ""), 200)
	expect.NoError(t, os.WriteFile(ofConfig, nil, 0o644))
	for _, conn := range conns {
		wantAnswer(t, conn, 200)
	}
	expect.Eventually(t, "no watch is left", func() bool { return instances(t) == before })
	// It may go again.
	expect.NoError(t, os.Remove(ofServer))
	waits := d.dial(t)
	send(t, waits, "/cni", request("ADD", "c51"))
	expect.Eventually(t, "a later ADD waits", func() bool { return server.Waiting(d.Server) == 1 })
	down := make(chan error, 1)
	go func() { down <- d.Shutdown(context.Background()) }()
	wantAnswer(t, waits, 503, "shutting down")
	expect.NoError(t, expect.Await(t, "the end of Shutdown", down))
}

// TestAReadinessFileIsFoundOnAnyWay: behind links that lead nowhere yet, and in directories
// that take the place of others.
func TestAReadinessFileIsFoundOnAnyWay(t *testing.T) {
	b, dir := &backend{}, t.TempDir()
	file := filepath.Join(dir, "a", "b", "ready")
	expect.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755), os.Symlink(filepath.Join(dir, "c", "link"), file))
	d := serve(t, b, server.Options{ReadinessFile: file})
	conn := d.dial(t)
	send(t, conn, "/cni", request("ADD", "c1"))
	expect.Eventually(t, "the ADD waits", func() bool { return server.Waiting(d.Server) == 1 })
	for _, step := range []func() error{
		func() error { return os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "away")) },
		func() error { return os.Symlink("away", filepath.Join(dir, "a")) },
		func() error { return os.Mkdir(filepath.Join(dir, "c"), 0o755) },
		func() error { return os.Symlink("../d/ready", filepath.Join(dir, "c", "link")) },
		func() error { return os.Mkdir(filepath.Join(dir, "d"), 0o755) },
	} {
		expect.NoError(t, step())
		expect.Same(t, "ADDs", b.Count("ADD"), 0)
	}
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "d", "ready"), nil, 0o644))
	wantAnswer(t, conn, 200)
}

func TestTheDeadlineEndsTheWaitForAReadinessFile(t *testing.T) {
	b := &backend{}
	file := filepath.Join(t.TempDir(), "ready")
	d := serve(t, b, server.Options{ReadinessFile: file, Limits: server.Limits{Deadline: time.Second}})
	d.wants(t, "/cni", request("ADD", "c1"), 503, `"code":11`, file+" does not exist yet")
	d = serve(t, b, server.Options{ReadinessFile: filepath.Join("/proc/self/status", "ready"), Limits: server.Limits{Deadline: time.Second}})
	d.wants(t, "/cni", request("ADD", "c1"), 503, `"code":11`)
}

// instances returns how many instances of inotify this process has.
func instances(t testing.TB) int { return descriptors(t, "inotify") }

// descriptors returns how many descriptors of a kind this process has.
func descriptors(t testing.TB, kind string) (n int) {
	t.Helper()
	for _, fd := range expect.Value(os.ReadDir("/proc/self/fd"))(t) {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.Contains(to, kind) {
			n++
		}
	}
	return n
}
