package hostlocal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/plugin"
)

// configFor returns a request configuration with these ranges in this
// directory.
func configFor(dir, ipam string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "podnet", "type": "bridge", "ipam": {"type": "host-local", "dataDir": %q, %s}}`, dir, ipam)
}

func call(config, id string) *plugin.Request {
	r := request(config, "")
	r.ContainerID, r.IfName = id, "eth0"
	return r
}

// files returns the names and contents of a directory.
func files(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, path := range expect.Value(filepath.Glob(dir + "/*"))(t) {
		all[filepath.Base(path)] = string(expect.Value(os.ReadFile(path))(t))
	}
	return all
}

// reference runs the executable's ADD and DEL from its own packages.
type reference struct {
	config string
}

func (ref reference) each(f func(*allocator.IPAMConfig, *allocator.IPAllocator, allocator.RangeSet) error) error {
	c, _, err := allocator.LoadIPAMConfig([]byte(ref.config), "")
	if err != nil {
		return err
	}
	store, err := disk.New(c.Name, c.DataDir)
	if err != nil {
		return err
	}
	defer store.Close()
	for i, set := range c.Ranges {
		if err := f(c, allocator.NewIPAllocator(&set, store, i), set); err != nil {
			return err
		}
	}
	return nil
}

func (ref reference) add(id string) (ips []*types100.IPConfig, err error) {
	var done []*allocator.IPAllocator
	err = ref.each(func(c *allocator.IPAMConfig, a *allocator.IPAllocator, set allocator.RangeSet) error {
		var wanted net.IP
		for _, ip := range c.IPArgs {
			if set.Contains(ip) {
				wanted = ip
			}
		}
		ip, err := a.Get(id, "eth0", wanted)
		ips, done = append(ips, ip), append(done, a)
		return err
	})
	if err != nil {
		for _, a := range done[:len(done)-1] {
			err = errors.Join(err, a.Release(id, "eth0"))
		}
	}
	return ips, err
}

func (ref reference) del(id string) error {
	return ref.each(func(_ *allocator.IPAMConfig, a *allocator.IPAllocator, _ allocator.RangeSet) error {
		return a.Release(id, "eth0")
	})
}

// TestAddressesAreThoseOfTheReference runs the same ADDs and DELs with both,
// each in its own directory. The results and the files must be equal after
// each.
func TestAddressesAreThoseOfTheReference(t *testing.T) {
	for name, ipam := range map[string]string{
		"one range":         `"subnet": "10.1.0.0/28"`,
		"bounded":           `"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.17"`,
		"gateway within":    `"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.15", "gateway": "10.1.0.12"`,
		"gateway first":     `"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.15", "gateway": "10.1.0.10"`,
		"gateway last":      `"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.15", "gateway": "10.1.0.15"`,
		"gateway alone":     `"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.1", "rangeEnd": "10.1.0.1"`,
		"one address":       `"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.9"`,
		"several ranges":    `"ranges": [[{"subnet": "10.1.0.0/30"}, {"subnet": "10.2.0.0/29"}, {"subnet": "10.3.0.0/30", "gateway": "10.3.0.2"}]]`,
		"dual stack":        `"ranges": [[{"subnet": "10.1.0.0/29"}], [{"subnet": "fd00::/124"}]]`,
		"over a byte":       `"subnet": "10.1.0.0/22", "rangeStart": "10.1.0.253", "rangeEnd": "10.1.1.3"`,
		"two sets, IPv4":    `"ranges": [[{"subnet": "10.1.0.0/29"}], [{"subnet": "10.2.0.0/28"}]]`,
		"broadcast, /30 v6": `"ranges": [[{"subnet": "10.1.0.0/30", "rangeEnd": "10.1.0.3"}], [{"subnet": "fd00::/126"}]]`,
	} {
		t.Run(name, func(t *testing.T) { compareRandomly(t, ipam) })
	}
}

func compareRandomly(t *testing.T, section string) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	dirs := [2]string{t.TempDir(), t.TempDir()}
	p, ref := ipam.NewHostLocal(), reference{configFor(dirs[1], section)}
	full := 0
	for step := range 150 {
		id := fmt.Sprint("c", rnd.IntN(20))
		r := call(configFor(dirs[0], section), id)
		var what string
		if rnd.IntN(5) < 3 {
			what = "ADD " + id
			got, err := p.Add(t.Context(), r)
			want, wantErr := ref.add(id)
			expect.Must(t, (err != nil) == (wantErr != nil), "step %d: %s: %v, the reference: %v", step, what, err, wantErr)
			if err == nil && asJSON(t, got.IPs) != asJSON(t, want) {
				t.Fatalf("step %d: %s: got %s, want %s", step, what, asJSON(t, got.IPs), asJSON(t, want))
			}
			if err != nil {
				full++
			}
		} else {
			what = "DEL " + id
			expect.NoError(t, errors.Join(p.Del(t.Context(), r), ref.del(id)))
		}
		if rnd.IntN(10) == 0 {
			p = ipam.NewHostLocal() // a restart
		}
		got, want := files(t, dirs[0]+"/podnet"), files(t, dirs[1]+"/podnet")
		if step > 20 && !maps.Equal(got, want) { // DEL of ours does not make the directory
			t.Fatalf("step %d: %s: files %q, want %q", step, what, got, want)
		}
	}
	expect.That(t, full != 0, "no ADD was refused: the test shows too little")
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	return string(expect.Value(json.Marshal(v))(t))
}

// TestOthersChangesAreNoticed: another process's change to the directory is
// noticed, even within the resolution of the file system's times.
func TestOthersChangesAreNoticed(t *testing.T) {
	memory := expect.Value(os.MkdirTemp("/run", "others"))(t)
	defer os.RemoveAll(memory)
	for name, base := range map[string]string{"tmpfs": memory, "disk": t.TempDir()} {
		t.Run(name, func(t *testing.T) { othersChange(t, base) })
	}
}

func othersChange(t *testing.T, base string) {
	dir := base + "/podnet"
	config := configFor(base, `"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.4"`)
	p, ref := ipam.NewHostLocal(), reference{config}
	must := func(err error) {
		t.Helper()
		expect.NoError(t, err)
	}
	for round := range 200 {
		a, b, c := fmt.Sprint("a", round), fmt.Sprint("b", round), fmt.Sprint("c", round)
		_, err := p.Add(t.Context(), call(config, a))
		must(err)
		_, err = ref.add(b)
		must(err)
		if _, err := p.Add(t.Context(), call(config, b)); err == nil {
			t.Fatalf("round %d: the reference's address was not noticed", round)
		}
		_, err = p.Add(t.Context(), call(config, c))
		must(err) // that was the last free one
		must(ref.del(a))
		_, err = ref.add(a + "again") // the same address, and often the same inode
		must(err)
		if _, err := p.Add(t.Context(), call(config, a+"again")); err == nil || !strings.Contains(err.Error(), "already") {
			t.Fatalf("round %d: the new holder was not noticed: %v", round, err)
		}
		for _, id := range []string{b, c, a + "again"} {
			must(p.Del(t.Context(), call(config, id)))
		}
		left := files(t, dir)
		delete(left, "lock")
		delete(left, "last_reserved_ip.0")
		expect.Must(t, len(left) == 0, "round %d: left %q", round, left)
	}
}

// TestTheReferencesLockIsOurs: its holder blocks the plugin and the sweep,
// which lock without the reference's package.
func TestTheReferencesLockIsOurs(t *testing.T) {
	base := t.TempDir()
	dir := base + "/podnet"
	config := configFor(base, `"subnet": "10.1.0.0/24"`)
	p := ipam.NewHostLocal()
	expect.Value(p.Add(t.Context(), call(config, "a")))(t)
	theirs := expect.Value(disk.New("podnet", base))(t)
	defer theirs.Close()
	expect.NoError(t, theirs.Lock())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	expect.Is(t, expect.Err(p.Add(ctx, call(config, "b"))), context.DeadlineExceeded)
	items, err := leftovers.Find(t.Context(), leftovers.Target{How: leftovers.Manner{FilesOnly: true}, Footprint: leftovers.Footprint{
		Owner: netfilter.Owner{ContainerID: "a", IfName: "eth0"}, IPAMDirs: []string{dir}, Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.2")},
	}})
	expect.Must(t, err == nil && len(items) == 1, "found %v, %v; want the address of a", items, err)
	removed := make(chan error, 1)
	go func() { removed <- items[0].Remove(t.Context()) }()
	select {
	case err := <-removed:
		t.Errorf("the sweep did not wait for the reference's lock: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	expect.NoError(t, theirs.Unlock())
	expect.NoError(t, <-removed)
	expect.Same(t, "the address is still there", theirs.FindByID("a", "eth0"), false)
}

// TestTheSweepReadsTheReferencesFormat: our separator is a copy.
func TestTheSweepReadsTheReferencesFormat(t *testing.T) {
	base := t.TempDir()
	ref := reference{configFor(base, `"subnet": "10.1.0.0/24"`)}
	expect.Value(ref.add("a"))(t)
	foreign, others, err := leftovers.Foreign(base + "/podnet")
	expect.Must(t, err == nil && len(foreign) == 0 && len(others) == 1,
		"foreign %v, others %v, %v; want one of the reference's", foreign, others, err)
	r := others[0]
	expect.That(t, r.ContainerID == "a" && r.IfName == "eth0" && r.Addr == netip.MustParseAddr("10.1.0.2"), "read %+v", r)
}

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }
