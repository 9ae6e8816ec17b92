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
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/embedcni/cni/plugin"
)

// configFor is a request configuration with these ranges, in this directory.
func configFor(dir, ipam string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "podnet", "type": "bridge", "ipam": {"type": "host-local", "dataDir": %q, %s}}`, dir, ipam)
}

func call(config, id string) *plugin.Request {
	r := request(config, "")
	r.ContainerID, r.IfName = id, "eth0"
	return r
}

// files are the names and contents of a directory.
func files(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(data)
	}
	return all
}

// reference is what the executable does in ADD and DEL, from its own packages.
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

// TestAddressesAreThoseOfTheReference runs the same ADDs and DELs with both, in
// a directory each, and wants the same results and the same files after each.
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

func compareRandomly(t *testing.T, ipam string) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	dirs := [2]string{t.TempDir(), t.TempDir()}
	p, ref := New(), reference{configFor(dirs[1], ipam)}
	full := 0
	for step := range 150 {
		id := fmt.Sprint("c", rnd.IntN(20))
		r := call(configFor(dirs[0], ipam), id)
		var what string
		if rnd.IntN(5) < 3 {
			what = "ADD " + id
			got, err := p.Add(t.Context(), r)
			want, wantErr := ref.add(id)
			if (err != nil) != (wantErr != nil) {
				t.Fatalf("step %d: %s: %v, the reference: %v", step, what, err, wantErr)
			}
			if err == nil && asJSON(t, got.IPs) != asJSON(t, want) {
				t.Fatalf("step %d: %s: got %s, want %s", step, what, asJSON(t, got.IPs), asJSON(t, want))
			}
			if err != nil {
				full++
			}
		} else {
			what = "DEL " + id
			if err := errors.Join(p.Del(t.Context(), r), ref.del(id)); err != nil {
				t.Fatal(err)
			}
		}
		if rnd.IntN(10) == 0 {
			p = New() // a restart
		}
		got, want := files(t, dirs[0]+"/podnet"), files(t, dirs[1]+"/podnet")
		if step > 20 && !maps.Equal(got, want) { // DEL of ours makes no directory
			t.Fatalf("step %d: %s: files %q, want %q", step, what, got, want)
		}
	}
	if full == 0 {
		t.Error("no ADD was refused: the test shows too little")
	}
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func add(t testing.TB, p *Plugin, r *plugin.Request) []string {
	t.Helper()
	result, err := p.Add(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, ip := range result.IPs {
		all = append(all, ip.Address.String()+" via "+ip.Gateway.String())
	}
	return all
}

const dual = `"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]`

func TestRequestedAddresses(t *testing.T) {
	base := t.TempDir()
	dir := base + "/podnet"
	with := func(ips string) string {
		return strings.TrimSuffix(configFor(base, dual), "}") + `, "runtimeConfig": {"ips": [` + ips + `]}}`
	}
	p := New()
	got := add(t, p, call(with(`"10.1.0.77/24"`), "a"))
	if want := []string{"10.1.0.77/24 via 10.1.0.1", "fd00::2/64 via fd00::1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	before := files(t, dir)
	for ips, want := range map[string]string{
		`"10.1.0.77"`:                `network "podnet": range set 0: the requested address 10.1.0.77 is in use, see the file of that name in ` + dir,
		`"10.1.0.1"`:                 `network "podnet": range set 0: the requested address 10.1.0.1 is the gateway's`,
		`"fd00::9", "10.9.0.1"`:      `network "podnet": requested addresses are in no range set, or more than one is in the same: [10.9.0.1]`,
		`"10.1.0.90", "10.1.0.91"`:   `network "podnet": requested addresses are in no range set, or more than one is in the same: [10.1.0.91]`,
		`"10.1.0.90", "fd00::2"`:     `network "podnet": range set 1: the requested address fd00::2 is in use, see the file of that name in ` + dir,
		`"10.1.0.90", "bad"`:         `{"code":6,"msg":"configuration of plugin \"host-local\": \"bad\" is no IP address"}`,
		`"10.1.0.90", "", "fd00::2"`: `ips: an address that is requested is empty`,
	} {
		_, err := p.Add(t.Context(), call(with(ips), "b"))
		if e := (*types.Error)(nil); errors.As(err, &e) && e.Code == types.ErrDecodingFailure {
			err = errors.New(asJSON(t, e))
		}
		if err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", ips, err, want)
		}
		after := files(t, dir)
		for _, name := range []string{"last_reserved_ip.0", "last_reserved_ip.1"} {
			delete(before, name)
			delete(after, name)
		}
		if !maps.Equal(after, before) {
			t.Errorf("%s: left %q, want %q", ips, after, before)
		}
	}
}

func TestASecondAddIsRefused(t *testing.T) {
	base := t.TempDir()
	dir := base + "/podnet"
	p := New()
	add(t, p, call(configFor(base, dual), "a"))
	before := files(t, dir)
	for _, p := range []*Plugin{p, New()} {
		_, err := p.Add(t.Context(), call(configFor(base, dual), "a"))
		want := `network "podnet": range set 0: container "a" has the address 10.1.0.2 already, and no second ADD is allowed: ` +
			`run DEL first, which removes the file ` + dir + `/10.1.0.2`
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if after := files(t, dir); !maps.Equal(after, before) {
		t.Errorf("left %q, want %q", after, before)
	}
}

// Whatever another process does to the directory is noticed, be it at the same
// time as far as the file system can tell.
func TestWhatOthersChangeIsNoticed(t *testing.T) {
	memory, err := os.MkdirTemp("/run", "others")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(memory)
	for name, base := range map[string]string{"tmpfs": memory, "disk": t.TempDir()} {
		t.Run(name, func(t *testing.T) { othersChange(t, base) })
	}
}

func othersChange(t *testing.T, base string) {
	dir := base + "/podnet"
	config := configFor(base, `"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.4"`)
	p, ref := New(), reference{config}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for round := range 200 {
		a, b, c := fmt.Sprint("a", round), fmt.Sprint("b", round), fmt.Sprint("c", round)
		add(t, p, call(config, a))
		_, err := ref.add(b)
		must(err)
		if _, err := p.Add(t.Context(), call(config, b)); err == nil {
			t.Fatalf("round %d: the reference's address was not noticed", round)
		}
		add(t, p, call(config, c)) // the last one that is free
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
		if len(left) > 0 {
			t.Fatalf("round %d: left %q", round, left)
		}
	}
}

// What is known is not read again, as long as the directory does not change: a
// file that is written in place, which host-local never does, is as it was.
func TestWhatIsKnownIsNotReadAgain(t *testing.T) {
	base := t.TempDir()
	config := configFor(base, dual)
	p := New()
	add(t, p, call(config, "a"))
	fill(t, base+"/podnet", map[string]string{"10.1.0.2": "b\r\neth0"})
	if _, err := p.Add(t.Context(), call(config, "b")); err != nil {
		t.Errorf("it was read again: %v", err)
	}
	// Whoever reads it for the first time sees it.
	if got := New().Check(t.Context(), call(config, "a")); got == nil {
		t.Error("the file was not written")
	}
}

// What is removed by hand, between our own changes, is free again at the latest
// when nothing else is.
func TestAnAddressRemovedByHandIsFree(t *testing.T) {
	base := t.TempDir()
	dir := base + "/podnet"
	config := configFor(base, `"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.3"`)
	p := New()
	add(t, p, call(config, "a"))
	add(t, p, call(config, "b"))
	if err := os.Remove(dir + "/10.1.0.2"); err != nil {
		t.Fatal(err)
	}
	d := p.dirs[dir]
	d.memo.entries[netip.MustParseAddr("10.1.0.2")] = entry{holder: "x"}
	d.memo.stamp = stamp{} // as if nothing had been noticed
	if got := add(t, p, call(config, "c")); !slices.Equal(got, []string{"10.1.0.2/24 via 10.1.0.1"}) {
		t.Errorf("got %q", got)
	}
}

// An empty file, as a killed reference plugin leaves it, is in the way of
// nothing but its address.
func TestEmptyFilesAreNobodys(t *testing.T) {
	base := t.TempDir()
	dir := base + "/podnet"
	p := New()
	config := configFor(base, dual)
	add(t, p, call(config, "a"))
	for name, content := range map[string]string{"10.1.0.3": "", "10.1.0.4": "", "last_reserved_ip.0": "", "notes": "a\r\neth0"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"10.1.0.5/24 via 10.1.0.1", "fd00::3/64 via fd00::1"}
	if got := add(t, p, call(config, "b")); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, id := range []string{"a", "b", ""} {
		if err := p.Del(t.Context(), call(config, id)); err != nil {
			t.Error(err)
		}
	}
	left := slices.Sorted(maps.Keys(files(t, dir)))
	if want := []string{"10.1.0.3", "10.1.0.4", "last_reserved_ip.0", "last_reserved_ip.1", "lock", "notes"}; !slices.Equal(left, want) {
		t.Errorf("left %q, want %q", left, want)
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	base := t.TempDir()
	_, err := New().Add(ctx, call(configFor(base, dual), "a"))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if left := files(t, base); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}
