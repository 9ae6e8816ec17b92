package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

func sample(id string) *Record {
	return &Record{
		ContainerID: ID(id), Owner: "tester", Boot: "b00t", Host: "4:1",
		Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		NetNS: NetNS{Path: "/run/netns/" + id, Dev: 4, Ino: 77},
		Attachments: []Attachment{
			{Network: "podnet", IfName: "eth0", Config: []byte(`{"name":"podnet",  "text":"<>&"}`),
				Args:         [][2]string{{"K", "v"}},
				Capabilities: map[string]json.RawMessage{"portMappings": json.RawMessage(`[{"hostPort":8080}]`)}},
			{Network: "other", IfName: "eth1", Config: []byte(`{"name":"other"}`)},
		},
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	expect.NoError(t, err)
}

func want(t testing.TB, what string, got, want any) {
	t.Helper()
	expect.Same(t, what, got, want)
}

func TestRecordComesBackAsItWasWritten(t *testing.T) {
	s := Open(filepath.Join(t.TempDir(), "not", "there", "yet"))
	r := sample("c1")
	check(t, s.Begin(r))
	got := expect.Value(s.Load("c1"))(t)
	want(t, "record", got, r)
	want(t, "generation", got.Generation, 1)
	want(t, "a container that was never recorded", expect.Value(s.Load("c2"))(t), (*Record)(nil))
}

func TestLogBringsTheRecordUpToDate(t *testing.T) {
	s := Open(t.TempDir())
	r := sample("c1")
	check(t, s.Begin(r))
	check(t, s.Append(r, Entry{IfName: "eth0", Result: json.RawMessage(`{"first":1}`)}))
	check(t, s.Append(r, Entry{IfName: "eth0", Result: json.RawMessage(`{"second":2}`), State: Added}))
	check(t, s.Append(r, Entry{IfName: "eth0", State: Deleting}))
	check(t, s.Append(r, Entry{IfName: "eth1", State: Deleting, Error: "busy"})) // was never added
	got := expect.Value(s.Load("c1"))(t)
	want(t, "eth0", []any{got.Attachments[0].State, string(got.Attachments[0].Result), got.Attachments[0].Answered()}, []any{Deleting, `{"second":2}`, true})
	want(t, "eth1", []any{got.Attachments[1].State, got.Attachments[1].Result, got.Attachments[1].Answered()}, []any{Planned, json.RawMessage(nil), false})
	for i, failures := range []int{0, 1} {
		n := got.Attachments[i]
		want(t, "failures of "+n.IfName, []any{n.Failures, n.LastError, n.LastTry.IsZero()},
			[]any{failures, []string{"", "busy"}[i], failures == 0})
	}
	check(t, s.Begin(got))
	again := expect.Value(s.Load("c1"))(t)
	want(t, "failures in the next base", []any{again.Attachments[1].Failures, again.Attachments[1].LastError, again.Attachments[1].LastTry.Equal(got.Attachments[1].LastTry)},
		[]any{1, "busy", true})
}

func TestEntriesOfAnEarlierGenerationDoNotCount(t *testing.T) {
	s := Open(t.TempDir())
	r := sample("c1")
	check(t, s.Begin(r))
	check(t, s.Append(r, Entry{IfName: "eth0", State: Added, Error: "old"}))
	check(t, s.Begin(r))
	got := expect.Value(s.Load("c1"))(t)
	want(t, "record", got, r)
	want(t, "generation", got.Generation, 2)
}

func TestDeleteLeavesNoFile(t *testing.T) {
	dir := t.TempDir()
	s := Open(dir)
	r := sample("c1")
	check(t, s.Begin(r))
	check(t, s.Append(r, Entry{IfName: "eth0", State: Added}))
	check(t, s.Delete("c1"))
	check(t, s.Delete("c1"))
	want(t, "files", names(t, dir), []string(nil))
	want(t, "record", expect.Value(s.Load("c1"))(t), (*Record)(nil))
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	for _, e := range expect.Value(os.ReadDir(dir))(t) {
		all = append(all, e.Name())
	}
	return all
}

// TestAFileThatIsUsedAgainTellsNothingOfBefore, whatever it contained: a record
// of the same container, a longer one, or a shorter one.
func TestAFileThatIsUsedAgainTellsNothingOfBefore(t *testing.T) {
	dir := t.TempDir()
	for _, before := range []*Record{sample("c1"), sample("c2"), sample(strings.Repeat("long", 500))} {
		s := Open(dir)
		check(t, s.Begin(before))
		check(t, s.Append(before, Entry{IfName: "eth0", State: Deleted, Error: "of the old one"}))
		check(t, s.Delete(before.ContainerID))
		now := sample("c1")
		check(t, s.Begin(now))
		want(t, "record", expect.Value(s.Load("c1"))(t), now)
		want(t, "files", names(t, dir), []string{Name("c1") + FileExt})
		check(t, s.Delete("c1"))
	}
}

// TestTheNameOfADeletedRecordThatComesBack after a power cut, when another
// record uses its file: it is a stray and not a record, in any state of the
// file.
func TestTheNameOfADeletedRecordThatComesBack(t *testing.T) {
	s := Open(t.TempDir())
	old, now := sample("old"), sample("now")
	check(t, s.Begin(old))
	check(t, s.Append(old, Entry{IfName: "eth0", State: Added}))
	before := expect.Value(os.ReadFile(s.path("old")))(t)
	check(t, s.Delete("old"))
	check(t, s.Begin(now))
	after := expect.Value(os.ReadFile(s.path("now")))(t)
	after = bytes.TrimRight(after, "\n")
	check(t, os.WriteFile(s.path("old"), after, 0o600))
	want(t, "record", expect.Value(s.Load("old"))(t), (*Record)(nil))
	want(t, "strays", expect.Value(s.Strays())(t), []string{s.path("old")})

	// Only a part of it has reached the disk: it is then the old one, damaged.
	for n := range after {
		torn := append(append([]byte{}, after[:n]...), before[n:]...)
		if bytes.HasPrefix(torn, after) {
			break // the missing part is common to both
		}
		check(t, os.WriteFile(s.path("old"), torn, 0o600))
		r, err := s.Load("old")
		if bytes.Equal(torn, before) {
			check(t, err)
		} else if !errors.Is(err, ErrBad) {
			t.Fatalf("%d bytes of another: %+v, %v", n, r, err)
		}
		expect.Must(t, r != nil && r.ContainerID == "old", "%d bytes of another: %+v", n, r)
	}
}

// TestListingBesideReuse: a reader without a lock may find another record in a
// file, and must not treat it as damaged.
func TestListingBesideReuse(t *testing.T) {
	dir := t.TempDir()
	check(t, Open(dir).Begin(sample("stays")))
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for w := range 4 {
		wg.Go(func() {
			s := Open(dir)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				r := sample(fmt.Sprint("c", w, strings.Repeat("x", i%5*700)))
				if err := errors.Join(s.Begin(r), s.Append(r, Entry{IfName: "eth0", State: Added}), s.Delete(r.ContainerID)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	s := Open(dir)
	for range 300 {
		found := expect.Value(s.List())(t)
		stays := 0
		for _, f := range found {
			expect.Must(t, f.Err == nil, "%s: %v", f.File, f.Err)
			if f.Record.ContainerID == "stays" {
				stays++
			}
		}
		want(t, "the record that stays", stays, 1)
	}
	close(stop)
	wg.Wait()
}

func TestStraysAreFilesWithoutARecord(t *testing.T) {
	s := Open(filepath.Join(t.TempDir(), "records"))
	want(t, "strays without a directory", expect.Value(s.Strays())(t), []string(nil))
	for _, id := range []string{"whole", "replaced", "deleted"} {
		r := sample(id)
		check(t, s.Begin(r))
		check(t, s.Append(r, Entry{IfName: "eth0", State: Added}))
	}
	check(t, s.Delete("deleted"))
	strays := []string{s.path("new") + tmpExt, s.path("replaced") + tmpExt, filepath.Join(s.dir, "spare.7")}
	check(t, os.WriteFile(strays[0], []byte("torn"), 0o600))
	check(t, os.WriteFile(strays[1], nil, 0o600))
	check(t, os.WriteFile(strays[2], []byte("a deleted record, which an earlier version kept"), 0o600))
	got := expect.Value(s.Strays())(t)
	slices.Sort(strays)
	want(t, "strays", got, strays)
}

func TestFileNamesAreHashes(t *testing.T) {
	dir := t.TempDir()
	s := Open(filepath.Join(dir, "records"))
	for _, id := range []string{"/../../x", strings.Repeat("x", 10_000), "a\x00b", ""} {
		_, err := s.Load(ID(id))
		expect.That(t, err == nil, "Load(%.20q): %v", id, err)
		check(t, s.Delete(ID(id)))
	}
	check(t, s.Begin(sample("/../../x")))
	want(t, "entries beside the store", len(expect.Value(os.ReadDir(dir))(t)), 1)
}

// TestEveryDamageIsNoticed cuts a base at each length and changes each byte.
// The record is then bad and still listed, and the log names its container.
func TestEveryDamageIsNoticed(t *testing.T) {
	s := Open(t.TempDir())
	r := sample("c1")
	check(t, s.Begin(r))
	check(t, s.Append(r, Entry{IfName: "eth0", Result: json.RawMessage(`{"ips":[]}`)}))
	path := s.path("c1")
	good, log, _ := bytes.Cut(expect.Value(os.ReadFile(path))(t), []byte("\n"))
	damaged := func(what string, base []byte) {
		t.Helper()
		check(t, os.WriteFile(path, slices.Concat(base, []byte("\n"), log), 0o600))
		found := expect.Value(s.List())(t)
		expect.Must(t, len(found) == 1 && errors.Is(found[0].Err, ErrBad) && found[0].Record != nil && found[0].Record.ContainerID == "c1",
			"%s: %+v", what, found)
		want(t, what, string(found[0].Record.Attachments[0].Result), `{"ips":[]}`)
	}
	for n := range good {
		damaged(fmt.Sprint("cut at ", n), good[:n])
	}
	for i := range good {
		data := append([]byte{}, good...)
		data[i] ^= 0x20
		damaged(fmt.Sprint("byte ", i), data)
	}
}

// TestTornLogLosesOnlyTheTornLine cuts the log at random and appends again.
func TestTornLogLosesOnlyTheTornLine(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		s := Open(t.TempDir())
		r := sample("c1")
		check(t, s.Begin(r))
		check(t, s.Append(r, Entry{IfName: "eth0", State: Added}))
		log := s.path("c1")
		first := expect.Value(os.Stat(log))(t)
		check(t, s.Append(r, Entry{IfName: "eth1", State: Added}))
		whole := expect.Value(os.Stat(log))(t)
		cut := first.Size() + rng.Int64N(whole.Size()-first.Size()-1)
		check(t, os.Truncate(log, cut))
		check(t, s.Append(r, Entry{IfName: "eth0", Error: "after"}))
		got := expect.Value(s.Load("c1"))(t)
		want(t, fmt.Sprint("cut at ", cut), []any{got.Attachments[0].State, got.Attachments[1].State, got.Attachments[0].LastError},
			[]any{Added, Planned, "after"})
	}
}

// TestBeginThatFailsKeepsTheOldRecord: no step of the write touches the base
// before the new one is complete.
func TestBeginThatFailsKeepsTheOldRecord(t *testing.T) {
	s := Open(t.TempDir())
	r := sample("c1")
	check(t, s.Begin(r))
	check(t, os.Mkdir(s.path("c1")+tmpExt, 0o700)) // the temporary file cannot be made
	expect.Must(t, s.Begin(sample("c1")) != nil, "Begin over a directory succeeded")
	want(t, "record", expect.Value(s.Load("c1"))(t), r)
}

func FuzzDecode(f *testing.F) {
	f.Add(expect.Value(encodeBase(sample("c1")))(f))
	f.Add([]byte("0123456789abcdef {}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeBase(data)
		expect.That(t, (r == nil) == (err != nil), "record %v with error %v", r, err)
		for _, e := range decodeLog(data) {
			expect.Succeeds(t, "an entry that was decoded does not encode", expect.Err(EncodeLine(e)))
		}
	})
}
