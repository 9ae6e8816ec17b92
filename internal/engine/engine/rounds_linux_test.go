package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/outcome"
)

// part is a part of a fake attachment.
type part struct {
	name    string
	needs   []string // without them it can be neither compared nor added
	inside  bool
	differs bool  // adding does not repair it
	refused error // by the kernel, each time
	vanish  int   // it vanishes that often after it was added
	said    error // by its Fix, which has added it
	takes   []string
}

// fake is an attachment in a fake kernel.
type fake struct {
	*bench
	parts    []part
	has      map[string]bool
	vanished map[string]int

	together error // of changes that are made together
	fixed    []string
	compared int
	failing  int           // the number of the comparison that ends the repair
	after    func(f *fake) // after each fix
}

func newFake(b *bench, parts ...part) *fake {
	return &fake{bench: b, parts: parts, has: map[string]bool{}, vanished: map[string]int{}}
}

func (f *fake) hasAll(names []string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { return !f.has[n] })
}

func (f *fake) compare() (all []contract.Difference) {
	for _, p := range f.parts {
		if f.has[p.name] || !f.hasAll(p.needs) {
			continue
		}
		d := contract.Difference{Plugin: "fake", Kind: contract.Rule, Inside: p.inside, Object: p.name, Why: "it differs"}
		if !p.differs {
			d.Why, d.Fix = "", func(ctx context.Context) error { return f.fix(ctx, p) }
		}
		all = append(all, d)
	}
	return all
}

func (f *fake) add(p part) error {
	if p.refused != nil {
		return p.refused
	}
	if !f.hasAll(p.needs) {
		return fmt.Errorf("%s needs %v", p.name, p.needs)
	}
	for _, other := range p.takes {
		f.has[other] = false
	}
	f.has[p.name] = true
	if f.vanished[p.name] < p.vanish {
		f.vanished[p.name]++
		f.has[p.name] = false
	}
	return p.said
}

func (f *fake) fix(ctx context.Context, p part) error {
	f.fixed = append(f.fixed, p.name)
	if f.after != nil {
		defer f.after(f)
	}
	if f.together == nil {
		return f.add(p)
	}
	return thread.Join(ctx, contract.From(ctx).Batch, "parts", p, func(_ context.Context, all []part) error {
		if len(all) > 1 {
			return f.together
		}
		return f.add(all[0])
	})
}

// repaired is the outcome in a form that can be compared.
type repaired struct {
	Repaired []string
	Left     map[string]error
	Fixed    []string
}

func (f *fake) run(ctx context.Context, inside bool) (repaired, error) {
	f.fixed, f.compared = nil, 0
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := f.attachment(func(context.Context) []contract.Difference {
		if f.compared++; f.compared == f.failing {
			cancel(errUnread)
		}
		return f.compare()
	})
	r.rs.o.Inside = inside
	runRounds(ctx, []*repairing{r})
	got := repaired{Fixed: f.fixed}
	for _, d := range r.repaired {
		got.Repaired = append(got.Repaired, d.Object)
	}
	for _, l := range r.left {
		if got.Left == nil {
			got.Left = map[string]error{}
		}
		got.Left[l.Object] = l.reason
	}
	return got, r.err
}

// same compares reasons with errors.Is.
func (o repaired) same(want repaired) bool {
	if len(o.Left) != len(want.Left) {
		return false
	}
	for name, reason := range want.Left {
		if !errors.Is(o.Left[name], reason) {
			return false
		}
	}
	o.Left, want.Left = nil, nil
	return reflect.DeepEqual(o, want)
}

var errRefused, errUnread = errors.New("refused"), errors.New("no netlink")

func TestRunRepairsWhatMayBeAdded(t *testing.T) {
	b := newBench(t)
	bridge := part{name: "bridge"}
	port := part{name: "port", needs: []string{"bridge"}}
	rule := part{name: "rule"}
	for what, test := range map[string]struct {
		parts  []part
		inside bool
		want   repaired
	}{
		"nothing": {},
		"a bridge, and then its port": {
			parts: []part{port, rule, bridge}, // whatever the order
			want:  repaired{Repaired: []string{"rule", "bridge", "port"}, Fixed: []string{"rule", "bridge", "port"}},
		},
		"in the order of the comparison": {
			parts: []part{bridge, {name: "address"}, rule},
			want:  repaired{Repaired: []string{"bridge", "address", "rule"}, Fixed: []string{"bridge", "address", "rule"}},
		},
		"the host alone": {
			parts: []part{{name: "route", inside: true}, rule},
			want:  repaired{Repaired: []string{"rule"}, Left: map[string]error{"route": errNotAsked}, Fixed: []string{"rule"}},
		},
		"the container too": {
			parts: []part{{name: "route", inside: true}, rule}, inside: true,
			want: repaired{Repaired: []string{"route", "rule"}, Fixed: []string{"route", "rule"}},
		},
		"not what differs": {
			parts: []part{{name: "mtu", differs: true}, {name: "mac", differs: true, inside: true}, rule}, inside: true,
			want: repaired{Repaired: []string{"rule"}, Left: map[string]error{"mtu": errNotAddable, "mac": errNotAddable}, Fixed: []string{"rule"}},
		},
		"the others if one is refused": {
			parts: []part{{name: "first", refused: errRefused}, rule},
			want: repaired{Repaired: []string{"rule"}, Left: map[string]error{"first": errRefused},
				Fixed: []string{"first", "rule", "first"}}, // again, since the rule may have been the cause
		},
		"nothing if all are refused": {
			parts: []part{{name: "first", refused: errRefused}},
			want:  repaired{Left: map[string]error{"first": errRefused}, Fixed: []string{"first"}},
		},
		"what a Fix that failed has added, and what needs that": {
			parts: []part{{name: "half", said: errRefused}, {name: "rest", needs: []string{"half"}}},
			want:  repaired{Repaired: []string{"half", "rest"}, Fixed: []string{"half", "rest"}},
		},
		"again what another repair has undone": {
			parts: []part{rule, {name: "bridge", takes: []string{"rule"}}},
			want:  repaired{Repaired: []string{"rule", "bridge"}, Fixed: []string{"rule", "bridge", "rule"}},
		},
		"not for ever what somebody removes": {
			parts: []part{{name: "fought", vanish: 1000}, rule},
			want:  repaired{Repaired: []string{"rule"}, Left: map[string]error{"fought": errReturned}, Fixed: []string{"fought", "rule", "fought"}},
		},
	} {
		f := newFake(b, test.parts...)
		got, err := f.run(context.Background(), test.inside)
		if err != nil || !got.same(test.want) {
			t.Errorf("%s: got %+v, %v\nwant %+v", what, got, err, test.want)
		}
		if again, err := f.run(context.Background(), test.inside); err != nil || len(again.Repaired) > 0 {
			t.Errorf("%s: again: got %+v, %v", what, again, err)
		}
	}
}

// TestWhatIsHeldOrNotWantedIsLeft, and the caller is asked about what can be repaired alone.
func TestWhatIsHeldOrNotWantedIsLeft(t *testing.T) {
	b := newBench(t)
	var asked []string
	want := func(_ string, d outcome.Difference) bool {
		asked = append(asked, fmt.Sprintf("%s %s", d.Network, d.Object))
		return d.Object == "rule"
	}
	for name, tt := range map[string]struct {
		held  bool
		want  func(string, outcome.Difference) bool
		left  []string
		asked []string
	}{
		"all":    {left: []string{"mtu: " + errNotAddable.Error() + ": it differs"}},
		"wanted": {want: want, left: []string{"port: " + errNotWanted.Error(), "mtu: " + errNotAddable.Error() + ": it differs"}, asked: []string{"net rule", "net port", "net port"}},
		"held":   {held: true, want: want, left: []string{"rule: " + outcome.ErrHeld.Error(), "port: " + outcome.ErrHeld.Error(), "mtu: " + errNotAddable.Error() + ": it differs"}},
	} {
		asked = nil
		f := newFake(b, part{name: "rule"}, part{name: "port"}, part{name: "mtu", differs: true})
		r := f.attachment(func(context.Context) []contract.Difference { return f.compare() })
		r.held, r.rs.o.Want = tt.held, tt.want
		runRounds(t.Context(), []*repairing{r})
		expect.NoError(t, r.err)
		var left []string
		for _, l := range r.left {
			left = append(left, fmt.Sprintf("%s: %v", l.Object, l.reason))
		}
		expect.Same(t, name+": left", left, tt.left)
		expect.Same(t, name+": asked", asked, tt.asked)
	}
}

// TestTheReasonsHaveTheCallersKinds: errors.Is finds them.
func TestTheReasonsHaveTheCallersKinds(t *testing.T) {
	b := newBench(t)
	f := newFake(b, part{name: "route", inside: true}, part{name: "mtu", differs: true}, part{name: "fought", vanish: 1000})
	got, err := f.run(t.Context(), false)
	expect.NoError(t, err)
	expect.Is(t, got.Left["route"], outcome.ErrInContainer)
	expect.Is(t, got.Left["mtu"], outcome.ErrNotRepairable)
	expect.Is(t, got.Left["fought"], outcome.ErrNotRepairable)
}

// TestAChainOfNeedsLongerThanTheRoundsIsLeftAndSaid, and the next repair goes on.
func TestAChainOfNeedsLongerThanTheRoundsIsLeftAndSaid(t *testing.T) {
	b := newBench(t)
	var parts []part
	for i := range mostRounds + 2 {
		p := part{name: fmt.Sprint(i)}
		if i > 0 {
			p.needs = []string{fmt.Sprint(i - 1)}
		}
		parts = append(parts, p)
	}
	f := newFake(b, parts...)
	got, err := f.run(context.Background(), false)
	if left := got.Left[fmt.Sprint(mostRounds)]; err != nil || len(got.Repaired) != mostRounds || !errors.Is(left, errNotVerified) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := f.run(context.Background(), false); err != nil || len(got.Repaired) != 2 || got.Left != nil {
		t.Errorf("again: got %+v, %v", got, err)
	}
}

// TestAFailedBatchIsMadeOneByOne, so that one bad rule does not keep the others from
// being repaired.
func TestAFailedBatchIsMadeOneByOne(t *testing.T) {
	f := newFake(newBench(t), part{name: "a"}, part{name: "b", refused: errRefused}, part{name: "c"})
	f.together = errors.New("one of them")
	got, err := f.run(context.Background(), false)
	want := repaired{Repaired: []string{"a", "c"}, Left: map[string]error{"b": errRefused}, Fixed: []string{"a", "b", "c", "a", "b", "c", "b", "b"}}
	if err != nil || !got.same(want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
}

// TestAComparisonThatFails ends the repair. Only what was verified is reported as
// repaired.
func TestAComparisonThatFails(t *testing.T) {
	b := newBench(t)
	for at, want := range map[int]repaired{
		1: {},
		2: {Left: map[string]error{"bridge": errNotVerified}, Fixed: []string{"bridge"}},
		3: {Repaired: []string{"bridge"}, Left: map[string]error{"port": errNotVerified}, Fixed: []string{"bridge", "port"}},
	} {
		f := newFake(b, part{name: "bridge"}, part{name: "port", needs: []string{"bridge"}})
		f.failing = at
		if got, err := f.run(context.Background(), false); !errors.Is(err, errUnread) || !got.same(want) {
			t.Errorf("comparison %d: got %+v, %v\nwant %+v", at, got, err, want)
		}
	}
}

// TestRepairEndsWithItsContext after each fix: nothing else is fixed, and another
// repair completes it.
func TestRepairEndsWithItsContext(t *testing.T) {
	b := newBench(t)
	stopped := errors.New("stopped")
	for after := range 4 {
		f := newFake(b, part{name: "bridge"}, part{name: "port", needs: []string{"bridge"}}, part{name: "rule"}, part{name: "queue"})
		ctx, cancel := context.WithCancelCause(context.Background())
		f.after = func(f *fake) {
			if len(f.fixed) == after {
				cancel(stopped)
			}
		}
		if after == 0 {
			cancel(stopped)
		}
		got, err := f.run(ctx, false)
		if err == nil || len(got.Fixed) != after {
			t.Errorf("after %d: got %+v, %v", after, got, err)
		}
		for name, reason := range got.Left {
			if reason == nil {
				t.Errorf("after %d: no reason for %s", after, name)
			}
		}
		f.after = nil
		got, err = f.run(context.Background(), false)
		if err != nil || got.Left != nil || !f.hasAll([]string{"bridge", "port", "rule", "queue"}) {
			t.Errorf("after %d: again: got %+v, %v, has %v", after, got, err, f.has)
		}
		cancel(nil)
	}
}
