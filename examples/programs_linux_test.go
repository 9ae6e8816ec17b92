// Package examples contains only tests, of the small programs in the directories below.
package examples

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
)

// Variables of the environment. The first has the directory of the built programs. The
// second makes this test binary the program that is run: it answers HTTP at the address.
const (
	builtVariable = "EXAMPLES_BUILT"
	serveVariable = "EXAMPLES_SERVE"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(serveVariable); addr != "" {
		fmt.Fprintln(os.Stderr, http.ListenAndServe(addr, http.HandlerFunc(answer)))
		os.Exit(1)
	}
	dir, err := os.MkdirTemp("", "examples")
	if err != nil {
		panic(err)
	}
	code := refplugins.Main(m, sandbox.Before(func() ([]string, error) {
		out, err := exec.Command("go", "build", "-o", dir, "./allocrunner", "./thick/daemon", "./thick/shim").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("go build: %w\n%s", err, out)
		}
		return []string{builtVariable + "=" + dir}, err
	}))
	os.RemoveAll(dir)
	os.Exit(code)
}

// answer says at which address it was asked.
func answer(w http.ResponseWriter, r *http.Request) {
	host, _, _ := net.SplitHostPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
	io.WriteString(w, host) // a failed write is a wrong answer in the test
}

// program is a running program of which each line of output is read.
type program struct {
	*exec.Cmd
	lines chan string
	log   string // of the lines that were asked for
}

// start starts a program with further variables.
func start(t *testing.T, variables []string, name string, args ...string) *program {
	t.Helper()
	p := &program{Cmd: exec.Command(filepath.Join(os.Getenv(builtVariable), name), args...), lines: make(chan string, 10000)}
	p.Env = append(os.Environ(), variables...)
	r, w, err := os.Pipe()
	expect.NoError(t, err)
	p.Stdout, p.Stderr = w, w
	expect.NoError(t, p.Start())
	expect.NoError(t, w.Close())
	go func() {
		defer close(p.lines)
		defer r.Close()
		for s := bufio.NewScanner(r); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		if p.ProcessState == nil {
			p.end(t, unix.SIGKILL)
		}
	})
	return p
}

// next returns the next line, or none at the end.
func (p *program) next(t *testing.T, wait string) (line string, ok bool) {
	t.Helper()
	select {
	case line, ok = <-p.lines:
	case <-time.After(expect.Patience):
		t.Fatalf("%s has not written %s:\n%s", p.Path, wait, p.log)
	}
	if ok {
		t.Log(line)
		p.log += line + "\n"
	}
	return line, ok
}

// find waits for a line, and returns the matches of the expression's groups.
func (p *program) find(t *testing.T, expression string) []string {
	t.Helper()
	for {
		line, ok := p.next(t, expression)
		if !ok {
			t.Fatalf("%s has ended without a line %q:\n%s", p.Path, expression, p.log)
		}
		if found := regexp.MustCompile(expression).FindStringSubmatch(line); found != nil {
			return found[1:]
		}
	}
}

// whole returns the log of a program that has ended, and with it all that it has started.
func (p *program) whole(t *testing.T) string {
	t.Helper()
	for ok := true; ok; {
		_, ok = p.next(t, "its last line: a process that it has started goes on")
	}
	return p.log
}

// end sends a signal, and returns the exit code.
func (p *program) end(t *testing.T, signal unix.Signal) int {
	t.Helper()
	expect.NoError(t, p.Process.Signal(signal))
	if err := p.Wait(); err != nil {
		t.Log(err)
	}
	return p.ProcessState.ExitCode()
}

// get returns the answer at an address. The program there may not listen yet: then the
// connection is refused, and it is tried again.
func get(t *testing.T, url string) (body string) {
	t.Helper()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	expect.Eventually(t, "an answer at "+url, func() bool {
		response, err := client.Get(url)
		if err != nil {
			return false
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		body = string(text)
		return err == nil && response.StatusCode == http.StatusOK
	})
	return body
}

// leavesNothing has the test fail if it leaves anything on the host.
func leavesNothing(t *testing.T, dirs ...string) {
	t.Helper()
	audit := func() []string {
		return expect.Value(cnitest.Audit(context.Background(), cnitest.Options{StateDirs: append(dirs, "/var/lib/cni")}))(t)
	}
	before := audit()
	t.Cleanup(func() {
		if leak := cnitest.Diff(before, audit()); leak != "" {
			t.Errorf("left:\n%s", leak)
		}
	})
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	expect.NoError(t, err)
	return path
}

// childrenOf returns the processes that a process has started.
func childrenOf(t *testing.T, pid int) (all []int) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	expect.NoError(t, err)
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		expect.NoError(t, err)
		for _, field := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(field)
			expect.NoError(t, err)
			all = append(all, child)
		}
	}
	if len(all) == 0 {
		t.Fatalf("process %d has no children", pid)
	}
	return all
}

// TestMistakesAreRefused, and leave nothing.
func TestMistakesAreRefused(t *testing.T) {
	leavesNothing(t)
	p := start(t, nil, "allocrunner")
	p.find(t, "no such file")
	expect.Fails(t, "allocrunner without jobs has succeeded", p.Wait())
}

func TestAllocrunner(t *testing.T) {
	leavesNothing(t)
	dir := t.TempDir()
	jobs := filepath.Join(dir, "jobs.json")
	text := fmt.Sprintf(`[{"ID": "web", "Program": [%q], "Ports": [{"Label": "HTTP", "ContainerPort": 80}]}]`, self(t))
	expect.NoError(t, os.WriteFile(jobs, []byte(text), 0o600))
	serves := []string{serveVariable + "=:80"}
	p := start(t, serves, "allocrunner", jobs)
	found := p.find(t, `job web at (\S+) with ports \[(\d+):80\]`)
	url := "http://10.61.0.1:" + found[1]
	expect.Same(t, "answer", get(t, url), found[0])
	p.end(t, unix.SIGKILL)

	// The next one goes on with the job, and repairs its network.
	expect.NoError(t, exec.Command("nft", "flush", "ruleset").Run())
	p = start(t, serves, "allocrunner", jobs)
	p.find(t, `job web goes on: its network is broken`)
	expect.Same(t, "answer", get(t, url), found[0])
	p.end(t, unix.SIGKILL)

	// The job ends while nobody looks. The next one starts it anew.
	before := childrenOf(t, os.Getpid()) // the orphans are this process's
	for _, pid := range before {
		expect.NoError(t, unix.Kill(pid, unix.SIGKILL))
	}
	p = start(t, serves, "allocrunner", jobs)
	found = p.find(t, `job web at (\S+) with ports \[(\d+):80\]`)
	expect.Same(t, "answer", get(t, "http://10.61.0.1:"+found[1]), found[0])
	p.end(t, unix.SIGKILL)

	// The job is no longer in the file: its network goes. Its program ends here.
	job := childrenOf(t, os.Getpid())
	expect.NoError(t, os.WriteFile(jobs, []byte("[]"), 0o600))
	p = start(t, nil, "allocrunner", jobs)
	expect.NoError(t, p.Wait())
	for _, pid := range job {
		expect.NoError(t, unix.Kill(pid, unix.SIGKILL))
	}
}
