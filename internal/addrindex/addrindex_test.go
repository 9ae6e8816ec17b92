package addrindex

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/record"
)

// old is before the time within which a file may change unnoticed.
func old() time.Time { return time.Now().Add(-time.Hour) }

// write writes the record of a container with an address.
func write(t testing.TB, s *record.Store, id record.ID, generation int, addr string) {
	t.Helper()
	r := &record.Record{ContainerID: id, Generation: generation, Attachments: []record.Attachment{{
		Network: "net", IfName: "eth0", Config: []byte(`{}`), State: record.Added, Result: result(addr),
	}}}
	if err := s.Begin(r); err != nil {
		t.Fatal(err)
	}
}

func result(addr string) json.RawMessage {
	return fmt.Appendf(nil, `{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/c"}], "ips": [{"interface": 0, "address": "%s/16"}]}`, addr)
}

// age makes the files of all records old.
func age(t testing.TB, s *record.Store) {
	t.Helper()
	files, err := s.Files()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if err := os.Chtimes(s.Path(file), old(), old()); err != nil {
			t.Fatal(err)
		}
	}
}

// store is a store whose Sync does nothing, and that counts the records read.
func store(t testing.TB) (*record.Store, *atomic.Int64) {
	s := record.Open(filepath.Join(t.TempDir(), "attachments"))
	s.Sync = func(*os.File) error { return nil }
	var reads atomic.Int64
	read := s.Read
	s.Read = func(path string) ([]byte, error) { reads.Add(1); return read(path) }
	return s, &reads
}

// wantFound fails the test unless these containers have the address.
func wantFound(t testing.TB, x *Index, addr string, want ...string) {
	t.Helper()
	found, err := x.Find(netip.MustParseAddr(addr))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range found {
		got = append(got, string(f.Record.ContainerID))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%s: found %q, want %q", addr, got, want)
	}
}

func TestFindReadsOnlyWhatHasChanged(t *testing.T) {
	s, reads := store(t)
	x := Open(s)
	wantFound(t, x, "10.0.0.1") // there is no directory yet
	for i := range 20 {
		write(t, s, record.ID(fmt.Sprint("c", i)), 0, fmt.Sprint("10.0.0.", i))
	}
	age(t, s)
	wantFound(t, x, "10.0.0.7", "c7")
	reads.Store(0)
	wantFound(t, x, "10.0.0.8", "c8")
	wantFound(t, x, "10.0.9.9")
	if n := reads.Load(); n != 1 { // the one that was found
		t.Errorf("%d records were read, want 1", n)
	}
	wantFound(t, x, "::ffff:10.0.0.8", "c8")

	write(t, s, "c8", 1, "10.0.0.88") // by another process: x is not told
	write(t, s, "c20", 0, "10.0.0.7")
	if err := s.Delete("c9"); err != nil {
		t.Fatal(err)
	}
	wantFound(t, x, "10.0.0.8")
	wantFound(t, x, "10.0.0.88", "c8")
	wantFound(t, x, "10.0.0.7", "c20", "c7")
	wantFound(t, x, "10.0.0.9")
}

// TestFindSeesTheLog: the address comes with the result, after the base of the record.
func TestFindSeesTheLog(t *testing.T) {
	s, _ := store(t)
	x := Open(s)
	r := &record.Record{ContainerID: "c1", Attachments: []record.Attachment{{IfName: "eth0", Config: []byte(`{}`)}, {IfName: "eth1", Config: []byte(`{}`)}}}
	if err := s.Begin(r); err != nil {
		t.Fatal(err)
	}
	age(t, s)
	wantFound(t, x, "10.0.0.1")
	for _, e := range []record.Entry{
		{IfName: "eth0", Result: result("10.0.0.1")},
		{IfName: "eth1", Result: result("fd00::5")},
	} {
		if err := s.Append(r, e); err != nil {
			t.Fatal(err)
		}
	}
	wantFound(t, x, "10.0.0.1", "c1")
	wantFound(t, x, "fd00::5", "c1")
	wantFound(t, x, "fe80::1%eth0")
	if err := s.Append(r, record.Entry{IfName: "eth0", State: record.Deleted}); err != nil {
		t.Fatal(err)
	}
	wantFound(t, x, "10.0.0.1")
}

// TestARecordIsReadAgainWhileItsTimeSaysNothing: within one tick of the file system's
// clock a record may be deleted and another made with its inode, size and time.
func TestARecordIsReadAgainWhileItsTimeSaysNothing(t *testing.T) {
	s, _ := store(t)
	x := Open(s)
	write(t, s, "c1", 0, "10.0.0.1")
	path := s.Path(record.Name("c1"))
	wantFound(t, x, "10.0.0.1", "c1")
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	other, _ := store(t)
	write(t, other, "c1", 0, "10.0.0.2")
	data, err := os.ReadFile(other.Path(record.Name("c1")))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(path, data, 0o600), os.Chtimes(path, before.ModTime(), before.ModTime())); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || !same(before, after) {
		t.Fatalf("the file differs: %v", err)
	}
	wantFound(t, x, "10.0.0.1")
	wantFound(t, x, "10.0.0.2", "c1")
}

// TestRecordsThatCannotBeUsed: of a damaged one the legible part counts, and one that
// could not be read is read again.
func TestRecordsThatCannotBeUsed(t *testing.T) {
	s, _ := store(t)
	x := Open(s)
	for i := range 3 {
		write(t, s, record.ID(fmt.Sprint("c", i)), 0, fmt.Sprint("10.0.0.", i))
	}
	r, err := s.Load("c1")
	if err == nil {
		err = s.Append(r, record.Entry{IfName: "eth0", Result: result("10.0.0.1")})
	}
	if err != nil {
		t.Fatal(err)
	}
	path := s.Path(record.Name("c1"))
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[0] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	age(t, s)
	failing := s.Path(record.Name("c2"))
	read := s.Read
	s.Read = func(p string) ([]byte, error) {
		if p == failing {
			return nil, errors.New("input/output error")
		}
		return read(p)
	}
	wantFound(t, x, "10.0.0.0", "c0")
	found, err := x.Find(netip.MustParseAddr("10.0.0.1"))
	if err != nil || len(found) != 1 || !errors.Is(found[0].Err, record.ErrBad) {
		t.Errorf("found %+v, %v, want one that is damaged", found, err)
	}
	wantFound(t, x, "10.0.0.2")
	s.Read = read
	wantFound(t, x, "10.0.0.2", "c2")
}

// TestADirectoryThatCannotBeReadIsAnError, rather than an address that nobody has.
func TestADirectoryThatCannotBeReadIsAnError(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if found, err := Open(record.Open(dir)).Find(netip.MustParseAddr("10.0.0.1")); err == nil {
		t.Errorf("found %v", found)
	}
}

// TestFindAgreesWithAScan, while another process writes and deletes records. Whatever
// was there during a whole call is found.
func TestFindAgreesWithAScan(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	s, _ := store(t)
	other := record.Open(s.Dir())
	other.Sync = s.Sync
	x := Open(s)
	const stable, changing = 40, 20
	for i := range stable {
		write(t, s, record.ID(fmt.Sprint("stays", i)), 0, fmt.Sprint("10.1.0.", i))
	}
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Add(1)
	go func() {
		defer writer.Done()
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			id := record.ID(fmt.Sprint("changes", n%changing))
			write(t, other, id, 0, fmt.Sprint("10.2.0.", n%changing))
			again := fmt.Sprint("stays", n%stable)
			write(t, other, record.ID(again), n, fmt.Sprint("10.1.0.", n%stable)) // replaced, with the same address
			if n%3 == 0 {
				if err := other.Delete(id); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	var callers sync.WaitGroup
	for range 3 {
		wanted := make([]int, 60)
		for n := range wanted {
			wanted[n] = random.IntN(stable)
		}
		callers.Add(1)
		go func() {
			defer callers.Done()
			for _, i := range wanted {
				wantFound(t, x, fmt.Sprint("10.1.0.", i), fmt.Sprint("stays", i))
			}
		}()
	}
	callers.Wait()
	close(stop)
	writer.Wait()
	all, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	for i := range changing {
		addr := netip.MustParseAddr(fmt.Sprint("10.2.0.", i))
		var want []record.Found
		for _, f := range all {
			if slices.Contains(addressesIn(f.Record), addr) {
				want = append(want, f)
			}
		}
		got, err := x.Find(addr)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v: %v, %v, want %v", addr, got, err, want)
		}
	}
}

// BenchmarkFind is a lookup among 10,000 records: cold, in a process that has just
// started, and warm.
func BenchmarkFind(b *testing.B) {
	const n = 10_000
	s, _ := store(b)
	config, err := json.Marshal(map[string]string{"padding": string(make([]byte, 600))})
	if err != nil {
		b.Fatal(err)
	}
	for i := range n {
		r := &record.Record{ContainerID: record.ID(fmt.Sprint("c", i)), Attachments: []record.Attachment{{Network: "net", IfName: "eth0", Config: config}}}
		if err := s.Begin(r); err != nil {
			b.Fatal(err)
		}
		for _, e := range []record.Entry{
			{IfName: "eth0", Result: result(fmt.Sprintf("10.0.%d.%d", i>>8, i&255))},
			{IfName: "eth0", State: record.Added},
		} {
			if err := s.Append(r, e); err != nil {
				b.Fatal(err)
			}
		}
	}
	age(b, s)
	b.Run("cold", func(b *testing.B) {
		for b.Loop() {
			wantFound(b, Open(s), "10.0.20.7", fmt.Sprint("c", 20<<8+7))
		}
	})
	b.Run("warm", func(b *testing.B) {
		x := Open(s)
		wantFound(b, x, "10.0.20.7", fmt.Sprint("c", 20<<8+7))
		for b.Loop() {
			wantFound(b, x, "10.0.20.8", fmt.Sprint("c", 20<<8+8))
		}
	})
}
