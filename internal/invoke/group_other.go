//go:build !unix

package invoke

import (
	"os"
	"syscall"
)

// processGroup is nothing: Windows has groups of processes for console signals
// only, and what would end a tree of them, a job object, can be joined only
// after the process runs.
func processGroup() *syscall.SysProcAttr {
	return nil
}

// killGroup kills the plugin alone.
func killGroup(leader *os.Process) {
	_ = leader.Kill()
}

func groupExists(int) bool {
	return false
}

func readNow(*os.File, []byte) int {
	return 0
}
