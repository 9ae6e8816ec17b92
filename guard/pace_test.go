package guard

import (
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
)

var begin = time.Unix(1_000_000, 0)

// after returns a time of the test.
func after(d time.Duration) time.Time { return begin.Add(d) }

// isDue reports whether a look is due, which then begins.
func (p *pace) isDue(now time.Time) bool {
	at := p.due()
	if at.IsZero() || now.Before(at) {
		return false
	}
	p.look()
	return true
}

// begun returns the pace of a guard that has looked once.
func begun(t *testing.T) *pace {
	t.Helper()
	p := &pace{again: begin}
	expect.Same(t, "the first look", p.isDue(begin), true)
	p.looked(begin, 0, nil)
	return p
}

// TestALookWaitsForQuiet, but not for ever.
func TestALookWaitsForQuiet(t *testing.T) {
	for what, tt := range map[string]struct {
		every time.Duration // announcements
		until time.Duration
		want  time.Duration // the look
	}{
		"one":          {time.Second, time.Second, 1100 * time.Millisecond},
		"some":         {50 * time.Millisecond, 1100 * time.Millisecond, 1200 * time.Millisecond},
		"without rest": {50 * time.Millisecond, time.Minute, 1300 * time.Millisecond},
	} {
		p := begun(t)
		due := false
		var now time.Time
		for d := time.Second; !due && d < 2*time.Second; d += 10 * time.Millisecond {
			now = after(d)
			if d <= tt.until && (d-time.Second)%tt.every == 0 {
				p.hear(now)
			}
			due = p.isDue(now)
		}
		expect.Same(t, what, now.Sub(begin), tt.want)
	}
}

// TestLooksTakeAFifthOfTheTime, whatever is announced, and however long they take, but for
// the last one.
func TestLooksTakeAFifthOfTheTime(t *testing.T) {
	for _, took := range []time.Duration{time.Millisecond, 50 * time.Millisecond, time.Second} {
		p := begun(t)
		var looking time.Duration
		now := begin
		for now.Before(after(time.Minute)) {
			p.hear(now)
			if !p.isDue(now) {
				now = now.Add(time.Millisecond)
				continue
			}
			now = now.Add(took)
			looking += took
			p.looked(now, took, nil)
		}
		if share := (looking - took).Seconds() / now.Sub(begin).Seconds(); share > 0.2 {
			t.Errorf("looks of %v take %.2f of the time", took, share)
		}
		if looking == 0 {
			t.Errorf("no look of %v", took)
		}
	}
}

// TestNothingIsDueWithoutAnAnnouncement: an idle guard sleeps.
func TestNothingIsDueWithoutAnAnnouncement(t *testing.T) {
	expect.Same(t, "nothing is due", begun(t).due().IsZero(), true)
}

// TestFailuresAreRepeated more and more rarely.
func TestFailuresAreRepeated(t *testing.T) {
	p := begun(t)
	now := after(time.Second)
	var pauses []time.Duration
	for n := range 16 {
		p.retry(now, n+1, lastRetry)
		pauses = append(pauses, p.due().Sub(now))
		now = p.due()
		expect.Same(t, "it is due", p.isDue(now), true)
	}
	expect.Same(t, "pauses", []time.Duration{pauses[0], pauses[1], pauses[2], pauses[15]},
		[]time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, time.Minute})
	expect.Same(t, "nothing is left", p.due().IsZero(), true)

	p.looked(now, time.Millisecond, cni.ErrBusy)
	expect.Same(t, "after a look that failed", p.due().Sub(now), 2*shortestRest)
}

// TestDecide: a part that is lost repeatedly is left until it is back, and each part that is left is
// reported once.
func TestDecide(t *testing.T) {
	all := make(suspects)
	rule := cni.Difference{Network: "net", Kind: "rule", Object: "r", Repairable: true}
	other := cni.Difference{Network: "net", Kind: "bridge", Object: "b"}
	step := func(d time.Duration, diff cni.Difference, what Kind, news bool) {
		t.Helper()
		got, told := all.decide(after(d), "c1", diff, Rules|Links)
		expect.Same(t, "decision", []any{got, told}, []any{what, news})
	}
	back := func(d time.Duration) { all.compared(after(d), "c1", nil) }
	step(0, rule, Repaired, false)
	step(0, rule, Repaired, false) // it is the same loss
	back(0)
	step(10*time.Second, rule, Repaired, false)
	back(10 * time.Second)
	step(20*time.Second, rule, Contested, true)
	step(21*time.Second, rule, Contested, false)
	step(5*time.Minute, rule, Contested, false)
	expect.Same(t, "open", all.areOpen(), true)
	back(5 * time.Minute)
	expect.Same(t, "open", all.areOpen(), false)
	step(5*time.Minute, rule, Repaired, false)

	step(0, other, Left, true)
	step(0, other, Left, false)
	step(0, cni.Difference{Kind: "route", Repairable: true}, "", false) // not of a class that is guarded
	step(0, cni.Difference{Kind: "rule", Repairable: true, Inside: true}, "", false)
}
