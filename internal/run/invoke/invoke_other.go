//go:build !unix

package invoke

import (
	"io/fs"
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

// defaultPath is empty: the location of Windows is unknown here.
const defaultPath = ""

// DefaultAllow returns the variables that plugins get by default: those without
// which programs do not run on Windows at all, and those that name writable
// directories.
func DefaultAllow() []string {
	return []string{
		"COMSPEC",     // scripts
		"PATHEXT",     // other programs are found by name
		"PROGRAMDATA", // plugins keep their state there
		"SYSTEMDRIVE", // paths without a drive
		"SYSTEMROOT",  // sockets and cryptography do not start without it
		"TEMP",        // the only places to write
		"TMP",
		"WINDIR", // the old name of SYSTEMROOT
	}
}

// mayExecute returns true: a file's name decides that, not its mode.
func mayExecute(fs.FileMode) bool {
	return true
}
