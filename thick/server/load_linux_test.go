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
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/server"
)

// daemon is a Server that serves a socket, until the end of the test. Then none of its
// goroutines may be left.
type daemon struct {
	*server.Server
	path   string
	served chan error
}

func serve(t testing.TB, b server.Backend, o server.Options) *daemon {
	t.Helper()
	before := runtime.NumGoroutine()
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	d := &daemon{Server: newServer(t, b, o), path: filepath.Join(t.TempDir(), "run", "multus.sock"), served: make(chan error, 1)}
	l := expect.Value(d.Listen(d.path))(t)
	go func() { d.served <- d.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), expect.Patience)
		defer cancel()
		expect.NoError(t, d.Shutdown(ctx))
		expect.Is(t, expect.Await(t, "the end of Serve", d.served), http.ErrServerClosed)
		d.served <- http.ErrServerClosed
		expect.Eventually(t, "no goroutine left", func() bool { return runtime.NumGoroutine() <= before })
		expect.Is(t, expect.Err(os.Lstat(d.path)), fs.ErrNotExist)
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

// answerOf reads an answer.
func answerOf(t testing.TB, conn net.Conn) (int, string) {
	t.Helper()
	status, body, err := readAnswer(conn)
	expect.NoError(t, err)
	return status, body
}

func readAnswer(conn net.Conn) (int, string, error) {
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return r.StatusCode, string(body), err
}

// ask sends a request on a connection of its own and reads the answer.
func (d *daemon) ask(t testing.TB, path string, body []byte) (int, string) {
	t.Helper()
	conn := d.dial(t)
	defer conn.Close()
	send(t, conn, path, body)
	return answerOf(t, conn)
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
	h.do = func(ctx context.Context, verb string, r *server.Request) (types.Result, error) {
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
	expect.Empty(t, "the backend was asked for", b.calls)
	honest := serve(t, b, server.Options{}) // with time enough on a slow machine
	if status, _ := honest.ask(t, "/cni", body); status != 200 {
		t.Errorf("an honest client gets status %d", status)
	}
}

func TestAClientThatDoesNotReadIsDropped(t *testing.T) {
	observed := make(chan server.Observation, 1)
	b := &backend{do: func(context.Context, string, *server.Request) (types.Result, error) {
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
			expect.Same(t, "ADDs reached the backend", b.count("ADD"), 1)
		})
	}
}

func TestTheDeadlineEndsACallThatRunsOrWaits(t *testing.T) {
	b := newHeld("ADD")
	d := serve(t, b, server.Options{Limits: server.Limits{Concurrent: 1, Deadline: time.Second}})
	runs, queued := d.dial(t), d.dial(t)
	send(t, runs, "/cni", request("ADD", "c1"))
	expect.Await(t, "the first ADD", b.entered)
	send(t, queued, "/cni", request("ADD", "c2"))
	if status, body := answerOf(t, runs); status != 400 || !strings.Contains(body, `"code":11`) || !strings.Contains(body, "no answer within 1s") {
		t.Errorf("the call that ran: status %d: %s", status, body)
	}
	if status, body := answerOf(t, queued); !strings.Contains(body, `"code":11`) {
		t.Errorf("the call that waited: status %d: %s", status, body)
	}
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
	if status, body := d.ask(t, "/cni", request("ADD", "c3")); status != 503 || !strings.Contains(body, `"code":11`) || !strings.Contains(body, "too many calls") {
		t.Errorf("the fourth ADD: status %d: %s", status, body)
	}
	// DELs and probes do not wait for ADDs.
	if status, body := d.ask(t, "/cni", request("DEL", "c9")); status != 200 {
		t.Errorf("DEL: status %d: %s", status, body)
	}
	if status, _ := d.ask(t, "/readyz", []byte("null")); status != 200 {
		t.Errorf("/readyz: status %d", status)
	}
	// Three requests of some 700 bytes are in hand.
	conn := d.dial(t)
	_, err := conn.Write([]byte("POST /cni HTTP/1.1\r\nHost: dummy\r\nTransfer-Encoding: chunked\r\n\r\n")) // accounted by 4096
	expect.NoError(t, err)
	expect.Eventually(t, "a request of unknown length is accounted", func() bool { return server.Room(d.Server) < 4096 })
	large := request("DEL", "c9", configured(`{"name":"n","x":"%s"}`, strings.Repeat("x", 2500)))
	if status, body := d.ask(t, "/cni", large); status != 503 || !strings.Contains(body, "no room") {
		t.Errorf("a large request of %d bytes: status %d: %s; room for %d", len(large), status, body, server.Room(d.Server))
	}
	conn.Close()
	expect.Eventually(t, "the room is free again", func() bool { return server.Room(d.Server) > 4096 })
	close(b.release)
	for _, conn := range conns {
		if status, body := answerOf(t, conn); status != 200 {
			t.Errorf("status %d: %s", status, body)
		}
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
	if status, body := answerOf(t, queued); status != 503 || !strings.Contains(body, `"code":11`) || !strings.Contains(body, "shutting down") {
		t.Errorf("the ADD that waited: status %d: %s", status, body)
	}
	if status, _ := d.ask(t, "/readyz", nil); status != 500 {
		t.Errorf("/readyz: status %d, want 500", status)
	}
	if status, _ := d.ask(t, "/healthz", nil); status != 200 {
		t.Errorf("/healthz: status %d, want 200", status)
	}
	if status, body := d.ask(t, "/cni", request("ADD", "c3")); status != 503 || !strings.Contains(body, `"code":11`) {
		t.Errorf("a new ADD: status %d: %s", status, body)
	}
	send(t, detaches, "/cni", request("DEL", "c4"))
	expect.Same(t, "the container that was asked for", expect.Await(t, "DEL during the shutdown", b.entered), "c4")
	select {
	case err := <-down:
		t.Fatalf("Shutdown returned %v while calls run", err)
	default:
	}
	close(b.release)
	for _, conn := range []net.Conn{runs, detaches} {
		if status, body := answerOf(t, conn); status != 200 {
			t.Errorf("a call that ran: status %d: %s", status, body)
		}
	}
	expect.NoError(t, expect.Await(t, "the end of Shutdown", down))
	expect.Same(t, "ADDs reached the backend", b.count("ADD"), 1)
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
	if status, body := answerOf(t, conn); status != 400 || !strings.Contains(body, "the server shut down") {
		t.Errorf("the cancelled ADD: status %d: %s", status, body)
	}
}

func TestShutdownDoesNotWaitForACallThatIgnoresItsContext(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	b := &backend{do: func(context.Context, string, *server.Request) (types.Result, error) {
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
	ofServer, ofConfig, third := filepath.Join(dir, "net.d", "10-default.conflist"), filepath.Join(dir, "ready"), filepath.Join(dir, "third")
	d := serve(t, b, server.Options{ReadinessFile: ofServer})
	wait := func(id, file string) *net.UnixConn {
		conn := d.dial(t)
		send(t, conn, "/cni", request("ADD", id, configured(`{"name":"n","readinessIndicatorFile":%q}`, file)))
		return conn
	}
	var conns []*net.UnixConn
	for i := range 50 {
		conns = append(conns, wait(fmt.Sprint("c", i), ofConfig))
	}
	expect.Eventually(t, "all ADDs wait", func() bool { return server.Waiting(d.Server) == 50 })
	if status, body := d.ask(t, "/cni", request("DEL", "c1")); status != 200 {
		t.Errorf("DEL waits too: status %d: %s", status, body)
	}
	if status, body := d.ask(t, "/cni", request("STATUS", "")); status != 400 || !strings.Contains(body, `"code":50`) {
		t.Errorf("STATUS: status %d: %s", status, body)
	}
	expect.NoError(t, os.Mkdir(filepath.Dir(ofServer), 0o755))
	expect.NoError(t, os.WriteFile(ofServer, nil, 0o644))
	if status, body := d.ask(t, "/cni", request("STATUS", "")); status != 200 {
		t.Errorf("STATUS: status %d: %s", status, body)
	}
	// All have looked again when one that has come since has: they wait for the other file.
	late := wait("late", third)
	expect.Eventually(t, "a late ADD waits", func() bool { return server.Waiting(d.Server) == 51 })
	expect.NoError(t, os.WriteFile(third, nil, 0o644))
	if status, body := answerOf(t, late); status != 200 {
		t.Errorf("status %d: %s", status, body)
	}
	expect.Same(t, "ADDs ran before their file was there", b.count("ADD")-1, 0)
	expect.NoError(t, os.WriteFile(ofConfig, nil, 0o644))
	for _, conn := range conns {
		if status, body := answerOf(t, conn); status != 200 {
			t.Errorf("status %d: %s", status, body)
		}
	}
	// It may go again.
	expect.NoError(t, os.Remove(ofServer))
	waits := d.dial(t)
	send(t, waits, "/cni", request("ADD", "c51"))
	expect.Eventually(t, "a later ADD waits", func() bool { return server.Waiting(d.Server) == 1 })
	down := make(chan error, 1)
	go func() { down <- d.Shutdown(context.Background()) }()
	if status, body := answerOf(t, waits); status != 503 || !strings.Contains(body, "shutting down") {
		t.Errorf("during a shutdown: status %d: %s", status, body)
	}
	expect.NoError(t, expect.Await(t, "the end of Shutdown", down))
}

func TestTheDeadlineEndsTheWaitForAReadinessFile(t *testing.T) {
	b := &backend{}
	file := filepath.Join(t.TempDir(), "ready")
	d := serve(t, b, server.Options{ReadinessFile: file, Limits: server.Limits{Deadline: time.Second}})
	if status, body := d.ask(t, "/cni", request("ADD", "c1")); status != 503 || !strings.Contains(body, `"code":11`) || !strings.Contains(body, file+" does not exist yet") {
		t.Errorf("status %d: %s", status, body)
	}
	d = serve(t, b, server.Options{ReadinessFile: filepath.Join("/proc/self/status", "ready"), Limits: server.Limits{Deadline: time.Second}})
	if status, body := d.ask(t, "/cni", request("ADD", "c1")); status != 503 || !strings.Contains(body, `"code":11`) {
		t.Errorf("below a file: status %d: %s", status, body)
	}
}

// TestOtherPathsHaveADeadline: a client that sends no body does not hold a handler that
// waits for its context.
func TestOtherPathsHaveADeadline(t *testing.T) {
	ended := make(chan struct{}, 1)
	other := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		ended <- struct{}{}
	})
	d := serve(t, newHeld(), server.Options{Other: other, Limits: server.Limits{Deadline: time.Second}})
	expect.Value(io.WriteString(d.dial(t), head("/profile", 10)))(t)
	expect.Await(t, "the handler's end", ended)
}
