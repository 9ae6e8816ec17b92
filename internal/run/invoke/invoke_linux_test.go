package invoke

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

const mib = 1 << 20

func TestRun(t *testing.T) {
	for _, tt := range []struct {
		name   string
		script string
		stdin  []byte
		want   Output
		exit   *ExitError // Path is filled in below
	}{
		{
			name:   "echo",
			script: "cat; log done",
			stdin:  []byte(`{"cniVersion":"1.1.0"}`),
			want:   Output{Stdout: []byte(`{"cniVersion":"1.1.0"}`), Stderr: []byte("done\n")},
		},
		{name: "no output"},
		{name: "a group of its own", script: "group", want: Output{Stdout: []byte("true")}},
		{
			name:   "an error of CNI",
			script: `say {"code":11}; log no more addresses; exit 1`,
			want:   Output{Stdout: []byte("{\"code\":11}\n"), Stderr: []byte("no more addresses\n")},
			exit:   &ExitError{Code: 1},
		},
		{
			name:   "killed by itself",
			script: "say half; kill",
			want:   Output{Stdout: []byte("half\n")},
			exit:   &ExitError{Code: -1, Signal: syscall.SIGKILL},
		},
		{
			name:   "stdin is not read",
			script: "say done",
			stdin:  make([]byte, 10*mib),
			want:   Output{Stdout: []byte("done\n")},
		},
		{
			name:   "a large stdin is read",
			script: "cat",
			stdin:  bytes.Repeat([]byte("x"), 3*mib),
			want:   Output{Stdout: bytes.Repeat([]byte("x"), 3*mib)},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			noLeak(t)
			req := scripted(t, tt.script)
			req.Stdin = tt.stdin
			got, err := Run(context.Background(), req, Limits{})
			expect.Same(t, "error", got, tt.want)
			var exit *ExitError
			errors.As(err, &exit)
			if tt.exit != nil {
				tt.exit.Path = req.Path
			}
			expect.That(t, reflect.DeepEqual(exit, tt.exit) && (err != nil) == (tt.exit != nil), "got %v (%v), want %v", exit, err, tt.exit)
			noSurvivors(t, req)
		})
	}
}

func TestExitErrorNamesTheCause(t *testing.T) {
	for _, tt := range []struct {
		err  ExitError
		want string
	}{
		{ExitError{Path: "/opt/cni/bin/bridge", Code: 1}, "/opt/cni/bin/bridge: exit status 1"},
		{ExitError{Path: "/opt/cni/bin/bridge", Code: -1, Signal: syscall.SIGSEGV}, "/opt/cni/bin/bridge: killed by signal 11 (segmentation fault)"},
	} {
		expect.Same(t, "result", tt.err.Error(), tt.want)
	}
}

func TestFilesThatCannotBeStarted(t *testing.T) {
	noLeak(t)
	over, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("the daemon stops")
	cancel(cause)
	plain := filepath.Join(t.TempDir(), "plain")
	expect.NoError(t, os.WriteFile(plain, nil, 0o600))
	for _, tt := range []struct {
		name string
		ctx  context.Context
		path string
		text string
		is   error
	}{
		{"missing", context.Background(), "/nonexistent/bridge", "start /nonexistent/bridge: no such file or directory", fs.ErrNotExist},
		{"not executable", context.Background(), plain, "start " + plain + ": permission denied", fs.ErrPermission},
		{"relative", context.Background(), "bridge", `start plugin "bridge": not an absolute path`, nil},
		{"context over", over, "/nonexistent/bridge", "/nonexistent/bridge not started: context canceled: the daemon stops", cause},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := Run(tt.ctx, Request{Path: tt.path}, Limits{})
			expect.That(t, reflect.DeepEqual(out, Output{}) && err != nil && err.Error() == tt.text, "got  %v, %v\nwant %v", out, err, tt.text)
			expect.That(t, tt.is == nil || errors.Is(err, tt.is), "got %v, want one that is %v", err, tt.is)
		})
	}
}

func TestInheritedFiles(t *testing.T) {
	noLeak(t)
	path := filepath.Join(t.TempDir(), "lock")
	expect.NoError(t, os.WriteFile(path, []byte("inherited"), 0o600))
	f := expect.Value(os.Open(path))(t)
	defer f.Close()
	req := scripted(t, "fd3")
	req.Inherit = []*os.File{f}
	out, err := Run(context.Background(), req, Limits{})
	expect.That(t, err == nil && string(out.Stdout) == "inherited", "got %q, %v", out.Stdout, err)
}

// patient are limits with which Run returns when all that it has killed is gone, however
// slow the machine is. Nothing that hangs in these tests ends by itself; how long Run takes
// on a quiet machine is measured by M7.
func patient() Limits { return Limits{KillWait: expect.Patience} }

func TestFault_F13_DeadlineWhileAChildHoldsStdout(t *testing.T) {
	for _, tt := range []struct{ name, script string }{
		{"the plugin hangs", "stubborn; say partial; ready; hang"},
		{"a child hangs", "stubborn; say partial; fork; ready; hang"},
		{"children hang, output goes on", "say partial; fork; fork; fork; err 200000; ready; hang"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			noLeak(t)
			ctx, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			var end time.Time
			req := scripted(t, tt.script)
			req.Stdin = make([]byte, mib) // more than a pipe holds: a write is still pending
			req.Inherit = []*os.File{whenReady(t, func() { end = time.Now(); cancel(context.DeadlineExceeded) })}
			out, err := Run(ctx, req, patient())
			over := time.Since(end)
			t.Logf("M7: returned %v after the end of the context", over)
			expect.That(t, over <= expect.Patience/2, "%v too late", over)
			expect.That(t, errors.Is(err, context.DeadlineExceeded) && errors.Is(err, context.Canceled),
				"got %v, want the context's error and its cause", err)
			expect.That(t, string(out.Stdout) == "partial\n", "got %q, want the output printed in time", out.Stdout)
			noSurvivors(t, req)
		})
	}
}

func TestFault_F13_Deadline(t *testing.T) {
	noLeak(t)
	req := scripted(t, "fork; hang")
	want := req.Path + " killed: context deadline exceeded"
	var err error
	expect.Limited(100*time.Millisecond, func(limit time.Duration) bool {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		end, _ := ctx.Deadline()
		err = expect.Err(Run(ctx, req, patient()))
		over := time.Since(end)
		t.Logf("M7: returned %v after the deadline", over)
		expect.That(t, over <= expect.Patience/2, "%v too late", over)
		return err != nil && err.Error() != want // it was not started
	})
	expect.That(t, errors.Is(err, context.DeadlineExceeded) && err.Error() == want, "got  %v\nwant %v", err, want)
	noSurvivors(t, req)
}

func TestFault_F13_AFailedPluginTakesItsChildrenAlong(t *testing.T) {
	for _, end := range []string{"exit 3", "kill"} {
		t.Run(end, func(t *testing.T) {
			noLeak(t)
			req := scripted(t, "fork; say why; "+end)
			start := time.Now()
			out, err := Run(context.Background(), req, patient())
			took := time.Since(start)
			expect.That(t, took <= expect.Patience/2, "took %v, though the child was killed", took)
			var exit *ExitError
			expect.That(t, errors.As(err, &exit) && string(out.Stdout) == "why\n", "got %q, %v", out.Stdout, err)
			noSurvivors(t, req)
		})
	}
}

func TestFault_F13_ADaemonOfASuccessfulPluginLivesOn(t *testing.T) {
	noLeak(t)
	const killWait = 50 * time.Millisecond
	lastWord := make(chan time.Time, 1)
	req := scripted(t, "fork; say attached; ready")
	req.Inherit = []*os.File{whenReady(t, func() { lastWord <- time.Now() })}
	out, err := Run(context.Background(), req, Limits{KillWait: killWait})
	returned := time.Now()
	expect.That(t, err == nil && string(out.Stdout) == "attached\n", "got %q, %v", out.Stdout, err)
	over := returned.Sub(<-lastWord)
	t.Logf("returned %v after the plugin's last word", over)
	expect.That(t, over <= expect.Patience/2, "%v too late", over)
	pids := survivors(t, req.Env[1])
	expect.That(t, len(pids) == 1, "processes %v are alive, want the daemon", pids)
}

// TestFault_F13_OutputInThePipeIsRead: the reader gets no processor time
// until its deadline has passed.
func TestFault_F13_OutputInThePipeIsRead(t *testing.T) {
	noLeak(t)
	r, w, err := os.Pipe()
	expect.NoError(t, err)
	defer r.Close()
	defer w.Close() // not before the end: a child holds it
	want := numbered(t, 0, 60_000)
	expect.Value(w.Write(want))(t)
	expect.NoError(t, r.SetDeadline(time.Unix(1, 0)))
	var got []byte
	read(r, func(p []byte) bool { got = append(got, p...); return true })
	expect.That(t, bytes.Equal(got, want), "read %d bytes, want %d", len(got), len(want))
}

// TestFault_F13_PrintedOutputIsNotLost leaves no time at all to read the output
// that the plugin printed before it exited.
func TestFault_F13_PrintedOutputIsNotLost(t *testing.T) {
	noLeak(t)
	const n = 60_000 // fits into a pipe
	req := scripted(t, fmt.Sprintf("fork; out %d; err %d", n, n))
	out, err := Run(context.Background(), req, Limits{KillWait: 1})
	want := Output{Stdout: numbered(t, 0, n), Stderr: numbered(t, 0, n)}
	expect.That(t, err == nil && reflect.DeepEqual(out, want), "got %d and %d bytes, %v; want %d", len(out.Stdout), len(out.Stderr), err, n)
}

func TestFault_F23_OnlyTheGivenEnvironment(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
	req := scripted(t, "env")
	req.Env = append(req.Env, "CNI_COMMAND=ADD")
	out, err := Run(context.Background(), req, Limits{})
	want := strings.Join(req.Env, "\n") + "\n"
	expect.That(t, err == nil && string(out.Stdout) == want, "got %q, %v; want %q", out.Stdout, err, want)
	out, err = Run(context.Background(), Request{Path: "/usr/bin/env"}, Limits{})
	expect.That(t, err == nil && len(out.Stdout) == 0, "an empty environment became %q, %v", out.Stdout, err)
}

func TestDuty_R43_StderrIsKeptAndBounded(t *testing.T) {
	req := scripted(t, "err 80000; log no more addresses; exit 1")
	out, err := Run(context.Background(), req, Limits{Stderr: 1000})
	log := append(numbered(t, 0, 80_000), "no more addresses\n"...)
	want := Output{Stderr: log[len(log)-1000:]}
	expect.Same(t, "output", out, want)
	exit := new(ExitError)
	expect.That(t, errors.As(err, &exit), "got %v, want an ExitError", err)
}

// TestSomebodyElseReaps covers runtimes that ignore SIGCHLD or reap all
// children. The plugin's exit status is then unknown. That is an error, and the
// call does not hang.
func TestSomebodyElseReaps(t *testing.T) {
	out, err := Run(context.Background(), scripted(t, "autoreap"), Limits{})
	want := `"hello\n" true`
	expect.That(t, err == nil && string(out.Stdout) == want, "got %s, %v, %s; want %s", out.Stdout, err, out.Stderr, want)
}

func TestManyAtOnce(t *testing.T) {
	noLeak(t)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			req := scripted(t, "cat")
			req.Stdin = fmt.Appendf(nil, "%d", i)
			out, err := Run(context.Background(), req, Limits{})
			expect.That(t, err == nil && bytes.Equal(out.Stdout, req.Stdin), "got %q, %v; want %q", out.Stdout, err, req.Stdin)
		})
	}
	wg.Wait()
}
