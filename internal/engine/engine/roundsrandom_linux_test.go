package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestRandomAttachments: whatever is broken, a repair ends, adds all that may be added
// and that can be, and nothing else; and a repair that was stopped in the middle is
// completed by the next.
func TestRandomAttachments(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	b := newBench(t)
	for range 500 {
		f, inside := randomFake(b, random)
		wanted := f.reachable(inside)
		ctx, cancel := context.WithCancel(context.Background())
		stop := random.IntN(len(f.parts) + 1)
		f.after = func(f *fake) {
			if len(f.fixed) == stop {
				cancel()
			}
		}
		_, _ = f.run(ctx, inside) // it may have been stopped
		cancel()
		f.after = nil
		var got repaired
		for range 3 { // a chain may be longer than the rounds of one repair
			var err error
			got, err = f.run(context.Background(), inside)
			expect.NoError(t, err)
		}
		for _, p := range f.parts {
			switch {
			case f.has[p.name] != wanted[p.name]:
				t.Fatalf("inside %t, %+v: %s is there: %t, want %t; %+v", inside, f.parts, p.name, f.has[p.name], wanted[p.name], got)
			case f.has[p.name] && got.Left[p.name] != nil, len(got.Repaired) > 0:
				t.Fatalf("inside %t, %+v: repaired once, and then: %+v", inside, f.parts, got)
			case !f.has[p.name] && f.hasAll(p.needs) && got.Left[p.name] == nil:
				t.Fatalf("inside %t, %+v: %s is missing without a reason: %+v", inside, f.parts, p.name, got)
			}
		}
	}
}

func randomFake(b *bench, random *rand.Rand) (f *fake, inside bool) {
	var parts []part
	for i := range 1 + random.IntN(10) {
		p := part{name: fmt.Sprint(i), inside: random.IntN(4) == 0, differs: random.IntN(6) == 0}
		if random.IntN(8) == 0 {
			p.refused = errRefused
		}
		if i > 0 && random.IntN(2) == 0 {
			p.needs = []string{fmt.Sprint(random.IntN(i))}
		}
		parts = append(parts, p)
	}
	random.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	f = newFake(b, parts...)
	for _, p := range parts {
		f.has[p.name] = random.IntN(2) == 0
	}
	return f, random.IntN(2) == 0
}

// reachable returns the parts that are there after a repair.
func (f *fake) reachable(inside bool) map[string]bool {
	all := make(map[string]bool)
	for name, has := range f.has {
		all[name] = has
	}
	for range f.parts {
		for _, p := range f.parts {
			needs := !slices.ContainsFunc(p.needs, func(n string) bool { return !all[n] })
			if needs && !p.differs && p.refused == nil && (!p.inside || inside) {
				all[p.name] = true
			}
		}
	}
	return all
}
