package leftovers

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func keyOn(id record.PluginID) Key {
	return Key{ContainerID: id, Network: "net", IfName: "eth0"}
}

// judged is an attachment that is judged beside records of its own.
func judged(t *testing.T, a Attachment, add ADD, records *record.Store) (_ func(Reservation) bool, log *strings.Builder) {
	t.Helper()
	log = &strings.Builder{}
	a.List, a.Params.ContainerID, a.Params.IfName = &libcni.NetworkConfigList{Name: "net"}, "c1", "eth0"
	return a.Emptied(add, records, LedgerOf(records, "owner"), slog.New(slog.NewTextHandler(log, nil))), log
}

// TestJudge: an empty file belongs to the attachment if it was made during the
// ADD. An empty file for another address, or from another time, does not.
func TestJudge(t *testing.T) {
	dir := reserve(t, nil)
	records := record.Open(t.TempDir())
	before := records.Now()
	empty := func(name string) (found Reservation) {
		t.Helper()
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		found, ok, err := readReservation(dir, name)
		expect.Must(t, err == nil && ok && found.Addr == addr(name), "the file %s is found as %v, %v", name, found, err)
		return found
	}
	for before == records.Now() { // files of one clock tick cannot be distinguished
	}
	mine, other := empty("10.1.0.2"), empty("10.1.0.3")
	for mine.Made == records.Now() || other.Made == records.Now() {
	}
	after := records.Now()
	for name, c := range map[string]struct {
		addresses []netip.Addr
		answered  bool
		builtIn   bool
		recorded  time.Time
		claimed   time.Time
		want      []Reservation
	}{
		"its address, in this call":     {addresses: []netip.Addr{mine.Addr}, claimed: before, want: []Reservation{mine}},
		"its address, by the record":    {addresses: []netip.Addr{mine.Addr}, recorded: before, want: []Reservation{mine}},
		"made before the ADD":           {addresses: []netip.Addr{mine.Addr}, claimed: after},
		"nobody knows when it was made": {addresses: []netip.Addr{mine.Addr}},
		"no address, killed":            {claimed: before, want: []Reservation{mine, other}},
		"no address, failed":            {claimed: before, builtIn: true},
		"no address, killed earlier":    {recorded: before, builtIn: true, want: []Reservation{mine, other}},
		"no address, answered":          {claimed: before, answered: true},
	} {
		a, add := Attachment{}, ADD{Added: c.answered, Since: c.recorded}
		if !c.claimed.IsZero() {
			add.Since, add.Begun = c.claimed, true
		}
		if c.builtIn {
			a.Ran.Plugins = []record.Plugin{{Type: conflist.HostLocal, Kind: record.KindBuiltIn}}
		}
		for _, addr := range c.addresses {
			a.Result = json.RawMessage(`{"cniVersion": "1.0.0", "ips": [{"address": "` + addr.String() + `/24"}]}`)
		}
		left, log := judged(t, a, add, records)
		var got []Reservation
		for _, r := range []Reservation{mine, other} {
			if left(r) {
				got = append(got, r)
			}
		}
		expect.That(t, slices.Equal(got, c.want), "%s: %v are left of the attachment, want %v", name, got, c.want)
		expect.That(t, log.Len() == 0, "%s: logged: %s", name, log)
	}

	// An administrator's file with the record's time cannot be distinguished.
	judge, log := judged(t, Attachment{Result: json.RawMessage(`{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]}`)}, ADD{Since: mine.Made}, records)
	first, second := judge(mine), judge(mine)
	expect.That(t, !first && !second && strings.Count(log.String(), mine.path()) == 1, "a doubtful file is taken, or not reported once: %s", log)
}

// TestFault_F64_AnEarlierLifeOfTheIDDoesNotCount: an address that was reserved before
// the attachment was recorded belongs to an earlier container with the same ID.
func TestFault_F64_AnEarlierLifeOfTheIDDoesNotCount(t *testing.T) {
	for name, c := range map[string]struct {
		recorded time.Duration // since the file was made
		want     bool
	}{
		"of this life":         {-longestADD / 2, true},
		"of an earlier one":    {time.Minute, false},
		"long after it":        {-2 * longestADD, false},
		"nobody knows of when": {0, false},
	} {
		dir := reserve(t, map[string]string{"10.1.0.3": ""})
		add := ADD{}
		if c.recorded != 0 {
			add.Since = time.Now().Add(c.recorded)
		}
		judge, _ := judged(t, Attachment{}, add, record.Open(t.TempDir()))
		target := Target{Footprint: Footprint{IPAMDirs: []string{dir}}, How: Manner{Thorough: true, Emptied: judge}}
		stale, err := target.reserved()
		expect.That(t, err == nil && (len(stale) == 1) == c.want, "%s: %v are left of the attachment, %v, want one: %t", name, stale, err, c.want)
	}
}

// TestReleases: each is waited for, and why one is not on the disk is told.
func TestReleases(t *testing.T) {
	var r Releases
	broken, letGo := errors.New("broken"), make(chan struct{})
	r.Begin("a", func(string) error { <-letGo; return nil })
	r.Begin("a", func(string) error { return nil })
	r.Begin("b", func(dir string) error { return fmt.Errorf("%s: %w", dir, broken) })
	expect.That(t, r.Has("a") && r.Has("b") && !r.Has("c"), "it has not those that began")
	waited := make(chan error, 1)
	go func() { waited <- r.Wait() }()
	select {
	case err := <-waited:
		t.Errorf("one is not synced, and Wait returned %v", err)
	default:
	}
	close(letGo)
	err := <-waited
	expect.That(t, errors.Is(err, broken) && err.Error() == "b: broken", "Wait: %v", err)
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
	named := func(gone bool, addrs ...string) Known {
		k := Known{Gone: gone, Dirs: []string{dir}}
		for _, a := range addrs {
			k.Addresses = append(k.Addresses, addr(a))
		}
		return k
	}
	attached := record.Record{ContainerID: "c9", Attachments: []record.Attachment{{
		Network: "net", IfName: "eth0", State: record.Added, Result: json.RawMessage(`{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.7/24"}]}`),
	}}}
	g := FindGarbage(map[Key]Known{
		keyOn("gone"): named(true, "10.1.0.2", "10.1.0.7"), keyOn("lost"): named(false, "10.1.0.4"), keyOn("kept"): named(true, "10.1.0.5"),
	}, func(key Key) bool { return key.ContainerID == "kept" }, []record.Found{{Record: &attached}})
	if got, want := g.Keys(), []Key{keyOn("gone"), keyOn("lost")}; !slices.Equal(got, want) {
		t.Errorf("garbage is %v, want %v", got, want)
	}
	others, unnamed, err := g.Others("net", []string{dir})
	slices.SortFunc(others, func(a, b types.GCAttachment) int { return strings.Compare(a.ContainerID, b.ContainerID) })
	want := []types.GCAttachment{{ContainerID: "another", IfName: "eth0"}, {ContainerID: "gone", IfName: "eth0"},
		{ContainerID: "gone", IfName: "eth0"}, {ContainerID: "kept", IfName: "eth0"}}
	expect.That(t, err == nil && unnamed == nil && slices.Equal(others, want), "others are %v, %v, %v, want %v", others, unnamed, err, want)
	dirsOf := func(_ Key, k Known) []string { return k.Dirs }
	for _, dry := range []bool{true, false} {
		released, failed := g.Release(t.Context(), dirsOf, record.Open(dir).SyncDir, dry)
		want := []string{"address 10.1.0.2 in " + dir}
		expect.That(t, slices.Equal(released, want) && len(failed) == 0, "dry %t: released %q, %v, want %q", dry, released, failed, want)
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
	expect.Same(t, "left", left, files)
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "10.1.0.8"), []byte("x"), 0o600))
	_, unnamed, err = g.Others("net", []string{dir})
	expect.That(t, err == nil && slices.Equal(unnamed, []string{filepath.Join(dir, "10.1.0.8")}), "unnamed are %q, %v", unnamed, err)
}
