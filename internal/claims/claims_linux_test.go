package claims

import (
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/ipamdir"
	"github.com/embedcni/cni/internal/record"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func keyOn(id record.PluginID) record.Key {
	return record.Key{ContainerID: id, Network: "net", IfName: "eth0"}
}

// reserve makes host-local's directory for the network net, with these files.
func reserve(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "net")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func ledger(t *testing.T) (l Ledger, log *strings.Builder) {
	t.Helper()
	log = &strings.Builder{}
	return Ledger{Ledger: record.Open(t.TempDir()).Ledger("owner"), Log: slog.New(slog.NewTextHandler(log, nil)), Container: "c1"}, log
}

// TestJudge: an empty file belongs to the attachment if it was made during the
// ADD. An empty file for another address, or from another time, does not.
func TestJudge(t *testing.T) {
	dir := reserve(t, nil)
	l, log := ledger(t)
	before := l.Now()
	empty := func(name string) (found ipamdir.Reservation) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ipamdir.Stale(dir, func(r ipamdir.Reservation) bool {
			if r.Addr == addr(name) {
				found = r
			}
			return false
		})
		if err != nil || found.Addr != addr(name) {
			t.Fatalf("the file %s is found as %v, %v", name, found, err)
		}
		return found
	}
	for before == l.Now() { // files of one clock tick cannot be distinguished
	}
	mine, other := empty("10.1.0.2"), empty("10.1.0.3")
	for mine.Made == l.Now() || other.Made == l.Now() {
	}
	after := l.Now()
	for name, c := range map[string]struct {
		addresses []netip.Addr
		answered  bool
		recorded  time.Time
		claimed   time.Time
		want      []ipamdir.Reservation
	}{
		"its address, in this call":     {addresses: []netip.Addr{mine.Addr}, claimed: before, want: []ipamdir.Reservation{mine}},
		"its address, by the record":    {addresses: []netip.Addr{mine.Addr}, recorded: before, want: []ipamdir.Reservation{mine}},
		"made before the ADD":           {addresses: []netip.Addr{mine.Addr}, claimed: after},
		"nobody knows when it was made": {addresses: []netip.Addr{mine.Addr}},
		"no address, killed":            {claimed: before, want: []ipamdir.Reservation{mine, other}},
		"no address, answered":          {claimed: before, answered: true},
	} {
		claims := &Claims{}
		claims.Restart(c.claimed)
		judge := Attachment{
			Ledger: l, Key: keyOn("c1"), Claims: claims, Addresses: c.addresses, Answered: c.answered, Recorded: c.recorded,
		}.Judge()
		var got []ipamdir.Reservation
		for _, r := range []ipamdir.Reservation{mine, other} {
			if judge(r) {
				got = append(got, r)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v are left of the attachment, want %v", name, got, c.want)
		}
	}
	if log.Len() > 0 {
		t.Errorf("logged: %s", log)
	}

	// An administrator's file with the record's time cannot be distinguished.
	judge := Attachment{Ledger: l, Key: keyOn("c1"), Claims: &Claims{}, Addresses: []netip.Addr{mine.Addr}, Recorded: mine.Made}.Judge()
	first, second := judge(mine), judge(mine)
	if first || second || strings.Count(log.String(), mine.Path()) != 1 {
		t.Errorf("a doubtful file is taken, or not reported once: %s", log)
	}
	known, err := l.Read()
	if err != nil || !slices.Equal(known[keyOn("c1")].Doubtful, []netip.Addr{mine.Addr}) {
		t.Errorf("the ledger has %+v, %v", known, err)
	}
	if got, want := Doubtful(known[keyOn("c1")]), mine.Path()+" is empty"; len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("doubtful are %q, want one that begins with %q", got, want)
	}
}

// TestFault_F64_AnEarlierLifeOfTheIDDoesNotCount: the addresses and the time of an
// earlier attachment of the same key do not decide about a reservation of this one,
// whether the ledger has lines about it or a power cut has taken them.
func TestFault_F64_AnEarlierLifeOfTheIDDoesNotCount(t *testing.T) {
	const life = time.Hour
	now := time.Now()
	begun := now.Add(-longestADD / 2)
	of := record.Line{Key: keyOn("c1")}
	line := func(change func(*record.Line)) record.Line { l := of; change(&l); return l }
	addrs := func(s string) record.Line {
		return line(func(l *record.Line) { l.Addresses = []netip.Addr{addr(s)} })
	}
	begin := func(at time.Time) record.Line { return line(func(l *record.Line) { l.Time = at }) }
	first := []record.Line{begin(begun.Add(-life)), addrs("10.1.0.2"), line(func(l *record.Line) { l.Gone, l.Time = true, begun.Add(-life/2) })}
	for name, c := range map[string]struct {
		lines    []record.Line
		recorded time.Time
		want     bool
	}{
		"all lines":                         {slices.Concat(first, []record.Line{begin(begun), addrs("10.1.0.3")}), begun, true},
		"no address yet":                    {append(slices.Clone(first), begin(begun)), begun, true},
		"another address":                   {slices.Concat(first, []record.Line{begin(begun), addrs("10.1.0.4")}), begun, false},
		"the second life's lines are lost":  {first, begun, true},
		"the end of the first one too":      {first[:2], begun, true},
		"only that end is lost":             {append(slices.Clone(first[:2]), begin(begun)), begun, true},
		"of an earlier version":             {append(slices.Clone(first), begin(begun)), time.Time{}, true},
		"of an earlier version, lines lost": {first, time.Time{}, false},
	} {
		for _, compacted := range []bool{false, true} {
			dir := reserve(t, map[string]string{"10.1.0.3": ""})
			l, _ := ledger(t)
			err := l.Add(c.lines...)
			if err == nil && compacted {
				err = l.Compact(func(map[record.Key]record.Known) []record.Key { return nil })
			}
			if err != nil {
				t.Fatal(err)
			}
			judge := Attachment{Ledger: l, Key: keyOn("c1"), Claims: &Claims{}, Recorded: c.recorded}.Judge()
			stale, err := ipamdir.Stale(dir, judge)
			if err != nil || (len(stale) == 1) != c.want {
				t.Errorf("%s, compacted %t: %v are left of the attachment, %v, want one: %t", name, compacted, stale, err, c.want)
			}
		}
	}
}

// TestGarbage: GC releases reservations whose container, interface and address
// the ledger names, unless a record has the address.
func TestGarbage(t *testing.T) {
	const line = "\r\neth0"
	files := map[string]string{
		"10.1.0.2": "gone" + line, "10.1.0.3": "gone" + line, // the second is not in the ledger
		"10.1.0.4": "lost" + line, "10.1.0.5": "kept" + line, "10.1.0.6": "another" + line, "10.1.0.7": "gone" + line,
	}
	dir := reserve(t, files)
	named := func(gone bool, addrs ...string) record.Known {
		k := record.Known{Gone: gone, Dirs: []string{dir}}
		for _, a := range addrs {
			k.Addresses = append(k.Addresses, addr(a))
		}
		return k
	}
	attached := record.Record{ContainerID: "c9", Attachments: []record.Attachment{{
		Network: "net", IfName: "eth0", State: record.Added, Result: json.RawMessage(`{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.7/24"}]}`),
	}}}
	g := FindGarbage(map[record.Key]record.Known{
		keyOn("gone"): named(true, "10.1.0.2", "10.1.0.7"), keyOn("lost"): named(false, "10.1.0.4"), keyOn("kept"): named(true, "10.1.0.5"),
	}, func(key record.Key) bool { return key.ContainerID == "kept" }, []record.Found{{Record: &attached}})
	if got, want := g.Keys(), []record.Key{keyOn("gone"), keyOn("lost")}; !slices.Equal(got, want) {
		t.Errorf("garbage is %v, want %v", got, want)
	}
	others, unnamed, err := g.Others("net", []string{dir})
	slices.SortFunc(others, func(a, b types.GCAttachment) int { return strings.Compare(a.ContainerID, b.ContainerID) })
	want := []types.GCAttachment{{ContainerID: "another", IfName: "eth0"}, {ContainerID: "gone", IfName: "eth0"},
		{ContainerID: "gone", IfName: "eth0"}, {ContainerID: "kept", IfName: "eth0"}}
	if err != nil || unnamed != nil || !slices.Equal(others, want) {
		t.Errorf("others are %v, %v, %v, want %v", others, unnamed, err, want)
	}
	dirsOf := func(_ record.Key, k record.Known) []string { return k.Dirs }
	for _, dry := range []bool{true, false} {
		released, failed := g.Release(t.Context(), dirsOf, dry)
		if want := []string{"address 10.1.0.2 in " + dir}; !slices.Equal(released, want) || len(failed) > 0 {
			t.Errorf("dry %t: released %q, %v, want %q", dry, released, failed, want)
		}
	}
	left := map[string]string{}
	for name, content := range files {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
			left[name] = string(data)
		} else if content == "gone"+line && name != "10.1.0.2" {
			t.Error(err)
		}
	}
	delete(files, "10.1.0.2")
	if !reflect.DeepEqual(left, files) {
		t.Errorf("left are %q, want %q", left, files)
	}
	if (*Garbage)(nil).MayRelease("net", ipamdir.Reservation{ContainerID: "gone", IfName: "eth0", Addr: addr("10.1.0.2")}) {
		t.Error("without a search something may be released")
	}
	if err := os.WriteFile(filepath.Join(dir, "10.1.0.8"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, unnamed, err := g.Others("net", []string{dir}); err != nil || !slices.Equal(unnamed, []string{filepath.Join(dir, "10.1.0.8")}) {
		t.Errorf("unnamed are %q, %v", unnamed, err)
	}
}
