package plainfile

import (
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestASlowDiskBlocksFewThreads: Prepare makes no further file, and its caller does.
func TestASlowDiskBlocksFewThreads(t *testing.T) {
	making.Add(mostAtOnce)
	dir := t.TempDir()
	if u := Prepare(dir, 0o600); u != nil {
		t.Error("another file is being made")
		u.Discard()
	}
	making.Add(-mostAtOnce)
	f := Prepare(dir, 0o600).Take()
	expect.Must(t, f != nil, "no file")
	expect.Succeeds(t, "Close", f.Close())
}
