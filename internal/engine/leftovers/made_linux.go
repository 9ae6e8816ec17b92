package leftovers

import (
	"io/fs"
	"os"
	"syscall"
	"time"
)

// hostLocalMode is the mode of the files that host-local makes.
const hostLocalMode = 0o600

// made returns the time at which an unchanged file was made, and reports whether
// host-local can have made it.
func made(info fs.FileInfo) (written, changed time.Time, private bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.ModTime(), info.ModTime(), false
	}
	private = info.Mode() == hostLocalMode && int(st.Uid) == os.Geteuid()
	return info.ModTime(), time.Unix(st.Ctim.Unix()), private
}
