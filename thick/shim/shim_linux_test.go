package shim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost/servertest"
)

const (
	okEmpty  = "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"
	notFound = "HTTP/1.0 404 Not Found\r\n\r\n404 page not found\n"
)

func ok(body string) string { return "HTTP/1.0 200 OK\r\n\r\n" + body }

func status(code int, body string) string {
	return fmt.Sprintf("HTTP/1.0 %d %s\r\nContent-Length: %d\r\n\r\n%s", code, http.StatusText(code), len(body), body)
}

// readyAnd answers that the daemon is ready, and each CNI call with one answer.
func readyAnd(answer string) func(string, []byte) string {
	return func(path string, _ []byte) string {
		if path != "/cni" {
			return okEmpty
		}
		return answer
	}
}

func newScripted(t *testing.T, answer func(string, []byte) string) *servertest.Daemon {
	t.Helper()
	s := &servertest.Daemon{Dir: t.TempDir(), Answer: answer}
	s.Listen(t)
	return s
}

// conf is a configuration whose plugin is the shim.
func conf(version string) string {
	return fmt.Sprintf(`{"cniVersion": %q, "name": "net", "type": "shim", "cni.dev/valid-attachments": []}`, version)
}

// env is the environment of a call.
func env(command string, more ...string) []string {
	return append([]string{
		"PATH=/bin", "SECRET=x", "CNI_COMMAND=" + command, "CNI_CONTAINERID=c1", "CNI_NETNS=/run/netns/c1", "CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin",
	}, more...)
}

// outcome is the effect of a run.
type outcome struct {
	code           int
	stdout, stderr string
}

func run(o Options, env []string, config string) outcome {
	return runUntil(context.Background(), o, env, config)
}

func runUntil(ctx context.Context, o Options, env []string, config string) outcome {
	var stdout, stderr bytes.Buffer
	code := Run(ctx, o, Process{env, strings.NewReader(config), &stdout, &stderr})
	return outcome{code, stdout.String(), stderr.String()}
}

// wantError compares the error object on standard output; parts must be in its message
// and details.
func wantError(t *testing.T, name string, got outcome, code uint, parts ...string) *types.Error {
	t.Helper()
	var said struct {
		Version string `json:"cniVersion"`
		types.Error
	}
	if err := json.Unmarshal([]byte(got.stdout), &said); err != nil || got.code != 1 || said.Code != code || said.Version == "" {
		t.Errorf("%s: exit code %d, error %v, %q, want code %d", name, got.code, err, got.stdout, code)
	}
	for _, part := range parts {
		if !strings.Contains(said.Error.Error(), part) {
			t.Errorf("%s: %q does not contain %q", name, said.Error.Error(), part)
		}
	}
	return &said.Error
}

// wantSilence is the outcome of a success without a result.
func wantSilence(t *testing.T, name string, got outcome) {
	t.Helper()
	expect.Same(t, name, got, outcome{})
}

const result = `{"Result": {"cniVersion": "1.0.0",
	"interfaces": [{"name": "br0"}, {"name": "eth0", "mac": "0a:00:00:00:00:01", "sandbox": "/run/netns/c1"}],
	"ips": [{"interface": 1, "address": "10.1.0.5/16", "gateway": "10.1.0.1"}, {"interface": 1, "address": "fd00::5/64"}],
	"routes": [{"dst": "0.0.0.0/0"}], "dns": {}}}`

var versions = []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

func TestADDReturnsTheResultInTheVersionAskedFor(t *testing.T) {
	s := newScripted(t, readyAnd(ok(result)))
	for _, v := range versions {
		got := run(Options{Socket: s.Socket()}, env("ADD", "CNI_ARGS=A=b"), conf(v))
		var fields struct {
			Version string `json:"cniVersion"`
			IPs     []struct {
				Version, Address string
			} `json:"ips"`
			IP4 struct{ IP string } `json:"ip4"`
			IP6 struct{ IP string } `json:"ip6"`
		}
		if err := json.Unmarshal([]byte(got.stdout), &fields); err != nil || got.code != 0 || got.stderr != "" || fields.Version != v {
			t.Errorf("%s: %+v, %v", v, got, err)
		}
		switch {
		case v < "0.3.0":
			if fields.IP4.IP != "10.1.0.5/16" || fields.IP6.IP != "fd00::5/64" {
				t.Errorf("%s: %s", v, got.stdout)
			}
		case len(fields.IPs) != 2 || (fields.IPs[0].Version == "4") != (v < "1.0.0") || fields.IPs[0].Address != "10.1.0.5/16":
			t.Errorf("%s: %s", v, got.stdout)
		}
		// Multus' form: the CNI variables, and the configuration as bytes.
		var request struct {
			Env    map[string]string
			Config []byte
		}
		asked := s.Asked("/cni")
		expect.NoError(t, json.Unmarshal(asked[len(asked)-1].Body, &request))
		expect.Same(t, "config", string(request.Config), conf(v))
		expect.Same(t, "env", request.Env, map[string]string{
			"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/c1", "CNI_IFNAME": "eth0",
			"CNI_PATH": "/opt/cni/bin", "CNI_ARGS": "A=b",
		})
	}
	expect.Same(t, "questions whether it is ready", len(s.Asked("/readyz")), len(versions))
}

func TestOtherVerbsSayNothing(t *testing.T) {
	s := newScripted(t, readyAnd(okEmpty))
	for _, verb := range []string{"DEL", "CHECK", "GC", "STATUS"} {
		wantSilence(t, verb, run(Options{Socket: s.Socket()}, env(verb), conf("1.1.0")))
	}
	expect.Same(t, "calls", len(s.Asked("/cni")), 4)
	expect.Same(t, "questions whether it is ready", len(s.Asked("/readyz")), 3) // not before DEL
}

func TestVERSIONNeedsNoDaemon(t *testing.T) {
	got := run(Options{}, []string{"CNI_COMMAND=VERSION"}, `{"cniVersion": "1.1.0"}`)
	var said struct {
		CNIVersion        string
		SupportedVersions []string
	}
	if err := json.Unmarshal([]byte(got.stdout), &said); err != nil || got.code != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	expect.Same(t, "version", said.CNIVersion, "1.1.0")
	expect.Same(t, "versions", said.SupportedVersions, versions)
}

// TestArguments: package wire has the rest of those that are refused.
func TestArguments(t *testing.T) {
	s := newScripted(t, readyAnd(ok(result)))
	for _, c := range []struct {
		name     string
		env      []string
		config   string
		code     uint
		contains string
	}{
		{"no verb", []string{"CNI_IFNAME=eth0"}, conf("1.1.0"), 4, "CNI_COMMAND"},
		{"no interface", env("DEL", "CNI_IFNAME="), conf("1.1.0"), 4, "CNI_IFNAME"},
		{"GC without a path", env("GC", "CNI_PATH="), conf("1.1.0"), 4, "CNI_PATH"},
		{"no configuration", env("ADD"), "", 6, "object"},
		{"STATUS in 1.0.0", env("STATUS"), conf("1.0.0"), 1, "STATUS"},
		{"a socket directory that is no text", env("DEL"), `{"cniVersion": "1.0.0", "name": "net", "daemonSocketDir": 1}`, 6, "daemonSocketDir"},
		{"a relative socket directory", env("ADD"), `{"cniVersion": "1.0.0", "name": "net", "daemonSocketDir": "run"}`, 7, "socket"},
		{"a configuration without end", env("ADD"), `{"name": "` + strings.Repeat("a", 5<<20) + `"}`, 7, "too long"},
		{"one that is too long as base64", env("ADD"), `{"cniVersion": "1.0.0", "name": "net", "x": "` + strings.Repeat("a", 7<<19) + `"}`, 7, "too long"},
	} {
		before := len(s.Asked("/cni"))
		wantError(t, c.name, run(Options{Socket: s.Socket()}, c.env, c.config), c.code, c.contains)
		expect.Same(t, c.name+": calls of the daemon", len(s.Asked("/cni")), before)
	}
	wantError(t, "without a socket", run(Options{}, env("ADD"), conf("1.0.0")), 7, "socket")
}

// TestTheConfigurationNamesTheSocket, with the field of Multus.
func TestTheConfigurationNamesTheSocket(t *testing.T) {
	s := newScripted(t, readyAnd(okEmpty))
	config := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "daemonSocketDir": %q}`, s.Dir)
	for _, o := range []Options{{}, {Socket: "/nowhere/multus.sock"}} {
		wantSilence(t, "DEL", run(o, env("DEL"), config))
	}
	expect.Same(t, "calls", len(s.Asked("/cni")), 2)
	wantError(t, "another file name", run(Options{Socket: "/nowhere/other.sock"}, env("DEL"), config), 11, filepath.Join(s.Dir, "other.sock"))
}

// TestErrorsOfTheDaemonKeepCodeAndDetails, for each verb. Text has code 999.
func TestErrorsOfTheDaemonKeepCodeAndDetails(t *testing.T) {
	var answer string
	s := newScripted(t, func(path string, _ []byte) string {
		if path != "/cni" {
			return okEmpty
		}
		return answer
	})
	for _, verb := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS"} {
		call := func() outcome { return run(Options{Socket: s.Socket()}, env(verb), conf("1.1.0")) }
		for _, want := range []types.Error{
			{Code: 7, Msg: "missing network name", Details: "x"}, {Code: 11, Msg: "later"}, {Code: 101, Msg: "a plugin's own", Details: "line 1\nline 2"},
			{Code: 51, Msg: "not available"},
		} {
			object := expect.Value(json.Marshal(want))(t)
			answer = status(400, string(object))
			expect.Same(t, verb, *wantError(t, verb, call(), want.Code), want)
			answer = status(500, string(object))
			expect.Same(t, verb, *wantError(t, verb, call(), want.Code), want)
		}
		answer = status(400, "no such network\n")
		wantError(t, verb+" text", call(), 999, "no such network")
		answer = status(503, "")
		wantError(t, verb+" nothing", call(), 999, "503")
		answer = status(400, `{"half": `)
		wantError(t, verb+" half an object", call(), 999, `{"half":`)
		answer = notFound
		wantError(t, verb+" another program's", call(), 999, "404")
		answer = status(302, "")
		wantError(t, verb+" redirected", call(), 999, "302")
	}
}

// TestAnswersThatAreNone: the caller hears of each, also of one to DEL, which may not
// have been done.
func TestAnswersThatAreNone(t *testing.T) {
	huge := strings.Repeat("x", maxAnswer+10)
	for name, answer := range map[string]string{
		"garbage":                         "\x00\x01\x02garbage\r\n\r\n",
		"another protocol":                "SSH-2.0-OpenSSH_9.6\r\n",
		"HTTP/2":                          "HTTP/2 200\r\n\r\n",
		"no status":                       "HTTP/1.0\r\n\r\n",
		"a long status":                   "HTTP/1.0 2000 OK\r\n\r\n",
		"a header that is none":           "HTTP/1.0 200 OK\r\nnothing\r\n\r\n",
		"in chunks":                       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"a length that is none":           "HTTP/1.0 200 OK\r\nContent-Length: -1\r\n\r\n",
		"a length that overflows":         "HTTP/1.0 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
		"more than announced":             "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}{}",
		"a length that is huge":           fmt.Sprintf("HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n{}", maxAnswer+1),
		"a huge answer":                   ok(huge),
		"a huge error":                    status(400, huge),
		"a header without end":            "HTTP/1.0 200 OK\r\n" + strings.Repeat("A: b\r\n", maxAnswer/6),
		"a status line without end":       "HTTP/1.0 200 " + huge,
		"a result that is none":           ok("[1]"),
		"half a result":                   ok(result[:100]),
		"two results":                     ok(result + result),
		"a result with a false address":   ok(`{"Result": {"cniVersion": "1.0.0", "ips": [{"address": "10.1"}]}}`),
		"text where a result is expected": ok("done"),
	} {
		s := newScripted(t, readyAnd(answer))
		o := Options{Socket: s.Socket(), QueueDir: filepath.Join(t.TempDir(), "dels")}
		for _, verb := range []string{"ADD", "DEL", "CHECK"} {
			wantError(t, name+": "+verb, run(o, env(verb), conf("1.0.0")), types.ErrDecodingFailure)
		}
		expect.Fails(t, name+": a DEL was queued although the daemon lives", expect.Err(os.Stat(o.QueueDir)))
	}
	for name, answer := range map[string]string{
		"empty": okEmpty, "blank": ok(" \n"), "an object": ok("{}"), "null": ok(`{"Result": null}`),
	} {
		s := newScripted(t, readyAnd(answer))
		wantError(t, name, run(Options{Socket: s.Socket()}, env("ADD"), conf("1.0.0")), types.ErrDecodingFailure, "without a result")
		wantSilence(t, name, run(Options{Socket: s.Socket()}, env("DEL"), conf("1.0.0")))
	}
}

// TestAHangingDaemon: every verb ends, with a code that makes runtimes try again.
func TestAHangingDaemon(t *testing.T) {
	release := make(chan struct{})
	s := newScripted(t, func(path string, _ []byte) string {
		if path == "/cni" {
			<-release
		}
		return okEmpty
	})
	defer close(release)
	o := Options{Socket: s.Socket(), AnswerWithin: 50 * time.Millisecond, QueueDir: filepath.Join(t.TempDir(), "dels")}
	for _, verb := range []string{"ADD", "DEL", "CHECK", "GC"} {
		wantError(t, verb, run(o, env(verb), conf("1.1.0")), types.ErrTryAgainLater, "no answer within 50ms")
	}
	wantError(t, "STATUS", run(o, env("STATUS"), conf("1.1.0")), notAvailable, "no answer within 50ms")
	expect.Fails(t, "a DEL was queued although the daemon lives", expect.Err(os.Stat(o.QueueDir)))
}

// TestADaemonThatAcceptsNothing: the connection succeeds, and more than the backlog holds
// wait for room.
func TestADaemonThatAcceptsNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "multus.sock")
	fd := listenWithBacklog(t, path, 0)
	var waiting []net.Conn
	for range 3 {
		conn, err := net.Dial("unix", path)
		if err != nil {
			break
		}
		waiting = append(waiting, conn)
	}
	if len(waiting) == 3 {
		t.Fatal("the backlog has room")
	}
	o := Options{Socket: path, AnswerWithin: 300 * time.Millisecond, QueueDir: filepath.Join(dir, "dels")}
	wantError(t, "DEL", run(o, env("DEL"), conf("1.0.0")), types.ErrTryAgainLater, "no answer within 300ms")
	// With room, it is answered.
	done := make(chan outcome, 1)
	go func() {
		o.AnswerWithin = expect.Patience
		done <- run(o, env("DEL"), conf("1.0.0"))
	}()
	for _, conn := range waiting {
		expect.NoError(t, conn.Close())
	}
	s := &servertest.Daemon{Dir: dir, Answer: readyAnd(okEmpty)}
	ln := expect.Value(net.FileListener(os.NewFile(uintptr(fd), path)))(t)
	defer ln.Close()
	go s.Serve(ln)
	wantSilence(t, "DEL", expect.Await(t, "DEL", done))
}

func TestTheContextEndsACall(t *testing.T) {
	release := make(chan struct{})
	asked := make(chan struct{}, 1)
	s := newScripted(t, func(string, []byte) string {
		asked <- struct{}{}
		<-release
		return okEmpty
	})
	defer close(release)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-asked; cancel() }()
	wantError(t, "ADD", runUntil(ctx, Options{Socket: s.Socket()}, env("ADD"), conf("1.0.0")), types.ErrTryAgainLater, "canceled")
}

type failing struct{}

func (failing) Read([]byte) (int, error)  { return 0, io.ErrClosedPipe }
func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestStreamsThatFail make the call fail.
func TestStreamsThatFail(t *testing.T) {
	s := newScripted(t, readyAnd(ok(result)))
	var stdout, stderr bytes.Buffer
	code := Run(context.Background(), Options{Socket: s.Socket()}, Process{env("ADD"), strings.NewReader(conf("1.0.0")), failing{}, &stderr})
	if code != 1 || !strings.Contains(stderr.String(), "closed pipe") {
		t.Errorf("exit code %d, %q", code, stderr.String())
	}
	code = Run(context.Background(), Options{Socket: s.Socket()}, Process{env("ADD"), failing{}, &stdout, &stderr})
	wantError(t, "ADD", outcome{code, stdout.String(), ""}, types.ErrIOFailure, "stdin")
}
