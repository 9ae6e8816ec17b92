package health

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

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/internal/views"
	"github.com/embedcni/cni/plugin"
)

// verbose is an attachment on record whose errors have the plugin in brackets.
type verbose struct{ runner.Attachment }

func (verbose) Durable() error { return nil }
func (verbose) Fail(f runner.Failure) error {
	return fmt.Errorf("[%s %s] %w", f.Verb, f.Plugin, f.Err)
}

// group is attachments of containers in this process's namespace.
type group struct {
	Repairs
	limit  time.Duration // of a plugin's time
	events []string
}

func newGroup(t *testing.T, n int, against func(ctx context.Context, member int) *Part) *group {
	t.Helper()
	host := expect.Value(hostns.NewFinder().Open(""))(t)
	t.Cleanup(func() { expect.NoError(t, host.Close()) })
	g := &group{limit: time.Minute}
	runtime := &runner.Runtime{
		Choice: runner.Choice{BuiltIn: func(string) plugin.Plugin { return nil }},
		Limit:  func(string) time.Duration { return g.limit },
		Observe: func(_ context.Context, e runner.Event) {
			g.events = append(g.events, fmt.Sprintf("%s %s: %v", e.Verb, e.Plugin, e.Err))
		},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	for i := range n {
		g.Repairs = append(g.Repairs, &Repairing{
			Runner: &runner.Runner{
				Runtime: runtime, Plugins: &runner.Plugins{}, Network: &libcni.NetworkConfigList{Name: "net"}, Attachment: verbose{},
			},
			Host: host, Container: host.Handle,
			Compare: func(ctx context.Context, v *views.View) *Part {
				if there, err := v.HasLink("lo"); !there || err != nil {
					t.Errorf("lo: %v, %v", there, err)
				}
				return against(ctx, i)
			},
		})
	}
	return g
}

// numbers returns the numbers from first to last.
func sequence(first, last int) (all []int) {
	for i := first; i <= last; i++ {
		all = append(all, i)
	}
	return all
}

// TestAGroupIsCompared: of few attachments and of many, in the order of the numbers.
func TestAGroupIsCompared(t *testing.T) {
	g := newGroup(t, 12, func(_ context.Context, member int) *Part {
		return &Part{Differences: []compare.Difference{{Object: fmt.Sprint(member)}}}
	})
	expect.Same(t, "before", g.Repairs[0].Last(), nil)
	for _, members := range [][]int{{3}, {11, 2}, sequence(1, DumpFor), sequence(0, 11)} {
		found := g.Compare(t.Context(), members)
		expect.Same(t, "results", len(found), len(members))
		for i, c := range found {
			expect.NoError(t, c.Err)
			expect.Same(t, "difference", c.Differences[0].Object, fmt.Sprint(members[i]))
			expect.Same(t, "the last", g.Repairs[members[i]].Last().Differences[0].Object, fmt.Sprint(members[i]))
		}
	}
}

// TestAComparisonThatFailsIsOneAttachments: the others are compared.
func TestAComparisonThatFailsIsOneAttachments(t *testing.T) {
	for _, n := range []int{2, 2 * DumpFor} {
		g := newGroup(t, n, func(_ context.Context, member int) *Part {
			if member == 1 {
				panic("oops")
			}
			return &Part{}
		})
		g.Repairs[0].Container = nil
		for i, c := range g.Compare(t.Context(), sequence(0, n-1)) {
			switch i {
			case 0:
				expect.Is(t, c.Err, hostns.ErrInvalid)
			case 1:
				if c.Err == nil || !strings.HasPrefix(c.Err.Error(), "panic: oops\n") {
					t.Errorf("error %v", c.Err)
				}
			default:
				expect.NoError(t, c.Err)
			}
		}
		expect.Same(t, "the last of one that failed", g.Repairs[1].Last(), nil)
	}
}

// TestAComparisonThatTakesTooLong counts neither as whole nor as missing.
func TestAComparisonThatTakesTooLong(t *testing.T) {
	g := newGroup(t, 1, func(ctx context.Context, _ int) *Part {
		<-ctx.Done()
		return &Part{}
	})
	g.limit = time.Millisecond
	expect.Is(t, g.Compare(t.Context(), []int{0})[0].Err, context.DeadlineExceeded)
	expect.Same(t, "the last", g.Repairs[0].Last(), nil)
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	expect.Is(t, g.Compare(ctx, []int{0})[0].Err, enough)
}

// TestFix: changes that may be delayed are made by Apply, for all attachments, and the
// failures of an attachment are its own. Each plugin's repairs are one event.
func TestFix(t *testing.T) {
	g := newGroup(t, 2, nil)
	no := errors.New("no")
	var done []string
	fixes := func(name string, err error) compare.Difference {
		return compare.Difference{Plugin: name, Fix: func(ctx context.Context) error {
			return caller.From(ctx).Batch.Later(ctx, func(context.Context) error {
				done = append(done, name)
				return err
			})
		}}
	}
	expect.NoError(t, g.Fix(t.Context(), 0, fixes("one", nil), false))
	expect.Same(t, "at once", done, []string{"one"})
	expect.Is(t, g.Fix(t.Context(), 0, fixes("two", no), false), no)
	expect.NoError(t, g.Fix(t.Context(), 0, fixes("one", nil), true), g.Fix(t.Context(), 1, fixes("three", no), true))
	expect.Same(t, "delayed", done, []string{"one", "two"})
	errs := g.Apply(t.Context(), []int{1, 0})
	expect.Is(t, errs[0], no)
	expect.NoError(t, errs[1])
	expect.Same(t, "applied", len(done), 4)
	g.Repairs[0].Report(t.Context(), map[string][]error{"two": {no}})
	expect.Same(t, "events", g.events, []string{"REPAIR one: <nil>", "REPAIR two: no"})
}

// TestAnnounce calls the Announce of a difference. The attachment is repaired without it,
// so that an error is in the log.
func TestAnnounce(t *testing.T) {
	g := newGroup(t, 1, nil)
	var log strings.Builder
	g.Repairs[0].Runner.Logger = slog.New(slog.NewTextHandler(&log, nil))
	no := errors.New("no")
	for _, want := range []bool{true, false} {
		d := compare.Difference{Plugin: "one", Announce: func(_ context.Context, unanswered bool) error {
			expect.Same(t, "unanswered", unanswered, want)
			return no
		}}
		g.Announce(t.Context(), 0, d, want)
	}
	expect.Same(t, "errors in the log", strings.Count(log.String(), "[REPAIR one] no"), 2)
	g.Repairs[0].Report(t.Context(), nil)
	expect.Same(t, "events", len(g.events), 0)
}
