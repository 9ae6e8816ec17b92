package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/sandbox"
)

// TestMain makes a machine that the tests may inspect: a sandbox, in which the program
// makes its own. The clients that a test starts are the test binary.
func TestMain(m *testing.M) {
	unix.Umask(0o022)
	if isPlugin() || len(os.Args) > 1 && os.Args[1] == "client" {
		main()
		os.Exit(0)
	}
	os.Exit(sandbox.Main(m, sandbox.Before(func() ([]string, error) {
		return []string{fmt.Sprintf("%s=%d", userVariable, os.Geteuid())}, nil
	})))
}

const userVariable = "ALLOCRUNNER_TEST_USER"

// asRoot skips a test that cannot make cgroups.
func asRoot(t *testing.T) {
	t.Helper()
	if os.Getenv(userVariable) != "0" {
		t.Skip("containers need cgroups, and so root on the machine")
	}
}

// wantSameMachine fails if links, rules, namespaces, processes, files below /run and
// /var/lib or this program's cgroups change during the test.
func wantSameMachine(t *testing.T) {
	t.Helper()
	look := func() audit.Lines {
		lines, err := audit.Snapshot(context.Background(), audit.Options{StateDirs: []string{"/run", "/var/lib"}})
		if err != nil {
			t.Fatal(err)
		}
		return append(lines, cgroups("embedcni-allocrunner*")...)
	}
	before := look()
	t.Cleanup(func() {
		if added, gone := audit.Diff(before, look()); len(added)+len(gone) > 0 {
			t.Errorf("on the machine, new:\n%s\ngone:\n%s", strings.Join(added, "\n"), strings.Join(gone, "\n"))
		}
	})
}

// build builds the program, and returns its path.
func build(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "allocrunner")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return program
}

// TestAllocrunner runs the program from start to end, with the cgroups as they are
// mounted here, and as on a host with cgroup v2 alone.
func TestAllocrunner(t *testing.T) {
	asRoot(t)
	program := build(t)
	t.Run("cgroups as mounted", func(t *testing.T) {
		if made := runProgram(t, exec.CommandContext(t.Context(), program)); len(made) == 0 {
			t.Error("no cgroup was seen")
		}
	})
	t.Run("cgroup v2 alone", func(t *testing.T) {
		dir := cgroup2(t)
		if dir == "/sys/fs/cgroup" {
			t.Skip("that is how they are mounted here")
		}
		script := `mount --no-mtab --bind "$1" /sys/fs/cgroup && exec "$0"`
		made := runProgram(t, exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", "sh", "-c", script, program, dir))
		for _, line := range made {
			if !strings.HasPrefix(line, "cgroup "+dir+"/embedcni-allocrunner-") {
				t.Errorf("it made %s outside %s", line, dir)
			}
		}
		if len(made) != 5 { // of the program, and of each allocation
			t.Errorf("cgroups %q", made)
		}
	})
}

// cgroup2 returns the directory at which the hierarchy of cgroup v2 is mounted.
func cgroup2(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); strings.Contains(line, " - cgroup2 ") && f[3] == "/" {
			return f[4]
		}
	}
	t.Skip("cgroup v2 is not mounted on this machine")
	return ""
}

// runProgram runs the program, compares its output, and returns the cgroups that it has
// had.
func runProgram(t *testing.T, cmd *exec.Cmd) (made audit.Lines) {
	t.Helper()
	wantSameMachine(t)
	var stdout, stderr strings.Builder
	cmd.Stderr = &stderr
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		fmt.Fprintln(&stdout, lines.Text())
		// At each line, as the program goes on while the test looks.
		made = append(made, cgroups("embedcni-allocrunner*")...)
	}
	slices.Sort(made)
	made = slices.Compact(made)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, &stderr)
	}
	for _, want := range []string{
		"web-0: runs at 10.90.0.", "api-0: runs at 10.90.0.", "http on host port 8080", // its primary address is on the first network
		"api-0 answers on host port 8080\n", "shop-0: was not attached completely", "web-0: adopted at", "api-0: adopted at",
		"web-1: stopped, since its task is gone", "ready: 4 allocations run",
		"guard: repaired container api-0", "api-0 answers on host port 8080 again",
		`plugin type="tenant" failed (delete): failed to find plugin "tenant"`, "shop-0: cleaned up eth0 of tenants",
		"left of all containers: nothing",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %q in\n%s", want, &stdout)
		}
	}
	for line := range strings.Lines(stdout.String()) {
		if strings.Contains(line, "does not answer") && strings.Contains(line, "context canceled") {
			t.Errorf("a question that the end has cut short counts as failed: %s", line)
		}
	}
	return made
}

func TestAllocrunnerWantsRoot(t *testing.T) {
	asRoot(t)
	program := build(t)
	for dir := filepath.Dir(program); dir != "/tmp"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if want := "allocrunner: run it as root, because the containers need cgroups\n"; err == nil || string(out) != want {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
}

// stage is a show without a story.
type stage struct {
	*show
	t *testing.T
}

func newStage(t *testing.T, jobs string) *stage {
	t.Helper()
	s := &show{out: io.Discard, dir: t.TempDir(), cgroup: fmt.Sprintf("embedcni-allocrunner-test-%d", os.Getpid())}
	if testing.Verbose() {
		s.out = os.Stdout
	}
	if err := s.prepare(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.jobsFile(), []byte(jobs), 0o644); err != nil {
		t.Fatal(err)
	}
	s.reaper = newReaper()
	t.Cleanup(s.reaper.stop)
	return &stage{s, t}
}

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestRestartAfterKill: clients are killed at random moments, between which containers
// die. Each next one adopts what runs, and in the end everything runs once and answers.
func TestRestartAfterKill(t *testing.T) {
	asRoot(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := newStage(t, string(exampleJobs))
	ctx := t.Context()
	before, err := s.audit(ctx)
	s.must(err)
	t.Cleanup(func() {
		if s.client != nil && t.Failed() {
			if err := s.rescue(); err != nil {
				t.Error(err)
			}
		}
		if err := s.leftovers(context.Background(), before); err != nil {
			t.Error(err)
		}
	})
	all, err := parseJobs(exampleJobs)
	s.must(err)
	r := runc{dir: s.dir, cgroup: s.cgroup}
	for range 8 {
		s.must(s.begin())
		<-time.After(time.Duration(random.Int64N(int64(1500 * time.Millisecond))))
		s.must(s.client.kill())
		if a := all[random.IntN(len(all))]; random.IntN(2) == 0 {
			// An error: it does not run at that moment.
			_ = s.reaper.output(r.command(ctx, "kill", a.ID, "KILL"))
		}
	}
	s.must(s.begin())
	s.must(s.client.await(ctx, "ready: 4 allocations run"))
	c, err := newClient(s.dir, s.jobsFile(), s.cgroup, io.Discard, nil)
	s.must(err)
	var tasks map[string]task
	s.must(s.reaper.alone(func() (err error) { tasks, err = r.list(ctx); return err }))
	seen := map[int32]int{}
	for _, a := range all {
		s.must(awaitNil(ctx, func() error { return c.health(ctx, a) }))
		if tasks[a.ID].Status != "running" {
			t.Errorf("%s: %+v", a.ID, tasks[a.ID])
		}
		result, err := c.rt.Lookup(a.ID)
		s.must(err)
		for _, p := range result.Requested {
			seen[p.HostPort]++
			if isDynamic := p.HostPort >= 20000 && p.HostPort < 30000; !isDynamic && p.HostPort != 8080 || seen[p.HostPort] > 1 {
				t.Errorf("%s: %s is port %d", a.ID, p.Label, p.HostPort)
			}
		}
		if admin, ok := result.Port("admin"); ok != (a.ID == "api-0") || ok && admin.ContainerPort != 80 {
			t.Errorf("%s: port admin is %+v", a.ID, admin)
		}
	}
	if len(tasks) != len(all) {
		t.Errorf("tasks %v", tasks)
	}
	attached, err := c.rt.Attachments()
	s.must(err)
	var names []string
	for _, a := range attached {
		if a.IfName != "lo" {
			names = append(names, a.ContainerID+" "+a.IfName+" "+a.Network)
		}
	}
	slices.Sort(names)
	if got, want := strings.Join(names, ", "), "api-0 eth0 services, api-0 eth1 backplane, shop-0 eth0 tenants, web-0 eth0 services, web-1 eth0 services"; got != want {
		t.Errorf("attached: %s, want %s", got, want)
	}
	s.must(s.client.signal(endSignal))
	s.must(s.client.wait(ctx))
}

// TestAnAllocationThatCannotStartLeavesNothing: its program does not exist, does not
// answer, or its network is not loaded. The others run.
func TestAnAllocationThatCannotStartLeavesNothing(t *testing.T) {
	asRoot(t)
	s := newStage(t, `{"jobs": [
		{"name": "good", "count": 1, "networks": ["services"], "ports": [{"label": "http", "map": ":80"}], "args": ["httpd", "-f", "-p", "80", "-h", "/www"]},
		{"name": "missing", "count": 1, "networks": ["services"], "args": ["no-such-program"]},
		{"name": "lost", "count": 1, "networks": ["elsewhere"], "args": ["sleep", "600"]}]}`)
	before, err := s.audit(t.Context())
	s.must(err)
	s.must(s.begin())
	s.must(s.client.awaitAll(t.Context(), "good-0: runs at", "missing-0: stopped, since it did not start", "not as wanted: "))
	s.must(s.client.signal(endSignal))
	s.must(s.client.wait(t.Context()))
	if left := cgroups(s.cgroup); len(left) > 0 {
		t.Errorf("the client has left %q", left)
	}
	s.must(s.leftovers(t.Context(), before))
}
