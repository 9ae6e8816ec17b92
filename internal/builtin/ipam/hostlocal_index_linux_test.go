package ipam

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestNoChangeHidesBehindATime: a marked directory has another stamp after any
// change, however soon.
func TestNoChangeHidesBehindATime(t *testing.T) {
	memory, err := os.MkdirTemp("/run", "times")
	expect.NoError(t, err)
	defer os.RemoveAll(memory)
	for _, dir := range []string{memory, t.TempDir()} {
		seen := make(map[stamp]bool)
		file, other := filepath.Join(dir, "10.1.0.2"), filepath.Join(dir, "10.1.0.3")
		for i := range 3000 {
			marked := mark(dir)
			if seen[marked] || marked == (stamp{}) {
				t.Fatalf("%s: mark %d is none, or that of another time: %+v", dir, i, marked)
			}
			seen[marked] = true
			switch i % 3 {
			case 0:
				err = os.WriteFile(file, nil, 0o600)
			case 1:
				err = os.Rename(file, other)
			case 2:
				err = os.Remove(other)
			}
			expect.NoError(t, err)
			if now, err := stampOf(dir); err != nil || seen[now] {
				t.Fatalf("%s: change %d is not seen: %+v, %v", dir, i, now, err)
			}
		}
	}
}
