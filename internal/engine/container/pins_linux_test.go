package container

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/record"
)

// TestAPinIsANameOfTheLockFile, unless a mount on it would be elsewhere, or Remove
// would refuse it.
func TestAPinIsANameOfTheLockFile(t *testing.T) {
	write := func(data string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) { expect.NoError(t, os.WriteFile(path, []byte(data), 0o600)) }
	}
	for what, test := range map[string]struct {
		lock, pin    func(t *testing.T, path string)
		linked, left bool
	}{
		"an empty lock file": {write(""), nil, true, true},
		"no lock file":       {nil, nil, false, false},
		"a link to one": {func(t *testing.T, path string) {
			write("")(t, path+".real")
			expect.NoError(t, os.Symlink(path+".real", path))
		}, nil, false, false},
		"one that holds something":        {write("x"), nil, false, false},
		"a file that an earlier pin left": {write(""), write(""), false, true},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			lockFile := filepath.Join(dir, "locks")
			p := NewPins(dir, lockFile)
			expect.NoError(t, os.Mkdir(p.dir, 0o700))
			pin := p.path("c1")
			if test.lock != nil {
				test.lock(t, lockFile)
			}
			if test.pin != nil {
				test.pin(t, pin)
			}
			expect.Same(t, "linked", p.link(pin), test.linked)
			its, err := os.Lstat(pin)
			expect.Same(t, "there is a file", err == nil, test.left)
			if test.linked {
				expect.Same(t, "it is the lock file", os.SameFile(its, expect.Value(os.Stat(lockFile))(t)), true)
			}
		})
	}
}

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
		got := verdict{c.Place.Gone(), c.Uncertain() != nil, c.Undecided() != nil, c.IsAbandoned()}
		expect.That(t, got == want, "%v: got %+v, want %+v", reached, got, want)
		c.Recorded.Record.NetNS.View = "another"
		if away := c.IsAbandoned(); away && (reached == Elsewhere || reached == ByPin) {
			t.Errorf("%v: a container whose path was recorded elsewhere is taken for abandoned", reached)
		}
		c.Recorded.Damaged = true
		expect.That(t, !c.IsAbandoned(), "%v: a container with a damaged record is taken for abandoned", reached)
	}
	expect.That(t, !(&Container{}).IsAbandoned(), "a container without a record is taken for abandoned")
}
