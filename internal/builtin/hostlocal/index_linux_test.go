package hostlocal

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Where times are taken for precise, no two changes have the same; where they
// are not, a change within the tick of the last one is not taken for settled.
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
		precise := timesArePrecise(dir)
		t.Logf("%s: precise: %v", path, precise)
		before, err := stampOf(dir)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(path, "10.1.0.2")
		for i := range 2000 {
			if i%2 == 0 {
				err = os.WriteFile(file, nil, 0o600)
			} else {
				err = os.Remove(file)
			}
			if err != nil {
				t.Fatal(err)
			}
			after, err := stampOf(dir)
			if err != nil {
				t.Fatal(err)
			}
			if after.same(before) && (precise || before.settled) {
				t.Fatalf("%s: change %d has the time of the one before: %+v", path, i, after)
			}
			before = after
		}
	}
}
