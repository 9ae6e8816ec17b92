//go:build !unix

package invoke

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
