package health

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/expect"
)

// bridgeHost is a fake host with a bridge, and containers that each have a port on it
// and a rule.
type bridgeHost struct {
	mu      sync.Mutex
	bridge  bool
	ports   []bool
	rules   []bool
	ours    []bool  // the container's record says that the bridge is ours
	refused []error // the container's rule
	unread  []error // the container
	delayed [][]int // the rules of each Apply
	fixed   map[string]int
	told    [][]bool // announcements by container, and whether only to those who have not answered
	after   func()   // after each fix
}

func newBridgeHost(n int) *bridgeHost {
	h := &bridgeHost{
		ports: make([]bool, n), rules: make([]bool, n), ours: make([]bool, n), refused: make([]error, n), unread: make([]error, n),
		fixed: map[string]int{}, told: make([][]bool, n),
	}
	for i := range n {
		h.ours[i] = true
	}
	return h
}

func (h *bridgeHost) Compare(ctx context.Context, members []int) []Comparison {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]Comparison, len(members))
	for i, n := range members {
		if all[i].Err = errors.Join(ctx.Err(), h.unread[n]); all[i].Err != nil {
			continue
		}
		announce := func(context.Context, bool) error { return nil }
		add := func(d compare.Difference, set *bool) {
			d.Plugin, d.Announce = "bridge", announce
			if d.Object != "br0" || h.ours[n] {
				d.Fix = func(context.Context) error {
					if d.Object != "br0" && d.Kind == compare.BridgePort && !h.bridge {
						return errors.New("no bridge")
					}
					*set = true
					return nil
				}
			}
			all[i].Differences = append(all[i].Differences, d)
		}
		if !h.bridge {
			add(compare.Difference{Kind: compare.Bridge, Object: "br0", Shared: true}, &h.bridge)
		}
		if !h.ports[n] {
			add(compare.Difference{Kind: compare.BridgePort, Object: fmt.Sprint("veth", n)}, &h.ports[n])
		}
		if !h.rules[n] {
			add(compare.Difference{Kind: compare.Rule, Object: fmt.Sprint("rule", n)}, &h.rules[n])
		}
	}
	return all
}

func (h *bridgeHost) Fix(ctx context.Context, n int, d compare.Difference, together bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	h.fixed[d.Object]++
	if h.after != nil {
		defer h.after()
	}
	if d.Kind != compare.Rule {
		return d.Fix(ctx)
	}
	if together {
		return nil
	}
	if h.refused[n] == nil {
		return d.Fix(ctx)
	}
	return h.refused[n]
}

func (h *bridgeHost) Apply(ctx context.Context, members []int) []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.delayed = append(h.delayed, slices.Clone(members))
	errs := make([]error, len(members))
	for i, n := range members {
		if errs[i] = errors.Join(ctx.Err(), h.refused[n]); errs[i] == nil {
			h.rules[n] = true
		}
	}
	return errs
}

func (h *bridgeHost) Announce(_ context.Context, n int, _ compare.Difference, unanswered bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.told[n] = append(h.told[n], unanswered)
}

// TestAGroupIsRepairedTogether: what all share once, the rules in one go, and one that
// is refused is its own container's failure.
func TestAGroupIsRepairedTogether(t *testing.T) {
	const n, bad, unread = 40, 7, 9
	h := newBridgeHost(n)
	h.refused[bad], h.unread[unread] = errRefused, errors.New("no netlink")
	h.ours[0] = false // an earlier version made its attachment
	results := Repair(t.Context(), h, make([]RepairOptions, n))
	expect.Same(t, "repairs of the bridge", h.fixed["br0"], 1)
	expect.Same(t, "calls of Apply with all", len(h.delayed[0]), n-1)
	bridges := 0
	for i, r := range results {
		switch i {
		case unread:
			expect.Is(t, r.Err, h.unread[i])
			continue
		case bad:
			expect.Same(t, "left", len(r.Left), 1)
			expect.Is(t, r.Left[0].Reason, errRefused)
		default:
			expect.Same(t, fmt.Sprint("left of ", i), len(r.Left), 0)
		}
		expect.NoError(t, r.Err)
		if slices.ContainsFunc(r.Repaired, func(d compare.Difference) bool { return d.Object == "br0" }) {
			bridges++
		}
		if !h.ports[i] || !slices.Equal(h.told[i], []bool{false, true}) {
			t.Errorf("container %d: its port is there: %t, announced %v", i, h.ports[i], h.told[i])
		}
	}
	expect.Same(t, "containers for which the bridge was repaired", bridges, 1)
}

// TestOneThatHangsDelaysTheOthersLittle, and is its own failure.
func TestOneThatHangsDelaysTheOthersLittle(t *testing.T) {
	const n, bad = 20, 3
	h := newBridgeHost(n)
	h.bridge = true
	begun := time.Now()
	for i, r := range Repair(t.Context(), hanging{h, bad}, make([]RepairOptions, n)) {
		expect.NoError(t, r.Err)
		want := 0
		if i == bad {
			want = 1
			expect.Is(t, r.Left[0].Reason, errSlow)
		}
		expect.Same(t, fmt.Sprint("left of ", i), len(r.Left), want)
	}
	if took := time.Since(begun); took > expect.Patience {
		t.Errorf("took %v", took)
	}
}

// hanging is a host on which the repair of one container's port takes for ever.
type hanging struct {
	*bridgeHost
	container int
}

func (g hanging) Fix(ctx context.Context, n int, d compare.Difference, together bool) error {
	if n == g.container && d.Kind == compare.BridgePort {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return g.bridgeHost.Fix(ctx, n, d, together)
}

// TestWhoeverKnowsBetterRepairsWhatIsShared: the first container's repair changes
// nothing, because its record is of an older bridge.
func TestWhoeverKnowsBetterRepairsWhatIsShared(t *testing.T) {
	h := newBridgeHost(2)
	h.rules = []bool{true, true}
	g := stale{h}
	results := Repair(t.Context(), g, make([]RepairOptions, 2))
	for i, r := range results {
		expect.NoError(t, r.Err)
		expect.Same(t, fmt.Sprint("left of ", i), len(r.Left), 0)
	}
}

// stale is a host whose first container's repair of the bridge does nothing.
type stale struct{ *bridgeHost }

func (g stale) Fix(ctx context.Context, n int, d compare.Difference, together bool) error {
	if n == 0 && d.Shared {
		return nil
	}
	return g.bridgeHost.Fix(ctx, n, d, together)
}

// TestRandomGroups: whatever is broken and refused, and wherever it is stopped, the next
// repair makes everything that can be made, and reports the rest.
func TestRandomGroups(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		n := 1 + random.IntN(30)
		h := newBridgeHost(n)
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
		Repair(ctx, h, make([]RepairOptions, n))
		cancel()
		h.after = nil
		for i, r := range Repair(t.Context(), h, make([]RepairOptions, n)) {
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
			if r.Err != nil || len(r.Left) != want || h.bridge != anybody || h.ports[i] != anybody || h.rules[i] == (h.refused[i] != nil && !before[i]) {
				t.Fatalf("seed %d: container %d of %d: %+v, %v, want %d left; bridge %t, port %t, rule %t", seed, i, n, r.Outcome, r.Err, want, h.bridge, h.ports[i], h.rules[i])
			}
			for _, left := range r.Left {
				if left.Reason == nil {
					t.Fatalf("seed %d: no reason for %s", seed, left.Object)
				}
			}
		}
	}
}
