package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/record"
)

// putAddr writes the record of a container with an address.
func putAddr(t testing.TB, s *record.Store, id record.ID, generation int, addr string) {
	t.Helper()
	r := &record.Record{ContainerID: id, Generation: generation, Attachments: []record.Attachment{{
		Network: "net", IfName: "eth0", Config: []byte(`{}`), State: record.Added, Result: addrResult(addr),
	}}}
	expect.NoError(t, s.Begin(r))
}

func addrResult(addr string) json.RawMessage {
	return fmt.Appendf(nil, `{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/c"}], "ips": [{"interface": 0, "address": "%s/16"}]}`, addr)
}

// unsynced is a store whose Sync does nothing.
func unsynced(t testing.TB) *record.Store {
	s := record.Open(filepath.Join(t.TempDir(), "attachments"))
	s.Sync = func(*os.File) error { return nil }
	return s
}

// wantAddr fails the test unless these containers have the address.
func wantAddr(t testing.TB, x *ByAddress, addr string, want ...string) {
	t.Helper()
	found := expect.Value(x.Find(netip.MustParseAddr(addr)))(t)
	var got []string
	for _, f := range found {
		got = append(got, string(f.Record.ContainerID))
	}
	slices.Sort(got)
	expect.That(t, slices.Equal(got, want), "%s: found %q, want %q", addr, got, want)
}

// TestByAddressSeesTheLog: the address comes with the result, after the base of the record.
func TestByAddressSeesTheLog(t *testing.T) {
	s := unsynced(t)
	x := NewByAddress(s)
	r := &record.Record{ContainerID: "c1", Attachments: []record.Attachment{{IfName: "eth0", Config: []byte(`{}`)}, {IfName: "eth1", Config: []byte(`{}`)}}}
	expect.NoError(t, s.Begin(r))
	wantAddr(t, x, "10.0.0.1")
	for _, e := range []record.Entry{
		{IfName: "eth0", Result: addrResult("10.0.0.1")},
		{IfName: "eth1", Result: addrResult("fd00::5")},
	} {
		expect.NoError(t, s.Append(r, e))
	}
	wantAddr(t, x, "10.0.0.1", "c1")
	wantAddr(t, x, "fd00::5", "c1")
	wantAddr(t, x, "fe80::1%eth0")
	expect.NoError(t, s.Append(r, record.Entry{IfName: "eth0", State: record.Deleted}))
	wantAddr(t, x, "10.0.0.1")
}

// TestByAddressOfRecordsThatCannotBeUsed: of a damaged one the legible part counts, and one that
// could not be read is read again.
func TestByAddressOfRecordsThatCannotBeUsed(t *testing.T) {
	s := unsynced(t)
	x := NewByAddress(s)
	for i := range 3 {
		putAddr(t, s, record.ID(fmt.Sprint("c", i)), 0, fmt.Sprint("10.0.0.", i))
	}
	r, err := s.Load("c1")
	if err == nil {
		err = s.Append(r, record.Entry{IfName: "eth0", Result: addrResult("10.0.0.1")})
	}
	expect.NoError(t, err)
	path := s.Path(record.Name("c1"))
	data := expect.Value(os.ReadFile(path))(t)
	data[0] ^= 1
	expect.NoError(t, os.WriteFile(path, data, 0o600))
	failing := s.Path(record.Name("c2"))
	read := s.Read
	s.Read = func(p string) ([]byte, error) {
		if p == failing {
			return nil, errors.New("input/output error")
		}
		return read(p)
	}
	wantAddr(t, x, "10.0.0.0", "c0")
	found, err := x.Find(netip.MustParseAddr("10.0.0.1"))
	expect.That(t, err == nil && len(found) == 1 && errors.Is(found[0].Err, record.ErrBad), "found %+v, %v, want one that is damaged", found, err)
	wantAddr(t, x, "10.0.0.2")
	s.Read = read
	wantAddr(t, x, "10.0.0.2", "c2")
}

// TestByAddressWithoutADirectory, rather than an address that nobody has.
func TestByAddressWithoutADirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "file")
	expect.NoError(t, os.WriteFile(dir, nil, 0o600))
	found, err := NewByAddress(record.Open(dir)).Find(netip.MustParseAddr("10.0.0.1"))
	expect.That(t, err != nil, "found %v", found)
}

// TestProcessOf reads the names of Pools.Dir, and the names of earlier versions.
func TestProcessOf(t *testing.T) {
	for _, test := range []struct {
		name          string
		life, runtime string
	}{
		{"life-12-34", "12-34", ""},
		{"56", "", "56"},
	} {
		rec := processOf(test.name)
		expect.That(t, rec.Life == test.life && rec.Runtime == test.runtime, "%s: got life %q, runtime %q", test.name, rec.Life, rec.Runtime)
	}
}
