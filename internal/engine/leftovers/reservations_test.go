package leftovers

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/netfilter"
)

// reserve makes files of host-local by name.
func reserve(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range files {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

// reserved is the opposite of reserve, without the lock.
func reserved(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries := expect.Value(os.ReadDir(dir))(t)
	files := map[string]string{}
	for _, e := range entries {
		data := expect.Value(os.ReadFile(filepath.Join(dir, e.Name())))(t)
		if e.Name() != "lock" {
			files[e.Name()] = string(data)
		}
	}
	return files
}

func addrs(list ...string) (all []netip.Addr) {
	for _, s := range list {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

// release removes reservations.
func release(t *testing.T, all []Reservation) error {
	t.Helper()
	var errs []error
	for _, r := range all {
		errs = append(errs, r.Remove(t.Context()))
	}
	return errors.Join(errs...)
}

// neighbours are files that do not belong to c1 on eth0.
func neighbours() map[string]string {
	return map[string]string{
		"10.1.0.20":          "c11\r\neth0",
		"10.1.0.21":          "c\r\neth0",
		"10.1.0.22":          "c1\r\neth1",
		"10.1.0.23":          "c1\r\neth01",
		"10.1.0.24":          "c11",
		"10.1.0.25":          "c1\neth0", // not host-local's format
		"10.1.0.26":          "c1 eth0",
		"10.1.0.27":          "x\r\nc1\r\neth0",
		"last_reserved_ip.0": "10.1.0.27",
		"c1":                 "c1\r\neth0", // not an address
	}
}

func TestAddressesOfTheAttachment(t *testing.T) {
	own := map[string]string{
		"10.1.0.2": "c1\r\neth0", "fd00::2": "c1\r\neth0", "10.1.0.3": "c1\r\neth0\r\n",
		"10.1.0.4": "c1", // of host-local before it noted the interface
		"10.1.0.5": "",   // of a host-local killed before its write
	}
	all := neighbours()
	for name, content := range own {
		all[name] = content
	}
	for _, c := range []struct {
		name  string
		known []netip.Addr
		how   Manner
		want  []string
	}{
		{name: "nothing known"},
		{
			name:  "known addresses",
			known: addrs("10.1.0.2", "fd00::2", "10.1.0.4", "10.1.0.5", "10.1.0.9", "10.1.0.20", "10.1.0.22"),
			want:  []string{"10.1.0.2", "fd00::2", "10.1.0.4"},
		},
		{name: "thorough", how: Manner{Thorough: true}, want: []string{"10.1.0.2", "10.1.0.3", "10.1.0.4", "fd00::2"}},
		{
			name: "some only",
			how:  Manner{Thorough: true, Only: func(a netip.Addr) bool { return a == netip.MustParseAddr("10.1.0.3") }},
			want: []string{"10.1.0.3"},
		},
		{
			name: "an empty one",
			how:  Manner{Thorough: true, Emptied: func(r Reservation) bool { return r.Addr == netip.MustParseAddr("10.1.0.5") }},
			want: []string{"10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "fd00::2"},
		},
	} {
		dir := reserve(t, all)
		target, want := heldIn(dir), []string(nil)
		target.Footprint.IPAMDirs, target.Footprint.Addresses = append(target.Footprint.IPAMDirs, filepath.Join(dir, "none")), c.known
		target.How = c.how
		left := reserved(t, dir)
		for _, file := range c.want {
			want = append(want, "address "+file+" in "+dir)
			delete(left, file)
		}
		wantAddresses(t, c.name, target, want)
		expect.Same(t, c.name+": there is now", reserved(t, dir), left)
	}
}

// heldIn searches a directory for c1 on eth0.
func heldIn(dir string) Target {
	return Target{Footprint: Footprint{Owner: netfilter.Owner{ContainerID: "c1", IfName: "eth0"}, IPAMDirs: []string{dir}}}
}

// wantAddresses finds the wanted reservations, releases them, and then finds
// none.
func wantAddresses(t *testing.T, name string, target Target, want []string) {
	t.Helper()
	for _, want := range [][]string{want, nil} {
		items := expect.Value(target.reserved())(t)
		var got []string
		for _, item := range items {
			got = append(got, item.String())
		}
		expect.That(t, slices.Equal(got, want), "%s: found %q, want %q", name, got, want)
		expect.Succeeds(t, name, release(t, items))
	}
}

func TestHeldAreTheAddressesWithAnOwner(t *testing.T) {
	files := neighbours()
	files["10.1.0.2"], files["fd00::2"], files["10.1.0.5"] = "c1\r\neth0", "c1\r\neth0", ""
	dir := reserve(t, files)
	held, err := heldIn(dir).Held()
	want := addrs("10.1.0.2", "fd00::2")
	expect.That(t, err == nil && slices.Equal(held, want), "held are %v, %v, want %v", held, err, want)
	expect.Same(t, "there is now", reserved(t, dir), files)
}

// TestAnAddressThatHasChangedHandsStays: it may get a new owner between search
// and removal.
func TestAnAddressThatHasChangedHandsStays(t *testing.T) {
	dir := reserve(t, map[string]string{"10.1.0.2": "c1\r\neth0", "10.1.0.3": "", "10.1.0.4": "c1\r\neth0"})
	target := heldIn(dir)
	target.How.Thorough, target.How.Emptied = true, func(Reservation) bool { return true }
	items, err := target.reserved()
	expect.Must(t, err == nil && len(items) == 3, "found %v, %v", items, err)
	after := map[string]string{"10.1.0.2": "c2\r\neth0", "10.1.0.3": "c2\r\neth0"}
	for name, content := range after {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	expect.NoError(t, release(t, items))
	expect.Same(t, "there is now", reserved(t, dir), after)
}

// TestOtherFilesAreNotReadUnlessThorough: a DEL on a network of thousands reads
// only the files of its own addresses. An unreadable file would reveal other
// reads.
func TestOtherFilesAreNotReadUnlessThorough(t *testing.T) {
	dir := reserve(t, map[string]string{"10.1.0.2": "c1\r\neth0"})
	for i := range 250 {
		loop := fmt.Sprintf("10.1.1.%d", i)
		expect.NoError(t, os.Symlink(loop, filepath.Join(dir, loop)))
	}
	target := heldIn(dir)
	target.Footprint.Addresses = addrs("10.1.0.2")
	items, err := target.reserved()
	expect.That(t, err == nil && len(items) == 1, "found %v, %v", items, err)
	target.How.Thorough = true
	items, err = target.reserved()
	expect.That(t, err != nil && strings.Count(err.Error(), "10.1.1.") == 250 && len(items) == 1, "thorough: found %v, %v", items, err)
}
