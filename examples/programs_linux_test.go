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
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/netns"
)

// Variables of the environment. The first has the directory of the built programs. The
// second makes this test binary the program that is run: it answers HTTP at the address.
const (
	builtVariable = "EXAMPLES_BUILT"
	serveVariable = "EXAMPLES_SERVE"
)

// programs are the programs that need arguments. The others have tests beside them.
var programs = []string{"./allocrunner", "./inspector", "./reconciler", "./thick/daemon", "./thick/shim"}

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
		out, err := exec.Command("go", append([]string{"build", "-o", dir}, programs...)...).CombinedOutput()
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

// exitCode waits for the end of a program.
func (p *program) exitCode(t *testing.T) int {
	t.Helper()
	if err := p.Wait(); err != nil && p.ProcessState == nil {
		t.Fatal(err)
	}
	return p.ProcessState.ExitCode()
}

// get returns the answer at an address.
func get(t *testing.T, url string) string {
	t.Helper()
	return getFrom(t, "/proc/self/ns/net", url)
}

// getFrom returns the answer at an address, asked in a network namespace. The program there may
// not listen yet: then the connection is refused, and it is tried again.
func getFrom(t *testing.T, path, url string) (body string) {
	t.Helper()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = netns.Do(path, func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}}
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

// trace lists all that a program may change: what containers share too, such as a bridge, and
// processes, but not the descriptors of this one.
func trace(t *testing.T) []string {
	t.Helper()
	lines := expect.Value(audit.Snapshot(context.Background(), audit.Options{
		StateDirs: []string{"/run", "/var/lib"}, NetNSDirs: []string{"/run/netns"}, Complete: true,
	}))(t)
	return lines.Without(func(line string) bool { return strings.HasPrefix(line, "fd ") })
}

// leavesNoTrace has the test fail if it changes anything on the host, on which iproute2 has made
// its directory.
func leavesNoTrace(t *testing.T) {
	t.Helper()
	expect.NoError(t, os.MkdirAll("/run/netns", 0o755))
	before := trace(t)
	t.Cleanup(func() {
		if leak := cnitest.Diff(before, trace(t)); leak != "" {
			t.Errorf("left:\n%s", leak)
		}
	})
}

// leavesNothing has the test fail if it leaves anything of a container on the host.
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
