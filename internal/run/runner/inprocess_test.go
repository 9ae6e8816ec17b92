package runner

import (
	"context"
	"errors"
	"testing"

	"github.com/embedcni/cni/internal/run/chain"
)

// TestAPluginInProcessIsNotStartedWhenItsContextHasEnded: built-in plugins rely
// on that and do not check their context first.
func TestAPluginInProcessIsNotStartedWhenItsContextHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stops := errors.New("the daemon stops")
	cancel(stops)
	for _, kind := range []Kind{BuiltIn, Registered} {
		_, err := (&execution{call: chain.Call{Verb: "ADD"}, p: Provider{Kind: kind}}).run(ctx)
		if err == nil || err.Error() != "not started: the daemon stops" || !errors.Is(err, stops) {
			t.Errorf("%v: got %v", kind, err)
		}
	}
}
