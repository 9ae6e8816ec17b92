//go:build !unix

package invoke

// defaultPath is empty: where Windows is installed cannot be told from here.
const defaultPath = ""

// DefaultAllow returns the variables which plugins get unless the caller says
// otherwise: those without which programs do not run on Windows at all, and
// where they may write.
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
