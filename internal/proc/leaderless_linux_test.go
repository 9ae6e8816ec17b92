package proc

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
)

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
		if killed, err = h.Kill(); err != nil {
			t.Error(err)
		}
	}
	if !killed {
		t.Fatal("it was not found")
	}
	wantKilled(t, "the plugin", cmd)
}
