package durable

import (
	"errors"
	"testing"
)

func TestAwait(t *testing.T) {
	if err := Await(t.Context()); err != nil {
		t.Errorf("with nothing to wait for: %v", err)
	}
	broken, calls := errors.New("the disk is broken"), 0
	ctx := With(t.Context(), func() error { calls++; return broken })
	for range 2 {
		if err := Await(ctx); !errors.Is(err, broken) {
			t.Errorf("got %v, want %v", err, broken)
		}
	}
	if calls != 2 {
		t.Errorf("waited %d times, want 2", calls)
	}
}
