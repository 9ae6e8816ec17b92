package abandoned

import (
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

// TestManySearchesReadAHundredthOfTheTime: as one alone does. The clock is the test's.
func TestManySearchesReadAHundredthOfTheTime(t *testing.T) {
	const searches, took = 500, 2 * time.Millisecond
	var p pace
	start := time.Unix(1_000_000_000, 0)
	now, end := start, start.Add(time.Minute)
	var due [searches]time.Time
	read, asked := time.Duration(0), 0
	for ; now.Before(end); now = now.Add(time.Millisecond) {
		for i := range due {
			if now.Before(due[i]) {
				continue
			}
			asked++
			wait, ok := p.begin(now)
			if !ok {
				due[i] = now.Add(wait)
				continue
			}
			if _, ok := p.begin(now); ok {
				t.Fatal("two passes began at once")
			}
			p.looked(now.Add(took), took)
			read += took
			due[i] = now.Add(10 * time.Second)
		}
	}
	if share := float64(read) / float64(end.Sub(start)); share > 0.0101 || share < 0.009 {
		t.Errorf("reading took %.2f %% of the time, want 1 %%", 100*share)
	}
	t.Logf("asked %d times", asked)
}

func TestAShortPassHoldsUpOthersShortly(t *testing.T) {
	var p pace
	now := time.Unix(1_000_000_000, 0)
	_, ok := p.begin(now)
	expect.Same(t, "the first begins", ok, true)
	wait, ok := p.begin(now)
	expect.Same(t, "another begins meanwhile", ok, false)
	expect.Same(t, "the longest wait", wait, restFor*lookFor)
	p.looked(now, 20*time.Microsecond)
	wait, _ = p.begin(now)
	expect.Same(t, "wait after few records", wait, 2*time.Millisecond)
	_, ok = p.begin(now.Add(wait))
	expect.Same(t, "it begins then", ok, true)
	p.looked(now, time.Hour) // of a machine that slept
	wait, _ = p.begin(now)
	expect.Same(t, "wait after a pause of the machine", wait, longestRest)
}
