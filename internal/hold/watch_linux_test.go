package hold

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestWatchFollowsHoldsThatComeAndGo, in a directory that did not exist. One that comes
// before Follow is called is not missed.
func TestWatchFollowsHoldsThatComeAndGo(t *testing.T) {
	s := Open(filepath.Join(t.TempDir(), "embedcni", "holds"))
	w, err := s.Watch()
	expect.NoError(t, err)
	defer func() { expect.NoError(t, w.Close()) }()
	expect.NoError(t, s.Put(Hold{Network: "net"}))

	ctx, cancel := context.WithCancelCause(t.Context())
	counts, ended := make(chan int), make(chan error, 1)
	go func() {
		ended <- w.Follow(ctx, func() {
			all, err := s.List()
			if err != nil {
				t.Error(err)
			}
			select {
			case counts <- len(all):
			case <-ctx.Done():
			}
		})
	}()
	await := func(want int) { // a change can be several events
		for expect.Await(t, "change of the holds", counts) != want {
		}
	}
	await(1)
	_, err = s.Delete(Hold{Network: "net"})
	expect.NoError(t, err)
	await(0)
	enough := errors.New("enough")
	cancel(enough)
	expect.Is(t, expect.Await(t, "end", ended), enough)
}
