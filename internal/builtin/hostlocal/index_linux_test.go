package hostlocal

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoChangeHidesBehindATime: a marked directory has another stamp after any
// change, however soon.
func TestNoChangeHidesBehindATime(t *testing.T) {
	memory, err := os.MkdirTemp("/run", "times")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(memory)
	for _, path := range []string{memory, t.TempDir()} {
		dir, err := unix.Open(path, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(dir)
		seen := make(map[stamp]bool)
		file, other := filepath.Join(path, "10.1.0.2"), filepath.Join(path, "10.1.0.3")
		for i := range 3000 {
			marked := mark(dir)
			if seen[marked] || marked == (stamp{}) {
				t.Fatalf("%s: mark %d is none, or that of another time: %+v", path, i, marked)
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
			if err != nil {
				t.Fatal(err)
			}
			if now, err := stampOf(dir); err != nil || seen[now] {
				t.Fatalf("%s: change %d is not seen: %+v, %v", path, i, now, err)
			}
		}
	}
}
