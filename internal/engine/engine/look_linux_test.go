package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// lookedAt is one container on record, and what looks at it see.
type lookedAt struct {
	t      *testing.T
	look   *examination
	looks  int
	locked func() (bool, error)
}

func newLookedAt(t *testing.T, see func(l *lookedAt, c *examined)) *lookedAt {
	t.Helper()
	l := &lookedAt{t: t, locked: func() (bool, error) { return false, nil }}
	l.look = &examination{
		records:  record.Open(t.TempDir()),
		isLocked: func(record.ID) (bool, error) { return l.locked() },
		examine: func(c *examined, _ *contract.Looks) error {
			l.looks++
			see(l, c)
			return nil
		},
		logger: slog.Default(),
	}
	l.change()
	return l
}

// change writes another record of the container.
func (l *lookedAt) change() {
	rec := &record.Record{ContainerID: "c1", Owner: fmt.Sprint("owner ", l.looks)}
	expect.NoError(l.t, l.look.records.Begin(rec))
}

func (l *lookedAt) all(ctx context.Context) *examined {
	all := l.look.all(ctx, expect.Value(l.look.records.List())(l.t))
	expect.Same(l.t, "containers", len(all), 1)
	return all[0]
}

// broken adds a part that lacks something.
func broken(c *examined) {
	c.parts = []*comparison{{ifName: "eth0", differences: []contract.Difference{{Kind: contract.Rule}}}}
}

func TestASuspectIsLookedAtUntilNothingChangesMeanwhile(t *testing.T) {
	always := func(_ *lookedAt, c *examined) { broken(c) }
	for name, tt := range map[string]struct {
		see    func(l *lookedAt, c *examined)
		locked func(l *lookedAt) (bool, error)
		want   string
	}{
		"healthy":         {func(*lookedAt, *examined) {}, nil, "1 looks"},
		"certainly wrong": {always, nil, "2 looks, suspect, settled"},
		"wrong for a moment": {func(l *lookedAt, c *examined) {
			if l.looks == 1 {
				broken(c)
			}
		}, nil, "2 looks, settled"},
		"out of reach": {func(_ *lookedAt, c *examined) { c.state, c.reason = outcome.StateGone, errors.New("gone") }, nil, "2 looks, suspect, settled, gone: gone"},
		"its record changes during the second look": {func(l *lookedAt, c *examined) {
			if broken(c); l.looks == 2 {
				l.change()
			}
		}, nil, "3 looks, suspect, settled"},
		"its record changes during each look": {func(l *lookedAt, c *examined) {
			broken(c)
			l.change()
		}, nil, "3 looks, suspect, unknown: it changes: another call for the container is under way"},
		"it is locked during the second look": {always, func(l *lookedAt) (bool, error) { return l.looks == 2, nil }, "3 looks, suspect, settled"},
		"it is locked all the time": {always, func(*lookedAt) (bool, error) { return true, nil },
			"3 looks, suspect, unknown: it changes: another call for the container is under way"},
		"nobody knows whether it is locked": {always, func(*lookedAt) (bool, error) { return false, errors.New("no") },
			"3 looks, suspect, unknown: it changes: another call for the container is under way"},
		"it is removed after the first look": {func(l *lookedAt, c *examined) {
			broken(c)
			expect.NoError(l.t, l.look.records.Delete("c1"))
		}, nil, "1 looks, suspect, settled, not attached: <nil>"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLookedAt(t, tt.see)
			if tt.locked != nil {
				l.locked = func() (bool, error) { return tt.locked(l) }
			}
			c := l.all(t.Context())
			got := fmt.Sprint(l.looks, " looks")
			if c.suspect() {
				got += ", suspect"
			}
			if c.settled {
				got += ", settled"
			}
			if c.state != stateCompared {
				got += fmt.Sprintf(", %s: %v", c.state, c.reason)
			}
			expect.Same(t, "outcome", got, tt.want)
			if c.state == outcome.StateUnknown {
				expect.Is(t, c.reason, outcome.ErrBusy)
			}
		})
	}
}

// TestABriefLook looks again only at a suspect that may have changed meanwhile.
func TestABriefLook(t *testing.T) {
	for name, tt := range map[string]struct {
		see  func(l *lookedAt, c *examined)
		want string
	}{
		"healthy":         {func(*lookedAt, *examined) {}, "1 looks, suspect false, settled false"},
		"certainly wrong": {func(_ *lookedAt, c *examined) { broken(c) }, "1 looks, suspect true, settled true"},
		"its record changes during the first look": {func(l *lookedAt, c *examined) {
			if broken(c); l.looks == 1 {
				l.change()
			}
		}, "2 looks, suspect true, settled true"},
	} {
		l := newLookedAt(t, tt.see)
		l.look.brief = true
		c := l.all(t.Context())
		expect.Same(t, name, fmt.Sprintf("%d looks, suspect %t, settled %t", l.looks, c.suspect(), c.settled), tt.want)
	}
}

// TestOnlySuspectsAreLookedAtAgain, and each outcome stays that of its container.
func TestOnlySuspectsAreLookedAtAgain(t *testing.T) {
	looks := make(chan record.ID, 100)
	l := &examination{
		records: record.Open(t.TempDir()), isLocked: func(record.ID) (bool, error) { return false, nil }, logger: slog.Default(),
		examine: func(c *examined, _ *contract.Looks) error {
			looks <- c.found.Record.ContainerID
			if c.found.Record.Owner == "broken" {
				broken(c)
			}
			return nil
		},
	}
	const n = 20
	for i := range n {
		rec := &record.Record{ContainerID: record.ID(fmt.Sprint("c", i)), Owner: "healthy"}
		if i%4 == 0 {
			rec.Owner = "broken"
		}
		expect.NoError(t, l.records.Begin(rec))
	}
	found := expect.Value(l.records.List())(t)
	all := l.all(t.Context(), found)
	expect.Same(t, "looks", len(looks), n+n/4)
	for i, c := range all {
		expect.Same(t, "container", c.found.File, found[i].File)
		expect.Same(t, "suspect", c.suspect(), c.found.Record.Owner == "broken")
	}
}

// TestAPanicIsOneContainers: it would end the program.
func TestAPanicIsOneContainers(t *testing.T) {
	c := newLookedAt(t, func(*lookedAt, *examined) { panic("oops") }).all(t.Context())
	expect.That(t, c.state == outcome.StateUnknown && strings.HasPrefix(c.reason.Error(), "panic: oops\n"), "%s: %v", c.state, c.reason)
}

// TestAnEndedContextEndsTheLooks, and leaves what was seen.
func TestAnEndedContextEndsTheLooks(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := newLookedAt(t, func(_ *lookedAt, c *examined) {
		broken(c)
		cancel()
	})
	c := l.all(ctx)
	expect.Same(t, "looks", l.looks, 1)
	expect.Same(t, "state", c.state, stateCompared)
}
