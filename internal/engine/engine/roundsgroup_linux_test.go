package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/outcome"
)

// bridgeHost is a fake host with a bridge, and containers that each have a port on it
// and a rule.
type bridgeHost struct {
	*bench
	mu      sync.Mutex
	bridge  bool
	ports   []bool
	rules   []bool
	ours    []bool  // the container's record says that the bridge is ours
	refused []error // the container's rule
	applied [][]int // the rules that were made together
	fixed   map[string]int
	told    [][]bool // announcements by container, and whether only to those who have not answered
	after   func()   // after each fix
	instead func(ctx context.Context, n int, d contract.Difference) (done bool, err error)
}

func newBridgeHost(b *bench, n int) *bridgeHost {
	h := &bridgeHost{
		bench: b, ports: make([]bool, n), rules: make([]bool, n), ours: make([]bool, n), refused: make([]error, n),
		fixed: map[string]int{}, told: make([][]bool, n),
	}
	for i := range n {
		h.ours[i] = true
	}
	return h
}

// all returns the attachments.
func (h *bridgeHost) all() []*repairing {
	return h.attachments(len(h.ports), func(_ context.Context, n int) []contract.Difference { return h.compare(n) })
}

func (h *bridgeHost) compare(n int) (all []contract.Difference) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range []contract.Difference{
		{Kind: contract.Bridge, Object: "br0", Shared: true},
		{Kind: contract.BridgePort, Object: fmt.Sprint("veth", n)},
		{Kind: contract.Rule, Object: fmt.Sprint("rule", n)},
	} {
		if *h.has(n, d) {
			continue
		}
		d.Plugin, d.Announce = "bridge", func(_ context.Context, unanswered bool) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.told[n] = append(h.told[n], unanswered)
			return nil
		}
		if !d.Shared || h.ours[n] {
			d.Fix = func(ctx context.Context) error { return h.fix(ctx, n, d) }
		}
		all = append(all, d)
	}
	return all
}

func (h *bridgeHost) has(n int, d contract.Difference) *bool {
	switch d.Kind {
	case contract.Bridge:
		return &h.bridge
	case contract.BridgePort:
		return &h.ports[n]
	}
	return &h.rules[n]
}

func (h *bridgeHost) fix(ctx context.Context, n int, d contract.Difference) error {
	if h.instead != nil {
		if done, err := h.instead(ctx, n, d); done {
			return err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	h.fixed[d.Object]++
	if h.after != nil {
		defer h.after()
	}
	if d.Kind == contract.Rule {
		if b := contract.From(ctx).Batch; b != nil {
			return thread.Join(ctx, b, "rules", n, h.apply)
		}
		return h.addRules([]int{n})
	}
	if d.Kind == contract.BridgePort && !h.bridge {
		return errors.New("no bridge")
	}
	*h.has(n, d) = true
	return nil
}

func (h *bridgeHost) apply(ctx context.Context, members []int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.applied = append(h.applied, slices.Clone(members))
	return errors.Join(ctx.Err(), h.addRules(members))
}

// addRules adds all of the rules, or none.
func (h *bridgeHost) addRules(members []int) error {
	for _, n := range members {
		if h.refused[n] != nil {
			return h.refused[n]
		}
	}
	for _, n := range members {
		h.rules[n] = true
	}
	return nil
}

// TestAGroupIsRepairedTogether: what all share once, the rules in one go, and one that
// is refused is its own container's failure.
func TestAGroupIsRepairedTogether(t *testing.T) {
	const n, bad, unread = 40, 7, 9
	h := newBridgeHost(newBench(t), n)
	h.refused[bad] = errRefused
	h.ours[0] = false // an earlier version made its attachment
	all := h.all()
	all[unread].runner.Container = nil
	runRounds(t.Context(), all)
	expect.Same(t, "repairs of the bridge", h.fixed["br0"], 1)
	expect.Same(t, "rules that were made together", len(h.applied[0]), n-1)
	bridges := 0
	for i, r := range all {
		switch i {
		case unread:
			expect.Is(t, r.err, outcome.ErrInvalidNetNS)
			continue
		case bad:
			expect.Same(t, "left", len(r.left), 1)
			expect.Is(t, r.left[0].reason, errRefused)
		default:
			expect.Same(t, fmt.Sprint("left of ", i), len(r.left), 0)
		}
		expect.NoError(t, r.err)
		if slices.ContainsFunc(r.repaired, func(d contract.Difference) bool { return d.Object == "br0" }) {
			bridges++
		}
		expect.That(t, h.ports[i] && slices.Equal(h.told[i], []bool{false, true}),
			"container %d: its port is there: %t, announced %v", i, h.ports[i], h.told[i])
	}
	expect.Same(t, "containers for which the bridge was repaired", bridges, 1)
}

// TestOneThatHangsDelaysTheOthersLittle, and is its own failure.
func TestOneThatHangsDelaysTheOthersLittle(t *testing.T) {
	const n, bad = 20, 3
	h := newBridgeHost(newBench(t), n)
	h.bridge = true
	h.instead = func(ctx context.Context, n int, d contract.Difference) (bool, error) {
		if n != bad || d.Kind != contract.BridgePort {
			return false, nil
		}
		<-ctx.Done()
		return true, ctx.Err()
	}
	begun := time.Now()
	all := h.all()
	runRounds(t.Context(), all)
	for i, r := range all {
		expect.NoError(t, r.err)
		want := 0
		if i == bad {
			want = 1
			expect.Is(t, r.left[0].reason, errSlow)
		}
		expect.Same(t, fmt.Sprint("left of ", i), len(r.left), want)
	}
	took := time.Since(begun)
	expect.That(t, took <= expect.Patience, "took %v", took)
}

// TestWhoeverKnowsBetterRepairsWhatIsShared: the first container's repair changes
// nothing, because its record is of an older bridge.
func TestWhoeverKnowsBetterRepairsWhatIsShared(t *testing.T) {
	h := newBridgeHost(newBench(t), 2)
	h.rules = []bool{true, true}
	h.instead = func(_ context.Context, n int, d contract.Difference) (bool, error) { return n == 0 && d.Shared, nil }
	all := h.all()
	runRounds(t.Context(), all)
	for i, r := range all {
		expect.NoError(t, r.err)
		expect.Same(t, fmt.Sprint("left of ", i), len(r.left), 0)
	}
}

// TestRandomGroups: whatever is broken and refused, and wherever it is stopped, the next
// repair makes everything that can be made, and reports the rest.
func TestRandomGroups(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	b := newBench(t)
	for range 300 {
		n := 1 + random.IntN(30)
		h := newBridgeHost(b, n)
		h.bridge = random.IntN(2) == 0
		anybody := h.bridge
		for i := range n {
			h.ports[i], h.rules[i], h.ours[i] = h.bridge && random.IntN(2) == 0, random.IntN(2) == 0, random.IntN(3) > 0
			if random.IntN(10) == 0 {
				h.refused[i] = errRefused
			}
			anybody = anybody || h.ours[i]
		}
		before := slices.Clone(h.rules)
		ctx, cancel := context.WithCancel(t.Context())
		stop := random.IntN(2 * n)
		h.after = func() {
			if stop--; stop == 0 {
				cancel()
			}
		}
		runRounds(ctx, h.all())
		cancel()
		h.after = nil
		all := h.all()
		runRounds(t.Context(), all)
		for i, r := range all {
			want := 0
			if !anybody {
				want++ // the bridge
			}
			if !anybody {
				want++ // and the port
			}
			if !before[i] && h.refused[i] != nil {
				want++
			}
			if r.err != nil || len(r.left) != want || h.bridge != anybody || h.ports[i] != anybody || h.rules[i] == (h.refused[i] != nil && !before[i]) {
				t.Fatalf("seed %d: container %d of %d: repaired %+v, left %+v, %v, want %d left; bridge %t, port %t, rule %t", seed, i, n, r.repaired, r.left, r.err, want, h.bridge, h.ports[i], h.rules[i])
			}
			for _, left := range r.left {
				expect.Must(t, left.reason != nil, "seed %d: no reason for %s", seed, left.Object)
			}
		}
	}
}
