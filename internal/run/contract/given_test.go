package contract

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

// TestTheZeroGivenWorks: a plugin without a runtime has nothing to wait for, and
// nothing that GC may release.
func TestTheZeroGivenWorks(t *testing.T) {
	for what, ctx := range map[string]context.Context{
		"no value":       t.Context(),
		"the zero value": With(t.Context(), Given{}),
	} {
		g := From(ctx)
		expect.NoError(t, g.Durable(), g.Record.Note("test.key", true))
		expect.That(t, g.Bus != nil && g.Record.Fact("test.key") == nil, "%s: got %+v", what, g)
		expect.Same(t, what+": packet filters", g.Firewalls(nil) != nil, true)
	}
}

func TestFromReturnsTheInnermostValue(t *testing.T) {
	broken := errors.New("the disk is broken")
	expect.Is(t, From(With(With(t.Context(), Given{}), Given{Durable: func() error { return broken }})).Durable(), broken)
}

// TestPatience: it ends after all waits together.
func TestPatience(t *testing.T) {
	p := NewPatience(time.Hour)
	ctx, stop := p.Wait(t.Context())
	expect.NoError(t, ctx.Err())
	stop()
	expect.That(t, ctx.Err() != nil && p.left != time.Hour && p.left >= time.Minute, "%v is left, and the context is %v", p.left, ctx.Err())
	p.left = time.Millisecond
	for range 2 {
		ctx, stop := p.Wait(t.Context())
		<-ctx.Done()
		stop()
		err := context.Cause(ctx)
		expect.That(t, errors.Is(err, ErrEnough) && p.left == 0, "it ended with %v, and %v is left", err, p.left)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	ctx, stop = NewPatience(time.Hour).Wait(ended)
	defer stop()
	expect.Is(t, context.Cause(ctx), context.Canceled)
	ctx, stop = (*Patience)(nil).Wait(t.Context())
	defer stop()
	_, limited := ctx.Deadline()
	expect.That(t, !limited, "without a patience it ends")
}
