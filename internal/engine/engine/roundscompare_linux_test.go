package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/outcome"
	"github.com/embedcni/cni/plugin"
)

// verbose is an attachment on record whose errors have the plugin in brackets.
type verbose struct{ runner.Attachment }

func (verbose) Durable() error { return nil }
func (verbose) Fail(f runner.Failure) error {
	return fmt.Errorf("[%s %s] %w", f.Verb, f.Plugin, f.Err)
}

// bench repairs attachments of containers in this process's namespace.
type bench struct {
	host    *container.Host
	runtime *runner.Runtime
	limit   time.Duration // of a plugin's time
	events  []string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{host: expect.Value(container.NewFinder().Open(""))(t), limit: time.Minute}
	t.Cleanup(func() { expect.NoError(t, b.host.Close()) })
	b.runtime = &runner.Runtime{
		Choice: runner.Choice{BuiltIn: func(string) plugin.Plugin { return nil }},
		Limit:  func(string) time.Duration { return b.limit },
		Observe: func(_ context.Context, e runner.Event) {
			b.events = append(b.events, fmt.Sprintf("%s %s: %v", e.Operation, e.Plugin, e.Err))
		},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	return b
}

// attachment returns one whose comparisons find differences.
func (b *bench) attachment(finds func(context.Context) []contract.Difference) *repairing {
	return &repairing{
		rs: &repairs{},
		runner: &runner.Runner{
			Runtime: b.runtime, Plugins: &runner.Plugins{}, Network: &libcni.NetworkConfigList{Name: "net"}, Attachment: verbose{},
			Host: b.host.Handle, Container: b.host.Handle, Given: contract.Given{Conns: &b.host.Conns},
		},
		compare: func(ctx context.Context, _ *contract.View) *comparison { return &comparison{differences: finds(ctx)} },
	}
}

// attachments returns several.
func (b *bench) attachments(n int, finds func(ctx context.Context, member int) []contract.Difference) (all []*repairing) {
	for i := range n {
		all = append(all, b.attachment(func(ctx context.Context) []contract.Difference { return finds(ctx, i) }))
	}
	return all
}

// TestAGroupIsCompared: of few attachments and of many, each has its own differences.
func TestAGroupIsCompared(t *testing.T) {
	b := newBench(t)
	for _, n := range []int{1, 2, dumpFor, 12} {
		all := b.attachments(n, func(_ context.Context, member int) []contract.Difference {
			return []contract.Difference{{Object: fmt.Sprint(member)}}
		})
		runRounds(t.Context(), all)
		for i, r := range all {
			expect.NoError(t, r.err)
			expect.Same(t, "difference", r.left[0].Object, fmt.Sprint(i))
			expect.Same(t, "the last", r.last.differences[0].Object, fmt.Sprint(i))
		}
	}
}

// TestAComparisonThatFailsIsOneAttachments: the others are compared.
func TestAComparisonThatFailsIsOneAttachments(t *testing.T) {
	b := newBench(t)
	for _, n := range []int{2, 2 * dumpFor} {
		all := b.attachments(n, func(_ context.Context, member int) []contract.Difference {
			if member == 1 {
				panic("oops")
			}
			return nil
		})
		all[0].runner.Container = nil
		runRounds(t.Context(), all)
		for i, r := range all {
			switch i {
			case 0:
				expect.Is(t, r.err, outcome.ErrInvalidNetNS)
			case 1:
				expect.That(t, r.err != nil && strings.HasPrefix(r.err.Error(), "panic: oops\n"), "error %v", r.err)
			default:
				expect.NoError(t, r.err)
			}
		}
		expect.Same(t, "the last of one that failed", all[1].last, nil)
	}
}

// TestAComparisonThatTakesTooLong counts neither as whole nor as missing.
func TestAComparisonThatTakesTooLong(t *testing.T) {
	b := newBench(t)
	b.limit = time.Millisecond
	all := b.attachments(2, func(ctx context.Context, _ int) []contract.Difference {
		<-ctx.Done()
		return nil
	})
	runRounds(t.Context(), all[:1])
	expect.Is(t, all[0].err, context.DeadlineExceeded)
	expect.Same(t, "the last", all[0].last, nil)
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	runRounds(ctx, all[1:])
	expect.Is(t, all[1].err, enough)
}

// TestEachPluginsRepairsAreOneEvent, and an error of an Announce is in the log alone: the
// attachment is repaired without it.
func TestEachPluginsRepairsAreOneEvent(t *testing.T) {
	b := newBench(t)
	var log strings.Builder
	b.runtime.Logger = slog.New(slog.NewTextHandler(&log, nil))
	no := errors.New("no")
	missing, asked := true, []bool{}
	r := b.attachment(func(context.Context) (found []contract.Difference) {
		fix := func(context.Context) error {
			missing = false
			return nil
		}
		announce := func(_ context.Context, unanswered bool) error {
			asked = append(asked, unanswered)
			return no
		}
		if missing {
			for _, object := range []string{"a", "b"} {
				found = append(found, contract.Difference{Plugin: "one", Object: object, Fix: fix, Announce: announce})
			}
		}
		return append(found, contract.Difference{Plugin: "two", Fix: func(context.Context) error { return no }})
	})
	runRounds(t.Context(), []*repairing{r})
	r.observe(t.Context())
	expect.Same(t, "events", b.events, []string{"REPAIR one: <nil>", "REPAIR two: [REPAIR two] no"})
	expect.Same(t, "asked again", asked, []bool{false, true})
	expect.Same(t, "errors in the log", strings.Count(log.String(), "[REPAIR one] no"), 2)
}
