package runner

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/plugin"
)

// failing is an attachment whose failures are their texts.
type failing struct{ durable }

func (failing) Fail(f Failure) error {
	return fmt.Errorf("%s %s (%s) code %d: %w", f.Verb, f.Plugin, f.Kind, f.Code, f.Err)
}

// TestFixIsLentTheRuntimesResources: those of the plugin that made the part, the batch
// of the call, and a plugin's time.
func TestFixIsLentTheRuntimesResources(t *testing.T) {
	r := comparing(nil, record.Plugin{Type: "ours", Kind: record.KindBuiltIn, Backend: "native"})
	r.Runtime.Limit = func(verb string) time.Duration {
		expect.Same(t, "verb", verb, "CHECK")
		return time.Hour
	}
	b := &thread.Batch{}
	for _, of := range []*thread.Batch{nil, b} {
		called := false
		err := r.Fix(t.Context(), contract.Difference{Plugin: "ours", Fix: func(ctx context.Context) error {
			called = true
			g := contract.From(ctx)
			expect.Same(t, "backend", g.Filters.Detected, "native")
			_, ok := ctx.Deadline()
			expect.That(t, ok && g.Batch == of, "deadline %v, batch %v", ok, g.Batch)
			return nil
		}}, of)
		expect.That(t, err == nil && called, "called: %v, %v", called, err)
	}
}

// TestAFixThatFails keeps the program alive, and says whose part it is.
func TestAFixThatFails(t *testing.T) {
	r := comparing(nil)
	r.Attachment = failing{}
	r.Runtime.Limit = func(string) time.Duration { return time.Millisecond }
	for want, fix := range map[string]func(context.Context) error{
		"REPAIR ours (built in) code 0: broken":        func(context.Context) error { return errors.New("broken") },
		"REPAIR ours (built in) code 7: broken":        func(context.Context) error { return plugin.Errorf(types.ErrInvalidNetworkConfig, "broken") },
		"REPAIR ours (built in) code 0: panic: broken": func(context.Context) error { panic("broken") },
		"stopped: took longer than the 1ms that a plugin has for CHECK": func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		err := r.Fix(t.Context(), contract.Difference{Plugin: "ours", Fix: fix}, nil)
		expect.Says(t, "error", err, want)
	}
}

// TestARepairIsReportedToTheObserver as a call of the built-in plugin.
func TestARepairIsReportedToTheObserver(t *testing.T) {
	r := comparing(nil)
	r.ContainerID, r.IfName = "c1", "eth0"
	var got []Event
	r.Runtime.Observe = func(_ context.Context, e Event) { got = append(got, e) }
	broken := errors.New("broken")
	r.ReportRepair(t.Context(), "ours", time.Second, broken)
	expect.Same(t, "events", got, []Event{{
		Operation: "REPAIR", Network: "net", Plugin: "ours", PluginKind: "built in", ContainerID: "c1", IfName: "eth0", Duration: time.Second, Err: broken,
	}})
}
