package ipamdir

import (
	"io/fs"
	"os"
	"syscall"
	"time"
)

// hostLocalMode is that of the files which host-local makes, for itself alone.
const hostLocalMode = 0o600

// made is when a file was made, as far as it was not changed since, and whether
// host-local can have made it.
func made(info fs.FileInfo) (written, changed time.Time, private bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.ModTime(), info.ModTime(), false
	}
	private = info.Mode() == hostLocalMode && int(st.Uid) == os.Geteuid()
	return info.ModTime(), time.Unix(st.Ctim.Unix()), private
}
