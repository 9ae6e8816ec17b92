package runner

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/netns"
)

// patience limits the wait for events that must happen, blink for those that
// must not.
const (
	patience = 20 * time.Second
	blink    = 20 * time.Millisecond
)

// adding is an ADD of a network, and the types of its plugins that may race.
type adding struct {
	of    string
	types []string
}

func key(network string, types ...string) adding { return adding{network, types} }

// begin begins the ADD.
func (a adding) begin(ctx context.Context, tracker *Firsts) (end func(bool) error, err error) {
	keys := func() (keys []lock.Key) {
		for _, typ := range a.types {
			keys = append(keys, lock.Key{Name: "first/" + typ})
		}
		return keys
	}
	return tracker.begin(ctx, a.of, keys, tracker.wait, func() bool { return false })
}

// newTracker returns another tracker of the process.
func newTracker(dir string) *Firsts {
	t := NewFirsts(lock.Open(filepath.Join(dir, "locks")))
	t.Within(time.Hour, time.Hour)
	return t
}

// newProcess returns a tracker of another process: only the locks are common.
func newProcess(dir string) *Firsts {
	t := newTracker(dir)
	t.memory = &sync.Map{}
	return t
}

// beginFirst returns the outcome of a beginning: "first", "later", or "waits".
func beginFirst(t *testing.T, tracker *Firsts, a adding, limit time.Duration) (end func(bool) error, outcome string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	end, err := a.begin(ctx, tracker)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, "waits"
	case err != nil:
		t.Fatal(err)
	case tracker.knows(a.of):
		return end, "later"
	}
	return end, "first"
}

// want checks the outcome of a beginning, and ends it with ok.
func want(t *testing.T, tracker *Firsts, a adding, ok bool, wanted string) {
	t.Helper()
	limit := patience
	if wanted == "waits" {
		limit = blink
	}
	end, got := beginFirst(t, tracker, a, limit)
	expect.Same(t, "the ADD of "+a.of, got, wanted)
	if end == nil {
		return
	}
	expect.Succeeds(t, "end", end(ok))
}

// first begins an ADD that is the first, which the caller ends.
func first(t *testing.T, tracker *Firsts, a adding) (end func(bool) error) {
	t.Helper()
	end, got := beginFirst(t, tracker, a, patience)
	expect.Must(t, got == "first", "the ADD of %s is %s", a.of, got)
	return end
}

func TestFirstADDBlocksNetworksWithACommonPluginType(t *testing.T) {
	dir := t.TempDir()
	tracker, other := newTracker(dir), newProcess(dir)
	end := first(t, tracker, key("podnet", "bridge", "portmap", "portmap"))
	for _, process := range []*Firsts{tracker, other} {
		want(t, process, key("podnet", "bridge", "portmap"), true, "waits")
		want(t, process, key("second", "macvlan", "portmap"), true, "waits")
		want(t, process, key("third", "bridge"), true, "waits")
		want(t, process, key("fourth", "macvlan", "tuning"), false, "first")
		want(t, process, key("fifth"), false, "first")
	}
	expect.NoError(t, end(true))
	want(t, other, key("second", "macvlan", "portmap"), true, "first")
}

func TestAfterASuccessNobodyWaits(t *testing.T) {
	dir := t.TempDir()
	tracker := newTracker(dir)
	want(t, tracker, key("podnet", "bridge"), true, "first")
	want(t, tracker, key("podnet", "bridge"), false, "later")
	want(t, newTracker(dir), key("podnet", "bridge"), true, "later") // a later failure changes nothing
}

// adds returns the key of an ADD to a network of that name whose plugins have these
// configurations.
func adds(name string, host *netns.Handle, configs []string, capabilities ...string) adding {
	r := &Runner{Network: &libcni.NetworkConfigList{Name: name}, Host: host}
	for _, c := range configs {
		r.Network.Plugins = append(r.Network.Plugins, &libcni.PluginConfig{Bytes: []byte(c)})
	}
	return adding{r.made("first", capabilities...), []string{"bridge"}}
}

func TestKeysWithAFirstOfTheirOwn(t *testing.T) {
	host := expect.Value(netns.Current())(t)
	defer host.Close()
	config := []string{"podnet"}
	base := adds("podnet", host, config)
	for _, changed := range map[string]adding{
		"a capability":       adds("podnet", host, config, "portMappings"),
		"two capabilities":   adds("podnet", host, config, "bandwidth", "portMappings"),
		"another host":       adds("podnet", nil, config),
		"another config":     adds("podnet", host, []string{"podnet "}),
		"other plugins' cut": adds("podnet", host, []string{"pod", "net"}),
		"another network":    adds("podnet2", host, config),
	} {
		dir := t.TempDir()
		want(t, newTracker(dir), base, true, "first")
		want(t, newTracker(dir), changed, true, "first")
		want(t, newTracker(dir), changed, true, "later")
	}
}

// TestFault_F32_ConfigurationsOfOneNameHaveAFirstEach: the first ADD of one does not
// make the other the first again, container after container.
func TestFault_F32_ConfigurationsOfOneNameHaveAFirstEach(t *testing.T) {
	v4, v6 := adds("podnet", nil, []string{"podnet"}), adds("podnet", nil, []string{"IPv6"})
	dir := t.TempDir()
	for _, wanted := range []string{"first", "later", "later"} {
		want(t, newTracker(dir), v4, true, wanted)
		want(t, newTracker(dir), v6, true, wanted)
	}
}

func TestBeginEndsWithItsContext(t *testing.T) {
	tracker := newTracker(t.TempDir())
	end := first(t, tracker, key("podnet", "bridge"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect.Is(t, expect.Err(key("podnet", "bridge").begin(ctx, tracker)), context.Canceled)
	expect.NoError(t, end(true))
	want(t, tracker, key("podnet", "bridge"), true, "later")
}

func TestATypeIsNotAskedForOnceThereWasAFirst(t *testing.T) {
	tracker := newTracker(t.TempDir())
	want(t, tracker, key("podnet", "bridge"), true, "first")
	end, err := tracker.begin(t.Context(), "podnet", func() []lock.Key { t.Error("asked"); return nil }, tracker.wait, nil)
	expect.That(t, err == nil && end(true) == nil, "%v", err)
}

func TestOneWaitsForTheOneThatMakes(t *testing.T) {
	tracker := newTracker(t.TempDir())
	keys := func() []lock.Key { return []lock.Key{{Name: "shared/firewall"}} }
	var made atomic.Bool
	end := expect.Value(tracker.begin(t.Context(), "podnet", keys, time.Hour, made.Load))(t)
	made.Store(true) // a part is there, and the first plugin still makes the rest
	second := make(chan error, 1)
	go func() {
		end, err := tracker.begin(t.Context(), "podnet", keys, time.Hour, made.Load)
		if err == nil {
			err = end(true)
		}
		second <- err
	}()
	select {
	case err := <-second:
		t.Fatal("a second one began while the first one made what they share: ", err)
	case <-time.After(blink):
	}
	expect.NoError(t, end(true))
	expect.NoError(t, expect.Await(t, "the second one", second))
}
