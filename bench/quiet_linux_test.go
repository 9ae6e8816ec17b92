package main

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestIdleSince(t *testing.T) {
	parse := func(stat string) ticks {
		t.Helper()
		v, err := parseTicks(stat)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	before := parse("cpu  100 5 200 1000 20 0 30 0 0 0\ncpu0 50 2 100 500 10 0 15 0 0 0\n")
	if want := (ticks{idle: 1020, all: 1355}); before != want {
		t.Errorf("got %+v, want %+v", before, want)
	}
	after := parse("cpu  110 5 210 1070 30 0 30 0 0 0\n")
	if got, want := after.idleSince(before), 0.8; got != want {
		t.Errorf("idle for %v, want %v", got, want)
	}
	if got := before.idleSince(before); got != 0 {
		t.Errorf("idle for %v of no time, want 0", got)
	}
	if _, err := parseTicks("cpu  1 2"); err == nil {
		t.Error("read a line that is cut off")
	}
}

func TestQuietEndsWithItsContext(t *testing.T) {
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if ok, err := quiet(ctx, time.Now().Add(time.Minute)); ok || !errors.Is(err, why) {
		t.Errorf("got %v, %v, want %v", ok, err, why)
	}
}

func TestQuietLeavesTimeToMeasure(t *testing.T) {
	now := time.Now()
	for left, want := range map[time.Duration]time.Duration{
		time.Hour: quietAtAll, 3 * time.Minute: 90 * time.Second, time.Second: quietLeast, -time.Minute: quietLeast,
	} {
		if got := quietUntil(now, now.Add(left)).Sub(now); got != want {
			t.Errorf("with %v left it waits %v, want %v", left, got, want)
		}
	}
}
