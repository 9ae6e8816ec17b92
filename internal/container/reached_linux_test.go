package container

import (
	"testing"

	"github.com/embedcni/cni/internal/record"
)

// TestEachWayOfReachingANamespace: only a namespace that is certainly gone
// counts as gone, and nothing is decided about one that may live.
func TestEachWayOfReachingANamespace(t *testing.T) {
	type verdict struct{ Gone, Uncertain, Undecided, Abandoned bool }
	for reached, want := range map[Reached]verdict{
		NotReached: {Gone: true, Abandoned: true},
		Unsure:     {Uncertain: true, Undecided: true},
		LetGo:      {Undecided: true, Abandoned: true},
		Elsewhere:  {Abandoned: true}, // the record does not say where the path leads there
	} {
		c := &Container{Recorded: Recorded{Record: &record.Record{}}, Place: Place{Reached: reached}}
		got := verdict{c.Gone(), c.Uncertain() != nil, c.Undecided() != nil, c.IsAbandoned()}
		if got != want {
			t.Errorf("%v: got %+v, want %+v", reached, got, want)
		}
		c.Record.NetNS.View = "another"
		if away := c.IsAbandoned(); away && (reached == Elsewhere || reached == ByPin) {
			t.Errorf("%v: a container whose path was recorded elsewhere is taken for abandoned", reached)
		}
		if c.Damaged = true; c.IsAbandoned() {
			t.Errorf("%v: a container with a damaged record is taken for abandoned", reached)
		}
	}
	if (&Container{}).IsAbandoned() {
		t.Error("a container without a record is taken for abandoned")
	}
}
