package record

import (
	"errors"
	"os"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestAPreparedFileIsTheRecords: a first record is written to the file that was prepared
// for it, and nothing else is there before or after.
func TestAPreparedFileIsTheRecords(t *testing.T) {
	for name, begin := range map[string]func(*Store, *Record) error{
		"durable": func(s *Store, r *Record) error {
			return s.Begin(r) // some file systems do not sync a file without a name
		},
		"soon": func(s *Store, r *Record) error {
			file := s.Prepare()
			defer file.Discard()
			pending, err := s.BeginAs(r, Soon, file)
			return errors.Join(err, pending.Wait())
		},
		"volatile": func(s *Store, r *Record) error {
			file := s.Prepare()
			defer file.Discard()
			_, err := s.BeginAs(r, Never, file)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := Open(t.TempDir())
			named := func() bool {
				return expect.Value(s.Exists(Name("c1")))(t)
			}
			var syncs []bool // whether the record had its name
			s.Sync = func(f *os.File) error {
				syncs = append(syncs, named())
				return f.Sync()
			}
			check(t, begin(s, sample("c1")))
			want(t, "named when synced", syncs, map[string][]bool{"durable": {false}, "soon": {true}}[name])
			got := expect.Value(s.Load("c1"))(t)
			expected := sample("c1")
			expected.Generation = 1
			want(t, "record", got, expected)

			// A record that replaces another is whole at any moment.
			syncs = nil
			check(t, begin(s, got))
			want(t, "syncs of a record that replaces another", syncs, []bool{true})
			want(t, "generation", expect.Value(s.Load("c1"))(t).Generation, 2)
			want(t, "files", len(expect.Value(os.ReadDir(s.Dir()))(t)), 1)
		})
	}
}

// TestARecordIsSeenBeforeItIsSynced, by all processes, and can be added to.
func TestARecordIsSeenBeforeItIsSynced(t *testing.T) {
	s := Open(t.TempDir())
	seen := make(chan struct{})
	s.Sync = func(f *os.File) error {
		<-seen
		return f.Sync()
	}
	pending := expect.Value(s.BeginAs(sample("c1"), Soon, nil))(t)
	check(t, s.Append(expect.Value(s.Load("c1"))(t), Entry{IfName: "eth0", State: Added}))
	close(seen)
	check(t, pending.Wait())
	again, err := s.Load("c1")
	check(t, err)
	want(t, "state", again.Find("eth0").State, Added)

	full := errors.New("no space")
	s.Sync = func(*os.File) error { return full }
	pending, err = s.BeginAs(sample("c2"), Soon, nil)
	check(t, err)
	for range 2 {
		expect.Is(t, pending.Wait(), full)
	}
}

// TestAFailingSyncLeavesNoRecord that was to be durable.
func TestAFailingSyncLeavesNoRecord(t *testing.T) {
	s := Open(t.TempDir())
	full := errors.New("no space")
	s.Sync = func(*os.File) error { return full }
	expect.Is(t, s.Begin(sample("c1")), full)
	want(t, "files", len(expect.Value(os.ReadDir(s.Dir()))(t)), 0)
}
