package record

import (
	"syscall"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// TestFault_F50_ARecordThatIsNoFileBlocksNobody: reading or writing a FIFO in
// its place ends at once.
func TestFault_F50_ARecordThatIsNoFileBlocksNobody(t *testing.T) {
	s := Open(t.TempDir())
	check(t, syscall.Mkfifo(s.path("c1"), 0o600))
	ended := make(chan []error, 1)
	go func() {
		_, load := s.Load("c1")
		ended <- []error{load, s.Append(sample("c1"), Entry{})}
	}()
	select {
	case errs := <-ended:
		expect.Is(t, errs[0], plainfile.ErrNotRegular)
		expect.Fails(t, "writing succeeded", errs[1])
	case <-time.After(time.Minute):
		t.Fatal("a FIFO holds up the calls")
	}
}
