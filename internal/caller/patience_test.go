package caller

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestPatience: it ends after all waits together.
func TestPatience(t *testing.T) {
	p := NewPatience(time.Hour)
	ctx, stop := p.Wait(t.Context())
	if ctx.Err() != nil {
		t.Error("it ended at once")
	}
	stop()
	if ctx.Err() == nil || p.left == time.Hour || p.left < time.Minute {
		t.Errorf("%v is left, and the context is %v", p.left, ctx.Err())
	}
	p.left = time.Millisecond
	for range 2 {
		ctx, stop := p.Wait(t.Context())
		<-ctx.Done()
		stop()
		if err := context.Cause(ctx); !errors.Is(err, ErrEnough) || p.left != 0 {
			t.Errorf("it ended with %v, and %v is left", err, p.left)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	ctx, stop = NewPatience(time.Hour).Wait(ended)
	defer stop()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller's context: %v", err)
	}
	ctx, stop = (*Patience)(nil).Wait(t.Context())
	defer stop()
	if _, limited := ctx.Deadline(); limited {
		t.Error("without a patience it ends")
	}
}
