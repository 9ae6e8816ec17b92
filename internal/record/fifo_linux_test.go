package record

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/plainfile"
)

// TestFault_F50_ARecordThatIsNoFileBlocksNobody: reading or writing a FIFO in
// its place ends at once.
func TestFault_F50_ARecordThatIsNoFileBlocksNobody(t *testing.T) {
	s := Open(t.TempDir())
	l := s.Ledger("me")
	for _, path := range []string{s.path("c1"), l.path} {
		check(t, syscall.Mkfifo(path, 0o600))
	}
	ended := make(chan []error, 1)
	go func() {
		_, load := s.Load("c1")
		_, read := l.Read()
		ended <- []error{load, read, s.Append(sample("c1"), Entry{})}
	}()
	select {
	case errs := <-ended:
		for i, err := range errs[:2] {
			if !errors.Is(err, plainfile.ErrNotRegular) {
				t.Errorf("reading %d: %v", i, err)
			}
		}
		expect.Fails(t, "writing succeeded", errs[2])
	case <-time.After(time.Minute):
		t.Fatal("a FIFO holds up the calls")
	}
}
