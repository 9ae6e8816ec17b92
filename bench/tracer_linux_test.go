package main

import (
	"os"
	"os/exec"
	"testing"
)

// TestTracerCountsProcessesAndNoThreads compares the count with a known one: a
// shell that starts three programs. The last one is this test binary, which
// ends as a worker without a spec, but only after Go has started its threads.
func TestTracerCountsProcessesAndNoThreads(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "/bin/true; (/bin/true; :); "+workerVariable+`=none "$0" 2>/dev/null; :`, self)
	tr, err := startTraced(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.wait(); err != nil {
		t.Fatal(err)
	}
	// true; the subshell; true in the subshell; this program.
	if got := tr.processes.Load(); got != 4 {
		t.Errorf("counted %d processes, want 4", got)
	}
}

func TestTracerReportsFailure(t *testing.T) {
	tr, err := startTraced(exec.Command("sh", "-c", "exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.wait(); err == nil {
		t.Error("no error for a program that failed")
	}
	if _, err := startTraced(exec.Command("/does/not/exist")); err == nil {
		t.Error("no error for a program that is not there")
	}
}
