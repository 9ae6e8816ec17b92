package caller

import (
	"context"
	"errors"
	"testing"
)

// TestTheZeroGivenWorks: a plugin without a runtime has nothing to wait for, and
// nothing that GC may release.
func TestTheZeroGivenWorks(t *testing.T) {
	for what, ctx := range map[string]context.Context{
		"no value":       t.Context(),
		"the zero value": With(t.Context(), Given{}),
	} {
		g := From(ctx)
		if err := errors.Join(g.Durable(), g.Record.Note("test.key", true)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if g.Bus == nil || g.Record.Fact("test.key") != nil {
			t.Errorf("%s: got %+v", what, g)
		}
		if g.Firewalls(nil) == nil {
			t.Errorf("%s: no packet filters", what)
		}
	}
}

func TestFromReturnsTheInnermostValue(t *testing.T) {
	broken := errors.New("the disk is broken")
	ctx := With(With(t.Context(), Given{}), Given{Durable: func() error { return broken }})
	if err := From(ctx).Durable(); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}
