package cni

import (
	"context"
	"errors"
	"testing"

	"github.com/embedcni/cni/internal/chain"
)

// Built-in plugins rely on it and do not look at their context first.
func TestAPluginInProcessIsNotStartedWhenItsContextHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stops := errors.New("the daemon stops")
	cancel(stops)
	for _, kind := range []PluginKind{PluginBuiltIn, PluginRegistered} {
		_, err := (&delegation{}).runInProcess(ctx, chain.Call{Verb: "ADD"}, provider{kind: kind})
		if err == nil || err.Error() != "not started: the daemon stops" || !errors.Is(err, stops) {
			t.Errorf("%v: got %v", kind, err)
		}
	}
}
