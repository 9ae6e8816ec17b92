package record

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

// TestFault_F39_NoFileThatWasThereIsLaterThanNow: otherwise an
// administrator's reservation from the tick before would be mistaken for a
// killed plugin's. Since Linux 6.13 a file's time can be ahead of the last
// tick, if any program on the machine reads the times of changing files.
func TestFault_F39_NoFileThatWasThereIsLaterThanTheLedgersNow(t *testing.T) {
	dir := t.TempDir()
	s := Open(filepath.Join(dir, "records"))
	changing, there, next := filepath.Join(dir, "changing"), filepath.Join(dir, "there"), filepath.Join(dir, "next")
	made := func(path string) time.Time {
		t.Helper()
		expect.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
		info := expect.Value(os.Stat(path))(t)
		return info.ModTime()
	}
	for range 200 {
		made(changing)
		made(changing)
		before := made(there)
		now := s.Now()
		after := made(next)
		if before.After(now) || after.Before(now) {
			t.Fatalf("a file was made at %v, then it was %v, and another was made at %v", before, now, after)
		}
		expect.NoError(t, os.Remove(there))
		expect.NoError(t, os.Remove(next))
	}
}
