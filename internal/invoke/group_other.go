//go:build !unix

package invoke

import (
	"os"
	"syscall"
)

// attributes returns nothing: Windows has process groups for console signals
// only, and a process can join a job object, which could end a tree, only after
// it has started. It has no root directories either, and Root.Do fails before.
func attributes(Root) *syscall.SysProcAttr {
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
