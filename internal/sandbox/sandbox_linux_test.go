package sandbox_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/netns"
)

// The test binary is its own scripted program: with this variable it runs the
// named action in its own sandbox instead of the tests.
const script = "EMBEDCNI_SANDBOX_TEST"

func TestMain(m *testing.M) {
	if what := os.Getenv(script); what != "" {
		os.Exit(program(what))
	}
	os.Exit(sandbox.Main(m, sandbox.Before(func() ([]string, error) {
		id, err := netns.CurrentID()
		return []string{"TEST_OUTER_NETNS=" + id.String()}, err
	})))
}

func program(what string) int {
	opts := []sandbox.Option{sandbox.Before(func() ([]string, error) {
		if what == "unprepared" {
			return nil, errors.New("no plugins")
		}
		return nil, nil
	})}
	if what == "orphan" {
		opts = append(opts, sandbox.OrphansOutside())
	}
	inside, code, err := sandbox.Reexec(opts...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return code
	}
	if !inside {
		return code
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT)
	fmt.Printf("pid %d args %q\n", os.Getpid(), os.Args[1:])
	switch what {
	case "exit":
		return 42
	case "panic":
		panic("scripted")
	case "orphan":
		return orphan()
	case "kill":
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	fmt.Printf("got %v\n", <-signals)
	return 3
}

// orphan leaves a process behind, and returns 0 when the outer process has
// adopted it and, after its end, waited for it.
func orphan() int {
	cmd := exec.Command("sh", "-c", "read line </dev/fd/3 & echo $!")
	held, hold, err := os.Pipe()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd.ExtraFiles = []*os.File{held}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var pid, parent int
	err = cmd.Start()
	if err == nil {
		_, err = fmt.Fscan(out, &pid)
	}
	if err == nil {
		err = cmd.Wait()
	}
	stat, rerr := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err := errors.Join(err, rerr, hold.Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if _, err := fmt.Sscan(strings.Fields(string(stat))[3], &parent); err != nil || parent != os.Getppid() {
		fmt.Fprintln(os.Stderr, "parent of the orphan:", parent, err)
		return 1
	}
	// No event tells that a process was reaped: a pidfd is readable when it has ended.
	for end := time.Now().Add(expect.Patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if err := unix.Kill(pid, 0); errors.Is(err, unix.ESRCH) {
			return 0
		}
	}
	fmt.Fprintln(os.Stderr, "the orphan stays")
	return 1
}

// scripted returns the command that runs the program.
func scripted(what string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), script+"="+what)
	return cmd
}

func TestInsideIsElsewhere(t *testing.T) {
	id := expect.Value(netns.CurrentID())(t)
	outer := os.Getenv("TEST_OUTER_NETNS")
	expect.That(t, outer != "" && outer != id.String(), "outside in %q, inside in %s", outer, id)
}

func TestInsideKnowsIt(t *testing.T) {
	expect.Same(t, "inside", sandbox.Inside(), true)
	t.Setenv("EMBEDCNI_SANDBOX_INSIDE", "mnt:[1]")
	expect.Same(t, "inside, with another sandbox's mark", sandbox.Inside(), false)
	expect.NoError(t, os.Unsetenv("EMBEDCNI_SANDBOX_INSIDE"))
	expect.Same(t, "inside, without a mark", sandbox.Inside(), false)
}

func TestInsideHasLoopbackOnlyAndUp(t *testing.T) {
	links := expect.Value(net.Interfaces())(t)
	var got []string
	for _, l := range links {
		got = append(got, fmt.Sprintf("%s up=%t", l.Name, l.Flags&net.FlagUp != 0))
	}
	expect.Same(t, "links", strings.Join(got, ", "), "lo up=true")
}

func TestInsideIsRootWithEmptyState(t *testing.T) {
	expect.Same(t, "user", os.Geteuid(), 0)
	for _, dir := range []string{"/run", "/var/lib"} {
		expect.Empty(t, dir, expect.Value(os.ReadDir(dir))(t))
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		expect.That(t, err == nil && st.Type == unix.TMPFS_MAGIC, "%s: file system %x, %v, want a tmpfs", dir, st.Type, err)
	}
}

func TestInsideSharesNoMount(t *testing.T) {
	text := expect.Value(os.ReadFile("/proc/self/mountinfo"))(t)
	for line := range strings.Lines(string(text)) {
		expect.That(t, !strings.Contains(line, " shared:") && !strings.Contains(line, " master:"), "propagates: %s", line)
	}
}

func TestInsideAdoptsOrphans(t *testing.T) {
	// The shell ends at once, and prints the number of the process that it
	// leaves behind.
	out := expect.Value(exec.Command("sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!").Output())(t)
	var pid int
	expect.Value(fmt.Sscan(string(out), &pid))(t)
	stat := expect.Value(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))(t)
	var parent int
	expect.Value(fmt.Sscan(strings.Fields(string(stat))[3], &parent))(t)
	expect.Same(t, "parent of the orphan", parent, os.Getpid())
	expect.NoError(t, unix.Kill(pid, unix.SIGKILL))
	expect.NoError(t, expect.Err(unix.Wait4(pid, nil, 0, nil)))
}

func TestExitCodeAndOutputPass(t *testing.T) {
	for what, want := range map[string]struct {
		code   int
		stderr string
	}{
		"exit":       {42, ""},
		"panic":      {2, "panic: scripted"},
		"kill":       {128 + 9, ""},
		"orphan":     {0, ""},
		"unprepared": {1, "error: prepare the sandbox: no plugins"},
	} {
		t.Run(what, func(t *testing.T) {
			var stderr strings.Builder
			cmd := scripted(what, "-x", "a b")
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			expect.Must(t, cmd.ProcessState != nil, "%v", err)
			expect.Same(t, "exit code", cmd.ProcessState.ExitCode(), want.code)
			expect.That(t, strings.HasPrefix(stderr.String(), want.stderr), "stderr %q, want %q", stderr.String(), want.stderr)
			args := `args ["-x" "a b"]`
			expect.That(t, want.code <= 1 || strings.Contains(string(out), args), "stdout %q, want %s", out, args)
		})
	}
}

// startWaiting starts a program that waits for a signal, and returns the inner
// process's number.
func startWaiting(t *testing.T) (cmd *exec.Cmd, out *bufio.Reader, inner int) {
	t.Helper()
	cmd = scripted("wait")
	pipe := expect.Value(cmd.StdoutPipe())(t)
	expect.NoError(t, cmd.Start())
	out = bufio.NewReader(pipe)
	line := expect.Value(out.ReadString('\n'))(t)
	expect.Value(fmt.Sscanf(line, "pid %d", &inner))(t)
	return cmd, out, inner
}

func TestSignalsPass(t *testing.T) {
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGQUIT} {
		cmd, out, _ := startWaiting(t)
		expect.NoError(t, cmd.Process.Signal(sig))
		expect.Same(t, "line", expect.Value(out.ReadString('\n'))(t), fmt.Sprintf("got %v\n", sig))
		_ = cmd.Wait() // the test checks the exit code
		expect.Same(t, fmt.Sprint(sig), cmd.ProcessState.ExitCode(), 3)
	}
}

func TestInnerDiesWithOuter(t *testing.T) {
	cmd, _, inner := startWaiting(t)
	expect.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	// The orphan is our child now: that we can wait for it is the proof.
	deadline := time.Now().Add(expect.Patience)
	for {
		pid, err := unix.Wait4(inner, nil, unix.WNOHANG, nil)
		if pid == inner {
			return
		}
		expect.Must(t, (err == nil || errors.Is(err, unix.ECHILD)) && !time.Now().After(deadline), "the inner process lives on: %v", err)
		time.Sleep(time.Millisecond)
	}
}

// TestStrayMarkerIsRefused: a marker that is set by mistake must not make the
// program mount over the machine's directories.
func TestStrayMarkerIsRefused(t *testing.T) {
	id := expect.Value(netns.CurrentID())(t)
	before := expect.Value(os.ReadFile("/proc/self/mountinfo"))(t)
	for name, marker := range map[string]string{
		"same network namespace": id.String(),
		"same mount namespace":   "1:1",
		"garbage":                "yes",
	} {
		cmd := scripted("exit")
		cmd.Env = append(cmd.Env, "EMBEDCNI_SANDBOX_OUTSIDE="+marker)
		out, _ := cmd.CombinedOutput() // the test checks the exit code
		got := cmd.ProcessState.ExitCode()
		expect.That(t, got == 1 && strings.Contains(string(out), "unset it"), "%s: exit code %d, output %q", name, got, out)
	}
	expect.Same(t, "mounts", string(expect.Value(os.ReadFile("/proc/self/mountinfo"))(t)), string(before))
}

// TestWithoutUserNamespaces uses a user namespace with a limit of zero, which
// behaves like a kernel that refuses them.
func TestWithoutUserNamespaces(t *testing.T) {
	const limit = "/proc/sys/user/max_user_namespaces"
	was := expect.Value(os.ReadFile(limit))(t)
	expect.NoError(t, os.WriteFile(limit, []byte("0"), 0))
	defer func() { expect.NoError(t, os.WriteFile(limit, was, 0)) }()
	t.Run("root does without", func(t *testing.T) {
		out, _ := scripted("exit").CombinedOutput() // exits with 42
		expect.That(t, strings.HasPrefix(string(out), "pid "), "output %q, want that of the inner process", out)
	})
	t.Run("others are told what to do", func(t *testing.T) {
		const nobody = 65534
		cmd := scripted("exit")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody, NoSetGroups: true}}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, unix.EINVAL) {
			t.Skip("there is no other user here, as these tests themselves are not run by root")
		}
		expect.Must(t, cmd.ProcessState != nil, "%v", err)
		expect.Same(t, "exit code", cmd.ProcessState.ExitCode(), 1)
		expect.Contains(t, "output", string(out), "error: start the sandbox: ", "kernel.apparmor_restrict_unprivileged_userns=0",
			"kernel.unprivileged_userns_clone=1", "no space left on device")
	})
}

// TestInsideOwnsNetworkFiles: the files of a network namespace belong to the
// root inside, even if that is an ordinary user outside.
func TestInsideOwnsNetworkFiles(t *testing.T) {
	info := expect.Value(os.Stat("/proc/net/stat"))(t)
	st, ok := info.Sys().(*syscall.Stat_t)
	expect.That(t, ok && st.Uid == 0, "/proc/net/stat belongs to %+v", info.Sys())
	// Exists if the kernel has legacy iptables. Only its owner can read it.
	_, err := os.ReadFile("/proc/net/ip_tables_names")
	expect.That(t, err == nil || errors.Is(err, os.ErrNotExist), "%v", err)
}
