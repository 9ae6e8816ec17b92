package proc

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
)

// start runs a process that stays and, if lock is not nil, inherits it, as
// plugins do.
func start(t *testing.T, lock *os.File) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if lock != nil {
		cmd.ExtraFiles = []*os.File{lock}
	}
	return started(t, cmd)
}

func started(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	expect.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be dead already
		_ = cmd.Wait()
	})
	return cmd
}

// open opens a lock file as a runtime does, and locks these bytes.
func open(t *testing.T, path string, offsets ...int64) *os.File {
	t.Helper()
	f := expect.Value(os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600))(t)
	t.Cleanup(func() { _ = f.Close() }) // it may be closed already
	for _, off := range offsets {
		lockByte(t, f, off)
	}
	return f
}

func lockByte(t *testing.T, f *os.File, offset int64) { setLock(t, f, offset, unix.F_WRLCK) }

func unlock(t *testing.T, f *os.File, offset int64) { setLock(t, f, offset, unix.F_UNLCK) }

func setLock(t *testing.T, f *os.File, offset int64, kind int16) {
	t.Helper()
	lk := &unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: offset, Len: 1}
	expect.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, lk))
}

func wantAlive(t *testing.T, identity string, want bool) {
	t.Helper()
	alive, err := Alive(identity)
	expect.That(t, alive == want && err == nil, "Alive(%q) = %v, %v, want %v", identity, alive, err, want)
}

func TestAliveKnowsARecycledNumber(t *testing.T) {
	self := expect.Value(Self())(t)
	wantAlive(t, self, true)
	wantAlive(t, self+"0", false) // the same number with another start time

	cmd := start(t, nil)
	child := expect.Value(identify(cmd.Process.Pid))(t)
	wantAlive(t, child, true)
	expect.NoError(t, cmd.Process.Kill())
	expect.Must(t, cmd.Wait() != nil, "a killed process exited without an error")
	wantAlive(t, child, false)
}

func TestAliveRefusesAnInvalidIdentity(t *testing.T) {
	for _, identity := range []string{"", "1", "x:1", ":", "1.5:2"} {
		alive, err := Alive(identity)
		expect.That(t, !alive && err != nil, "Alive(%q) = %v, %v", identity, alive, err)
	}
}

func TestStartTimeIsFoundBehindAnyCommand(t *testing.T) {
	const rest = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 424242 20"
	for stat, want := range map[string]string{
		"7 (sleep)" + rest:         "424242",
		"7 (a) S 1 (b c)" + rest:   "424242",
		"7 (\n)" + rest:            "424242",
		"7 (sleep) S 1 2":          "too few fields",
		"":                         "too few fields",
		"7 (no end" + rest[:10]:    "too few fields",
		"7 (sleep)" + rest + " 21": "424242",
	} {
		got, err := startTime(stat)
		if err != nil {
			got = err.Error()
		}
		expect.Same(t, "startTime("+stat+")", got, want)
	}
}

func TestAliveInAnotherPIDNamespace(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	started(t, cmd)
	here := expect.Value(identify(cmd.Process.Pid))(t)
	_, since, _ := strings.Cut(here, ":")
	there := "1:" + since // the process's identity in its own namespace
	alive, err := Alive(there)
	expect.Must(t, !alive && err == nil, "in this namespace %s lives (%v): the test has lost its point", there, err)
	for _, identity := range []string{here, there} {
		alive, err := aliveAnywhere(identity)
		expect.That(t, alive && err == nil, "aliveAnywhere(%q) = %v, %v", identity, alive, err)
	}
	for what, tt := range map[string]struct {
		ns    uint64
		alive bool
	}{
		"of this namespace":    {PIDNS(), false},
		"of an unknown one":    {0, true},
		"of one from long ago": {1, true},
	} {
		expect.Same(t, what, expect.Value(AliveIn(tt.ns, there))(t), tt.alive)
	}
	expect.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	alive, err = aliveAnywhere(there)
	expect.That(t, !alive && err == nil, "after its end: %v, %v", alive, err)
	// Outside the initial namespace its end is unknown.
	alive, err = AliveIn(1, there)
	expect.That(t, alive == (PIDNS() != InitialPIDNS) && err == nil, "after its end, of another namespace: %v, %v", alive, err)
}

func TestNumbers(t *testing.T) {
	got := numbers("Name:\tx\nNSpid:\t4711\t12\t1\nNSpgid:\t4711\t12\t1\n")
	want := []string{"4711", "12", "1"}
	expect.That(t, slices.Equal(got, want), "got %q, want %q", got, want)
	expect.Empty(t, "a status without numbers", numbers("Name:\tNSpid:\n"))
}

func TestIDIsOneUUIDForTheWholeBoot(t *testing.T) {
	first := expect.Value(BootID())(t)
	again := expect.Value(BootID())(t)
	uuid := regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	expect.That(t, first == again && uuid.MatchString(first), "boot id %q, then %q", first, again)
}

const leaderlessEnv = "TEST_ORPHAN_LEADERLESS"

// init keeps the main function on the leading thread.
func init() {
	if os.Getenv(leaderlessEnv) != "" {
		runtime.LockOSThread()
	}
}

// TestMain is a process whose leading thread has ended, on request.
func TestMain(m *testing.M) {
	if os.Getenv(leaderlessEnv) == "" {
		os.Exit(m.Run())
	}
	go func() {
		for { // until the kernel reports its end
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", os.Getpid()))
			if err != nil || strings.HasPrefix(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " Z") {
				fmt.Println(err)
				select {}
			}
		}
	}()
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // ends only this thread
}

// TestFault_F29_AHolderWhoseLeadingThreadHasEndedIsFound: /proc/PID shows the
// leading thread's descriptors, and a plugin may continue without that thread.
func TestFault_F29_AHolderWhoseLeadingThreadHasEndedIsFound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks")
	lock := open(t, path, 42)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), leaderlessEnv+"=1", "GOMAXPROCS=2")
	cmd.ExtraFiles = []*os.File{lock}
	out, err := cmd.StdoutPipe()
	expect.NoError(t, err)
	started(t, cmd)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "<nil>\n" {
		t.Fatalf("%q, %v", line, err)
	}
	killed := false
	for _, h := range holders(t, path, 42) {
		if h.PID != cmd.Process.Pid {
			continue
		}
		killed, err = h.Kill()
		expect.That(t, err == nil, "%v", err)
	}
	expect.Must(t, killed, "it was not found")
	wantKilled(t, "the plugin", cmd)
}
