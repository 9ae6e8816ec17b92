package firstadd

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/shared"
)

// patience limits the wait for events that must happen, blink for those that
// must not.
const (
	patience = 20 * time.Second
	blink    = 20 * time.Millisecond
)

func key(network string, types ...string) Key {
	return Key{Network: network, Host: "4:1", Types: func() []string { return types }, Config: [][]byte{[]byte(network)}}
}

// newTracker returns another tracker of the process.
func newTracker(dir string) *Tracker {
	t := New(lock.Open(filepath.Join(dir, "locks")))
	t.Within(time.Hour, time.Hour)
	return t
}

// newProcess returns a tracker of another process: only the locks are common.
func newProcess(dir string) *Tracker {
	t := newTracker(dir)
	t.ref = &shared.Ref[memory]{Value: &memory{}}
	return t
}

// begin returns the outcome of a Begin: "first", "later", or "waits".
func begin(t *testing.T, tracker *Tracker, k Key) (*First, string) {
	t.Helper()
	return beginWithin(t, tracker, k, patience)
}

func beginWithin(t *testing.T, tracker *Tracker, k Key, limit time.Duration) (*First, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	f, err := tracker.Begin(ctx, k)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, "waits"
	case err != nil:
		t.Fatal(err)
	case f.first:
		return f, "first"
	}
	return f, "later"
}

// want checks the outcome of a Begin, and ends it with ok.
func want(t *testing.T, tracker *Tracker, k Key, ok bool, wanted string) {
	t.Helper()
	limit := patience
	if wanted == "waits" {
		limit = blink
	}
	f, got := beginWithin(t, tracker, k, limit)
	if got != wanted {
		t.Errorf("the ADD of %s: %s, want %s", k.Network, got, wanted)
	}
	if f == nil {
		return
	}
	if err := f.End(ok); err != nil {
		t.Error(err)
	}
}

func TestFirstADDBlocksNetworksWithACommonPluginType(t *testing.T) {
	dir := t.TempDir()
	tracker, other := newTracker(dir), newProcess(dir)
	f, got := begin(t, tracker, key("podnet", "bridge", "portmap", "portmap"))
	if got != "first" {
		t.Fatalf("the first ADD is %s", got)
	}
	for _, process := range []*Tracker{tracker, other} {
		want(t, process, key("podnet", "bridge", "portmap"), true, "waits")
		want(t, process, key("second", "macvlan", "portmap"), true, "waits")
		want(t, process, key("third", "bridge"), true, "waits")
		want(t, process, key("fourth", "macvlan", "tuning"), false, "first")
		want(t, process, key("fifth"), false, "first")
	}
	if err := f.End(true); err != nil {
		t.Fatal(err)
	}
	want(t, other, key("second", "macvlan", "portmap"), true, "first")
}

func TestAfterASuccessNobodyWaits(t *testing.T) {
	dir := t.TempDir()
	tracker := newTracker(dir)
	want(t, tracker, key("podnet", "bridge"), true, "first")
	for name, same := range map[string]*Tracker{"the same": tracker, "another": newTracker(dir)} {
		one, got := begin(t, same, key("podnet", "bridge"))
		two, again := begin(t, same, key("podnet", "bridge"))
		if got != "later" || again != "later" {
			t.Fatalf("of %s Runtime: %s and %s", name, got, again)
		}
		if err := errors.Join(one.End(true), two.End(false)); err != nil {
			t.Error(err)
		}
	}
	want(t, newTracker(dir), key("podnet", "bridge"), true, "later") // a later failure changes nothing
}

// TestEachProcessHasAFirst: it runs alone, and those after it do not wait.
func TestEachProcessHasAFirst(t *testing.T) {
	dir := t.TempDir()
	one, other := newProcess(dir), newProcess(dir)
	f, got := begin(t, one, key("podnet", "bridge"))
	if got != "first" {
		t.Fatal(got)
	}
	want(t, other, key("podnet", "bridge"), true, "waits")
	if err := f.End(true); err != nil {
		t.Fatal(err)
	}
	want(t, other, key("podnet", "bridge"), true, "first")
	want(t, other, key("podnet", "bridge"), true, "later")
}

func TestAFailedFirstLeavesTheNextOneFirst(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		want(t, newTracker(dir), key("podnet", "bridge"), false, "first")
	}
	want(t, newTracker(dir), key("podnet", "bridge"), true, "first")
	want(t, newTracker(dir), key("podnet", "bridge"), true, "later")
}

func TestKeysWithAFirstOfTheirOwn(t *testing.T) {
	base := key("podnet", "bridge")
	for _, change := range map[string]func(*Key){
		"a capability":       func(k *Key) { k.Capabilities = []string{"portMappings"} },
		"two capabilities":   func(k *Key) { k.Capabilities = []string{"bandwidth", "portMappings"} },
		"another host":       func(k *Key) { k.Host = "4:2" },
		"another config":     func(k *Key) { k.Config = [][]byte{[]byte("podnet ")} },
		"other plugins' cut": func(k *Key) { k.Config = [][]byte{[]byte("pod"), []byte("net")} },
		"another network":    func(k *Key) { k.Network = "podnet2" },
	} {
		dir := t.TempDir()
		want(t, newTracker(dir), base, true, "first")
		changed := base
		change(&changed)
		want(t, newTracker(dir), changed, true, "first")
		want(t, newTracker(dir), changed, true, "later")
	}
}

// TestFault_F32_ConfigurationsOfOneNameHaveAFirstEach: the first ADD of one does not
// make the other the first again, container after container.
func TestFault_F32_ConfigurationsOfOneNameHaveAFirstEach(t *testing.T) {
	v4, v6 := key("podnet", "bridge"), key("podnet", "bridge")
	v4.IfName, v6.IfName, v6.Config = "eth0", "eth2", [][]byte{[]byte("IPv6")}
	dir := t.TempDir()
	for _, wanted := range []string{"first", "later", "later"} {
		want(t, newTracker(dir), v4, true, wanted)
		want(t, newTracker(dir), v6, true, wanted)
	}
}

// TestOfACrowdOneIsFirst: the others wait, find the first one's objects, and
// run concurrently. None runs beside the first.
func TestOfACrowdOneIsFirst(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		firsts int
		over   bool // the first has ended
	)
	for i := range 20 {
		tracker := newTracker(dir)
		wg.Add(1)
		go func() {
			defer wg.Done()
			f, err := tracker.Begin(ctx, key("podnet", "bridge"))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			if f.first {
				firsts++
				over = true // under the lock that excludes the others
			} else if !over {
				t.Errorf("%d runs while the first one does", i)
			}
			mu.Unlock()
			if err := f.End(true); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	if firsts != 1 {
		t.Errorf("%d were the first", firsts)
	}
}

func TestBeginEndsWithItsContext(t *testing.T) {
	tracker := newTracker(t.TempDir())
	f, _ := begin(t, tracker, key("podnet", "bridge"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tracker.Begin(ctx, key("podnet", "bridge")); !errors.Is(err, context.Canceled) {
		t.Errorf("Begin: %v", err)
	}
	if err := f.End(true); err != nil {
		t.Fatal(err)
	}
	want(t, tracker, key("podnet", "bridge"), true, "later")
}

// began fails the test unless Begin returns, with or without a turn.
func began(t *testing.T, tracker *Tracker, k Key, alone bool) *First {
	t.Helper()
	f, got := begin(t, tracker, k)
	if got != "first" || (f.turn != nil) != alone {
		t.Fatalf("the ADD of %s is %s, turn %v; want it first, and alone: %t", k.Network, got, f != nil && f.turn != nil, alone)
	}
	return f
}

func TestFault_F31_NobodyIsAloneForLongerThanAMoment(t *testing.T) {
	dir := t.TempDir()
	hangs, other, process := newTracker(dir), newTracker(dir), newTracker(dir)
	hangs.Within(time.Millisecond, time.Hour)
	first := began(t, hangs, key("podnet", "bridge"), true)
	// Neither waits for the end of the first.
	second := began(t, hangs, key("second", "bridge"), true)
	third := began(t, other, key("third", "bridge"), true)
	if err := errors.Join(third.End(true), second.End(true), first.End(true)); err != nil {
		t.Error(err)
	}
	want(t, process, key("podnet", "bridge"), true, "later")
}

func TestFault_F31_NobodyWaitsLongerThanAMoment(t *testing.T) {
	dir := t.TempDir()
	first := began(t, newTracker(dir), key("podnet", "bridge"), true) // as a process of an earlier version
	impatient := newTracker(dir)
	impatient.Within(time.Hour, time.Millisecond)
	beside := began(t, impatient, key("podnet", "bridge"), false)
	if err := beside.End(true); err != nil {
		t.Error(err)
	}
	want(t, impatient, key("podnet", "bridge"), true, "later")
	if err := first.End(false); err != nil {
		t.Error(err)
	}
}

func TestFault_F31_AnADDWithoutSharedObjectsDoesNotWait(t *testing.T) {
	tracker := newTracker(t.TempDir())
	first := began(t, tracker, key("podnet", "bridge"), true)
	beside := began(t, tracker, key("second"), false)
	if err := errors.Join(beside.End(true), first.End(true)); err != nil {
		t.Error(err)
	}
	want(t, tracker, key("second"), true, "later")
}

func TestATypeIsNotAskedForOnceThereWasAFirst(t *testing.T) {
	tracker := newTracker(t.TempDir())
	want(t, tracker, key("podnet", "bridge"), true, "first")
	k := key("podnet")
	k.Types = func() []string { t.Error("asked"); return nil }
	want(t, tracker, k, true, "later")
}
