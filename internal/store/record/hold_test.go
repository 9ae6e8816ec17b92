package record

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

func sortedHolds(t *testing.T, s Holds) []Hold {
	t.Helper()
	all := expect.Value(s.List())(t)
	slices.SortFunc(all, func(a, b Hold) int {
		return cmp.Or(strings.Compare(string(a.Container), string(b.Container)), strings.Compare(a.Network, b.Network))
	})
	return all
}

func TestHoldsOnDisk(t *testing.T) {
	s := Holds{filepath.Join(t.TempDir(), "embedcni", "holds")}
	expect.Same(t, "at first", sortedHolds(t, s), nil)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	holds := []Hold{
		{Network: "net", Since: at},
		{Container: "c1", Reason: "why", Owner: "me", Since: at, Attached: at},
		{Container: "c1", Network: "net", Since: at, Attached: at},
		{Container: "c1net", Since: at, Attached: at},
		{Container: "../../x", Network: "/", Since: at, Attached: at},
	}
	for _, h := range holds {
		expect.NoError(t, s.Put(h))
	}
	again := holds[1]
	again.Reason = "another"
	expect.NoError(t, s.Put(again)) // in its place
	expect.Same(t, "all", sortedHolds(t, s), []Hold{holds[0], holds[4], again, holds[2], holds[3]})

	for _, want := range []bool{true, false} {
		expect.Same(t, "deleted", expect.Value(s.Delete(Hold{Container: "c1net"}))(t), want)
	}
	expect.NoError(t, s.Forget("c1"))
	expect.Same(t, "the rest", sortedHolds(t, s), []Hold{holds[0], holds[4]})
	expect.Same(t, "unfinished files", len(expect.Value(filepath.Glob(filepath.Join(s.Dir, ".*")))(t)), 0)
}

// TestAHoldThatCannotBeRead: a hold that cannot be read holds what its file was made for, and nothing
// else, and ends with its container.
func TestAHoldThatCannotBeRead(t *testing.T) {
	s := Holds{t.TempDir()}
	good := Hold{Network: "net", Since: time.Unix(1, 0).UTC()}
	expect.NoError(t, s.Put(good))
	for _, of := range []Hold{{Container: "c1"}, {Container: "c1", Network: "other"}, {Network: "other"}} {
		file := s.path(of)
		for what, content := range map[string]string{"no JSON": "{", "another's name": `{"network": "third"}`, "empty": ""} {
			expect.NoError(t, os.WriteFile(file, []byte(content), 0o600))
			all := expect.Value(s.List())(t)
			i := slices.IndexFunc(all, func(h Hold) bool { return h.Err() != nil })
			expect.Must(t, len(all) == 2 && i >= 0 && strings.Contains(all[i].Err().Error(), file), "%s: %+v", what, all)
			for _, c := range []ID{"c1", "c2"} {
				for _, network := range []string{"other", "third"} {
					want := (of.Container == "" || of.Container == c) && (of.Network == "" || of.Network == network)
					got := all[i].Holds(&Record{ContainerID: c}, network)
					expect.That(t, got == want, "%s: %s of %+v is held on %s: %v, want %v", what, c, of, network, got, want)
				}
			}
		}
		expect.NoError(t, s.Forget("c2", "other"))
		expect.Value(os.Stat(file))(t)
		expect.NoError(t, s.Forget("c1", "other"))
		_, err := os.Stat(file)
		expect.That(t, (err == nil) == (of.Container == ""), "the file of %+v, after its container's end: %v", of, err)
		expect.NoError(t, ignoreMissing(os.Remove(file)))
	}
	expect.Same(t, "the other", sortedHolds(t, s), []Hold{good})
	// One that is being written is none yet.
	expect.NoError(t, os.WriteFile(filepath.Join(s.Dir, "."+filepath.Base(s.path(good))+".123"), []byte("{"), 0o600))
	expect.Same(t, "half written", sortedHolds(t, s), []Hold{good})
}

func TestHolds(t *testing.T) {
	at := time.Unix(1000, 0)
	rec := &Record{ContainerID: "c1", Since: at}
	for what, c := range map[string]struct {
		hold Hold
		want bool
	}{
		"the container":              {Hold{Container: "c1", Attached: at}, true},
		"the attachment":             {Hold{Container: "c1", Network: "net", Attached: at}, true},
		"the network":                {Hold{Network: "net"}, true},
		"another network":            {Hold{Network: "other"}, false},
		"another attachment":         {Hold{Container: "c1", Network: "other", Attached: at}, false},
		"another container":          {Hold{Container: "c2", Attached: at}, false},
		"an earlier one of its name": {Hold{Container: "c1", Attached: at.Add(-time.Hour)}, false},
	} {
		expect.Same(t, what, c.hold.Holds(rec, "net"), c.want)
	}
}

// TestAHoldIsRefused: a hold that cannot be written is an error, and leaves nothing.
func TestAHoldIsRefused(t *testing.T) {
	dir := t.TempDir()
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "holds"), nil, 0o600))
	expect.Fails(t, "wrote below a file", (Holds{filepath.Join(dir, "holds")}).Put(Hold{Network: "net"}))
	s := Holds{filepath.Join(dir, "store")}
	h := Hold{Network: "net"}
	expect.NoError(t, os.MkdirAll(s.path(h), 0o700)) // in the way
	expect.Fails(t, "replaced a directory", s.Put(h))
	expect.Same(t, "unfinished files", len(expect.Value(filepath.Glob(filepath.Join(s.Dir, ".*")))(t)), 0)
}
