package guarded

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
)

// followed is a directory of records that is followed.
type followed struct {
	t       *testing.T
	store   *record.Store
	records *Records
}

func newFollowed(t *testing.T) *followed {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "attachments")
	f := &followed{t: t, store: record.Open(dir), records: expect.Value(Watch(dir))(t)}
	t.Cleanup(func() { expect.NoError(t, f.records.Close()) })
	return f
}

var scope = Scope{Owner: "me", Boot: "b", Host: "4-1"}

// want checks which containers have changed since the last time. One that is not
// guarded is "-ID".
func (f *followed) want(what string, want ...string) {
	f.t.Helper()
	all, err := f.records.Changed(f.store, scope, slog.Default())
	expect.NoError(f.t, err)
	var got []string
	for _, c := range all {
		if !c.Guarded {
			c.ID = "-" + c.ID
		}
		got = append(got, c.ID)
	}
	slices.Sort(got)
	expect.Same(f.t, what, got, want)
}

func (f *followed) wantFailed(what string, want ...record.ID) {
	f.t.Helper()
	got, err := f.records.Failed(f.store, scope, slog.Default())
	expect.NoError(f.t, err)
	slices.Sort(got)
	expect.Same(f.t, what, got, want)
}

func TestRecordsAreFollowed(t *testing.T) {
	f := newFollowed(t)
	f.want("before the first record")
	one, two, others := attached("c1"), attached("c2"), attached("c3")
	others.Owner = "you"
	for _, rec := range []*record.Record{one, two, others} {
		expect.NoError(t, f.store.Begin(rec))
	}
	f.want("new ones", "c1", "c2")
	f.want("nothing has changed")
	expect.NoError(t, f.store.Append(one, record.Entry{IfName: "eth0", State: record.Deleting}))
	f.want("one is being removed", "-c1")
	expect.NoError(t, f.store.Delete("c1"), f.store.Delete("c2"), f.store.Delete("c3"))
	f.want("all are gone", "-c2")
}

// TestWhatComesAndGoesInBetween is not a change.
func TestWhatComesAndGoesInBetween(t *testing.T) {
	f := newFollowed(t)
	f.want("before")
	expect.NoError(t, f.store.Begin(attached("c1")))
	f.wantFailed("reads it")
	expect.NoError(t, f.store.Delete("c1"))
	f.want("after")
}

// TestADamagedRecordIsNotGuarded until it can be read again.
func TestADamagedRecordIsNotGuarded(t *testing.T) {
	f := newFollowed(t)
	rec := attached("c1")
	expect.NoError(t, f.store.Begin(rec))
	f.want("at first", "c1")
	expect.NoError(t, os.WriteFile(f.store.Path(record.Name("c1")), []byte("{"), 0o600))
	f.want("damaged", "-c1")
	expect.NoError(t, f.store.Begin(rec))
	f.want("written again", "c1")
}

// TestFailedRemovalsAreKnownUntilTheySucceed, also of a removal that was cut short.
func TestFailedRemovalsAreKnownUntilTheySucceed(t *testing.T) {
	f := newFollowed(t)
	one, two, others := attached("c1"), attached("c2"), attached("c3")
	others.Boot = "a"
	for _, rec := range []*record.Record{one, two, others} {
		expect.NoError(t, f.store.Begin(rec))
	}
	f.wantFailed("none at first")
	expect.NoError(t, f.store.Append(one, record.Entry{IfName: "eth0", Error: "no"}))
	expect.NoError(t, f.store.Append(two, record.Entry{IfName: "eth0", State: record.Deleting}))
	expect.NoError(t, f.store.Append(others, record.Entry{IfName: "eth0", Error: "no"}))
	f.wantFailed("two", "c1", "c2")
	expect.NoError(t, f.store.Delete("c1"))
	f.wantFailed("one is gone", "c2")
}

// TestALostWatchReadsAllRecords: the directory was replaced, and no change of the new one
// was announced.
func TestALostWatchReadsAllRecords(t *testing.T) {
	f := newFollowed(t)
	expect.NoError(t, f.store.Begin(attached("c1")), f.store.Begin(attached("c2")))
	f.want("at first", "c1", "c2")
	dir := f.store.Dir()
	expect.NoError(t, os.Rename(dir, dir+".old"), f.store.Begin(attached("c3")))
	f.want("of the new directory", "-c1", "-c2", "c3")
}

// TestAnUnreadableDirectoryIsAnError, after which all records are read.
func TestAnUnreadableDirectoryIsAnError(t *testing.T) {
	f := newFollowed(t)
	expect.NoError(t, f.store.Begin(attached("c1")))
	f.want("at first", "c1")
	dir := f.store.Dir()
	expect.NoError(t, os.Rename(dir, dir+".old"), os.WriteFile(dir, nil, 0o600))
	if all, err := f.records.Changed(f.store, scope, slog.Default()); err == nil || len(all) > 0 {
		t.Errorf("containers %v, error %v", all, err)
	}
	expect.NoError(t, os.Remove(dir), os.Rename(dir+".old", dir), f.store.Delete("c1"))
	f.want("back", "-c1")
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		t.Error("the directory is gone")
	}
}
