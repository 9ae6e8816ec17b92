package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// wantRun is the output of a run, without numbers that differ.
const wantRun = `containerd VERSION serves at /run/faas/containerd.sock
network "functions" is in /run/faas/net.d/10-functions.conflist
image example.org/functions/echo:latest of N bytes is imported
deploy echo with 1 replica (TIME)
    echo-1 is container echo-1-PID with ADDRESS
    GET /function/echo, 2×: to=you from echo-1
scale echo to 10 (TIME)
    echo-1 is container echo-1-PID with ADDRESS
    echo-2 is container echo-2-PID with ADDRESS
    echo-3 is container echo-3-PID with ADDRESS
    echo-4 is container echo-4-PID with ADDRESS
    echo-5 is container echo-5-PID with ADDRESS
    echo-6 is container echo-6-PID with ADDRESS
    echo-7 is container echo-7-PID with ADDRESS
    echo-8 is container echo-8-PID with ADDRESS
    echo-9 is container echo-9-PID with ADDRESS
    echo-10 is container echo-10-PID with ADDRESS
    GET /function/echo, 2×: to=you from echo-1
    GET /function/echo, 2×: to=you from echo-10
    GET /function/echo, 2×: to=you from echo-2
    GET /function/echo, 2×: to=you from echo-3
    GET /function/echo, 2×: to=you from echo-4
    GET /function/echo, 2×: to=you from echo-5
    GET /function/echo, 2×: to=you from echo-6
    GET /function/echo, 2×: to=you from echo-7
    GET /function/echo, 2×: to=you from echo-8
    GET /function/echo, 2×: to=you from echo-9
the task of echo-3 is killed behind our back (TIME)
delete echo-3: its process and its namespace are gone, its record is not (TIME)
    GET /function/echo, 2×: to=you from echo-1
    GET /function/echo, 2×: to=you from echo-10
    GET /function/echo, 2×: to=you from echo-2
    GET /function/echo, 2×: to=you from echo-4
    GET /function/echo, 2×: to=you from echo-5
    GET /function/echo, 2×: to=you from echo-6
    GET /function/echo, 2×: to=you from echo-7
    GET /function/echo, 2×: to=you from echo-8
    GET /function/echo, 2×: to=you from echo-9
scale echo to 0 (TIME)
    GET /function/echo: 503 Service Unavailable
delete echo (TIME)
left of the functions: nothing
`

const nothingLeft = "left of the functions: nothing\n"

// plain replaces the numbers that differ between runs.
func plain(output string) string {
	for _, r := range []struct{ what, by string }{
		{`containerd \S+ serves`, "containerd VERSION serves"}, {`of \d+ bytes`, "of N bytes"}, {`\([\d.µms]+\)\n`, "(TIME)\n"},
		{`(container echo-\d+)-\d+`, "$1-PID"}, {`with \d+\.\d+\.\d+\.\d+\n`, "with ADDRESS\n"},
	} {
		output = regexp.MustCompile(r.what).ReplaceAllString(output, r.by)
	}
	return output
}

// programVariable makes the test binary the program.
const programVariable = "EMBEDCNI_FAAS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		os.Exit(run())
	}
	os.Exit(m.Run())
}

// program returns the program as a command.
func program() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), programVariable+"=1")
	return cmd
}

// machine lists what the program must not change: mounts, interfaces, cgroups, processes
// of containerd, and the directories that they use.
func machine(t *testing.T) string {
	t.Helper()
	var lines []string
	for _, file := range []string{"/proc/self/mountinfo", "/proc/net/dev_mcast"} {
		data := expect.Value(os.ReadFile(file))(t)
		lines = append(lines, string(data))
	}
	for _, pattern := range []string{
		"/sys/fs/cgroup/" + cgroup, "/sys/fs/cgroup/*/" + cgroup, "/sys/class/net/*", "/run/containerd*", "/run/faas*", "/run/netns/*",
		"/var/lib/containerd*", "/var/lib/cni*", "/etc/cni*", "/run/xtables.lock",
	} {
		found := expect.Value(filepath.Glob(pattern))(t)
		lines = append(lines, found...)
	}
	names := expect.Value(filepath.Glob("/proc/[0-9]*/comm"))(t)
	for _, name := range names {
		comm, err := os.ReadFile(name)
		if err == nil && strings.HasPrefix(string(comm), "containerd") {
			lines = append(lines, string(comm))
		}
	}
	return strings.Join(lines, "\n")
}

// runProgram starts the program and, once it has printed a line that begins so, sends it the
// signal. It returns the output and the exit code.
func runProgram(t *testing.T, line string, sig syscall.Signal) (stdout, stderr string, code int) {
	t.Helper()
	cmd := program()
	return follow(t, cmd, line, func() {
		if err := cmd.Process.Signal(sig); err != nil {
			t.Error(err)
		}
	})
}

// follow starts the program, and calls do at a line that begins so.
func follow(t *testing.T, cmd *exec.Cmd, line string, do func()) (stdout, stderr string, code int) {
	t.Helper()
	var errs bytes.Buffer
	cmd.Stderr = &errs
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	r := bufio.NewReader(pipe)
	for {
		text, err := r.ReadString('\n')
		out.WriteString(text)
		if line != "" && strings.HasPrefix(text, line) {
			do()
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// unified is the program on a host with cgroup v2 alone: a mount namespace in which that
// covers the machine's cgroups.
func unified() *exec.Cmd {
	script := `mount --no-mtab -t cgroup2 none /sys/fs/cgroup && exec "$0"`
	self := fmt.Sprintf("/proc/%d/exe", os.Getpid())
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", script, self)
	cmd.Env = program().Env
	return cmd
}

// cgroup2 returns the directory at which cgroup v2 is mounted, if it is.
func cgroup2(t *testing.T) string {
	t.Helper()
	mounts := expect.Value(os.ReadFile("/proc/self/mountinfo"))(t)
	for _, line := range strings.Split(string(mounts), "\n") {
		if f := strings.Fields(line); strings.Contains(line, " - cgroup2 ") && f[3] == "/" {
			return f[4]
		}
	}
	return ""
}

// TestFaas runs the program from start to end, with the cgroups as they are mounted here,
// and then as on a host with cgroup v2 alone.
func TestFaas(t *testing.T) {
	before := machine(t)
	for _, cmd := range []*exec.Cmd{program(), unified()} {
		var made []string
		stdout, stderr, code := follow(t, cmd, "    echo-10 is container", func() {
			var err error
			if made, err = findCgroup(); err != nil {
				t.Error(err)
			}
		})
		if got := plain(stdout); got != wantRun || stderr != "" || code != 0 {
			t.Errorf("exit code %d, stderr %q, got\n%s\nwant\n%s", code, stderr, got, wantRun)
		}
		switch dir := cgroup2(t); {
		case cmd.Args[0] != "unshare" || dir == "": // without a mount here the cgroup cannot be seen
			t.Logf("cgroups %q", made)
		case !slices.Equal(made, []string{filepath.Join(dir, cgroup)}):
			t.Errorf("cgroups %q, want one in %s", made, dir)
		}
		if after := machine(t); after != before {
			t.Errorf("the machine was\n%s\nand is\n%s", before, after)
		}
	}
}

// TestInterrupted: everything is undone, whatever was under way.
func TestInterrupted(t *testing.T) {
	before := machine(t)
	for _, line := range []string{"containerd ", "image ", "deploy ", "    echo-1 "} {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			stdout, stderr, code := runProgram(t, line, sig)
			if code != 1 || !strings.HasSuffix(stdout, nothingLeft) || !strings.Contains(stderr, "context canceled") {
				t.Errorf("%v at %q: exit code %d, stderr %q, stdout\n%s", sig, line, code, stderr, stdout)
			}
			if after := machine(t); after != before {
				t.Errorf("%v at %q: the machine was\n%s\nand is\n%s", sig, line, before, after)
			}
		}
	}
}

// TestKilled: the kernel ends everything in the namespaces, and the next run removes the
// cgroup.
func TestKilled(t *testing.T) {
	before := machine(t)
	for _, line := range []string{"deploy ", "scale echo to 10"} {
		if stdout, _, _ := runProgram(t, line, syscall.SIGKILL); strings.Contains(stdout, nothingLeft) {
			t.Errorf("it was not killed:\n%s", stdout)
		}
		stdout, stderr, code := runProgram(t, "", 0)
		if plain(stdout) != wantRun || code != 0 {
			t.Errorf("the next run: exit code %d, stderr %q, stdout\n%s", code, stderr, stdout)
		}
		if after := machine(t); after != before {
			t.Errorf("the machine was\n%s\nand is\n%s", before, after)
		}
	}
}

func TestNeedsRoot(t *testing.T) {
	cmd := program()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if want := "faas: containerd needs root\n"; cmd.ProcessState.ExitCode() != 1 || string(out) != want {
		t.Errorf("exit code %d, %q, want %q", cmd.ProcessState.ExitCode(), out, want)
	}
}

// TestNeedsAStaticBusybox: another one would not run in the image.
func TestNeedsAStaticBusybox(t *testing.T) {
	for path, static := range map[string]bool{"/bin/busybox": true, "/bin/ls": false, "/etc/passwd": false} {
		data := expect.Value(os.ReadFile(path))(t)
		if err := isStatic(data); (err == nil) != static {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestNeedsPackages: without a package the error names all of them.
func TestNeedsPackages(t *testing.T) {
	cmd := program()
	cmd.Env = append(slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "PATH=") }), "PATH=/nonexistent")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if want := "apt-get install containerd runc busybox-static nftables"; cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), want) {
		t.Errorf("exit code %d, %q, want %q", cmd.ProcessState.ExitCode(), out, want)
	}
}
