package invoke

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

// The scripted plugin: this test binary runs scriptEnv statement by statement
// instead of tests. markEnv identifies the processes of one test, children
// included.
const (
	scriptEnv = "EMBEDCNI_PLUGIN_SCRIPT"
	markEnv   = "EMBEDCNI_PLUGIN_MARK"
	// The race detector would delay each process by a second at its exit.
	raceEnv = "GORACE=atexit_sleep_ms=0"
)

func TestMain(m *testing.M) {
	if script, ok := os.LookupEnv(scriptEnv); ok {
		for _, statement := range strings.Split(script, ";") {
			verb, arg, _ := strings.Cut(strings.TrimSpace(statement), " ")
			perform(verb, arg)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func perform(verb, arg string) {
	switch verb {
	case "":
	case "out", "err": // so many bytes, numbered so that a loss shows
		n, err := strconv.Atoi(arg)
		check(err)
		print := os.Stdout
		if verb == "err" {
			print = os.Stderr
		}
		check(expect.Err(io.Copy(print, io.LimitReader(newNumbers(), int64(n)))))
	case "say":
		fmt.Println(arg)
	case "log":
		fmt.Fprintln(os.Stderr, arg)
	case "exit":
		code, err := strconv.Atoi(arg)
		check(err)
		os.Exit(code)
	case "kill": // itself
		check(syscall.Kill(os.Getpid(), syscall.SIGKILL))
		hang()
	case "hang":
		hang()
	case "stubborn":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	case "fork": // a child that hangs with our stdout, stderr and stdin
		fork("hang")
	case "ready": // inform the test through an inherited file
		check(expect.Err(os.NewFile(3, "ready").Write([]byte{'!'})))
	case "cat":
		check(expect.Err(io.Copy(os.Stdout, os.Stdin)))
	case "fd3":
		check(expect.Err(io.Copy(os.Stdout, os.NewFile(3, "fd3"))))
	case "env":
		fmt.Println(strings.Join(os.Environ(), "\n"))
	case "netns":
		link, err := os.Readlink("/proc/self/ns/net")
		check(err)
		fmt.Print(link)
	case "group":
		fmt.Print(syscall.Getpgrp() == os.Getpid())
	case "autoreap":
		autoreap()
	default:
		check(fmt.Errorf("unknown verb %q", verb))
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(99)
	}
}

func hang() {
	for {
		time.Sleep(time.Hour)
	}
}

func fork(script string) {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), scriptEnv+"="+script)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	check(c.Start())
}

// autoreap runs a runtime whose children the kernel reaps by itself.
func autoreap() {
	signal.Ignore(syscall.SIGCHLD)
	exe, err := os.Executable()
	check(err)
	out, err := Run(context.Background(), Request{Path: exe, Env: []string{scriptEnv + "=say hello", raceEnv}}, Limits{})
	fmt.Printf("%q %v", out.Stdout, errors.Is(err, syscall.ECHILD))
}

// numberedLines is the number of different lines before the stream repeats
// itself: a prime, so that a loss of a whole buffer is noticed.
const numberedLines = 10_007

// numbers is an endless stream of lines of 8 bytes.
type numbers struct {
	period []byte
	at     int
}

func newNumbers() *numbers {
	r := &numbers{}
	for i := range numberedLines {
		r.period = fmt.Appendf(r.period, "%07d\n", i)
	}
	return r
}

func (r *numbers) Read(p []byte) (int, error) {
	n := copy(p, r.period[r.at:])
	r.at = (r.at + n) % len(r.period)
	return n, nil
}

// numbered returns the output of "out" and "err" between two offsets.
func numbered(t *testing.T, from, to int) []byte {
	t.Helper()
	r := newNumbers()
	r.at = from % len(r.period)
	return expect.Value(io.ReadAll(io.LimitReader(r, int64(to-from))))(t)
}

// scripted returns a request to the scripted plugin. At the test's end this
// process must have no leftovers of it, and leftover processes are killed.
func scripted(t *testing.T, script string) Request {
	t.Helper()
	exe := expect.Value(os.Executable())(t)
	mark := fmt.Sprintf("%s=%s-%d", markEnv, t.Name(), time.Now().UnixNano())
	t.Cleanup(func() {
		for _, pid := range survivors(t, mark) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return Request{Path: exe, Env: []string{scriptEnv + "=" + script, mark, raceEnv}}
}

// survivors returns the living processes of a request.
func survivors(t *testing.T, mark string) []int {
	t.Helper()
	environs := expect.Value(filepath.Glob("/proc/[0-9]*/environ"))(t)
	var pids []int
	for _, file := range environs {
		env, err := os.ReadFile(file) // fails, or is empty, after the process has ended
		if err != nil || !bytes.Contains(env, []byte(mark)) {
			continue
		}
		pids = append(pids, expect.Value(strconv.Atoi(filepath.Base(filepath.Dir(file))))(t))
	}
	return pids
}

func noSurvivors(t *testing.T, req Request) {
	t.Helper()
	expect.Empty(t, "processes still alive", survivors(t, req.Env[1]))
}

// noLeak fails the test if goroutines or file descriptors are left at its end.
func noLeak(t *testing.T) {
	t.Helper()
	r, w, err := os.Pipe() // the first one opens files that Go's runtime keeps
	expect.NoError(t, err)
	r.Close()
	w.Close()
	goroutines, fds := runtime.NumGoroutine(), openFiles(t)
	t.Cleanup(func() {
		expect.Eventually(t, "no goroutine left", func() bool { return runtime.NumGoroutine() <= goroutines })
		n := openFiles(t)
		expect.That(t, n <= fds, "%d files open, %d before", n, fds)
	})
}

func openFiles(t *testing.T) int {
	t.Helper()
	return len(expect.Value(os.ReadDir("/proc/self/fd"))(t))
}

// whenReady calls f when the plugin performs "ready". It returns the file that
// the plugin must inherit.
func whenReady(t *testing.T, f func()) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	expect.NoError(t, err)
	over := make(chan struct{})
	go func() {
		defer close(over)
		if n, _ := r.Read(make([]byte, 1)); n == 1 {
			f()
		}
	}()
	t.Cleanup(func() { w.Close(); r.Close(); <-over })
	return w
}

// allocated returns the number of bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
