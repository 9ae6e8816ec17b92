package ipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/plugin"
)

// configFor returns a request configuration with these ranges in this
// directory.
func configFor(dir, ipam string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "podnet", "type": "bridge", "ipam": {"type": "host-local", "dataDir": %q, %s}}`, dir, ipam)
}

func call(config, id string) *plugin.Request {
	r := hostLocalRequest(config, "")
	r.ContainerID, r.IfName = id, "eth0"
	return r
}

// files returns the names and contents of a directory.
func files(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		data := expect.Value(os.ReadFile(filepath.Join(dir, e.Name())))(t)
		all[e.Name()] = string(data)
	}
	return all
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	data := expect.Value(json.Marshal(v))(t)
	return string(data)
}

func assign(t testing.TB, p *HostLocal, r *plugin.Request) []string {
	t.Helper()
	result := expect.Value(p.Add(t.Context(), r))(t)
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
	p := NewHostLocal()
	got := assign(t, p, call(with(`"10.1.0.77/24"`), "a"))
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
	p := NewHostLocal()
	assign(t, p, call(configFor(base, dual), "a"))
	before := files(t, dir)
	for _, p := range []*HostLocal{p, NewHostLocal()} {
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

// TestKnownFilesAreNotReadAgain while the directory does not change. A file
// that is rewritten in place keeps its old meaning. host-local never rewrites
// one.
func TestKnownFilesAreNotReadAgain(t *testing.T) {
	base := t.TempDir()
	config := configFor(base, dual)
	p := NewHostLocal()
	assign(t, p, call(config, "a"))
	fill(t, base+"/podnet", map[string]string{"10.1.0.2": "b\r\neth0"})
	if _, err := p.Add(t.Context(), call(config, "b")); err != nil {
		t.Errorf("it was read again: %v", err)
	}
	// A new reader sees it.
	expect.Fails(t, "the file was not written", NewHostLocal().Check(t.Context(), call(config, "a")))
}

// TestSharedPluginsHaveOneMemory: what one has read, another need not read.
func TestSharedPluginsHaveOneMemory(t *testing.T) {
	base := t.TempDir()
	config := configFor(base, dual)
	one := SharedHostLocal()
	assign(t, one, call(config, "a"))
	fill(t, base+"/podnet", map[string]string{"10.1.0.2": "b\r\neth0"}) // in place: only who reads it sees it
	if _, err := SharedHostLocal().Add(t.Context(), call(config, "b")); err != nil {
		t.Errorf("the other has read it: %v", err)
	}
	if err := one.Check(t.Context(), call(config, "b")); err != nil {
		t.Errorf("what the other has reserved is not known: %v", err)
	}
}

// TestAnAddressRemovedByHandIsFree again at the latest when no other address
// is, even if it was removed between our own changes.
func TestAnAddressRemovedByHandIsFree(t *testing.T) {
	base := t.TempDir()
	dir := base + "/podnet"
	config := configFor(base, `"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.3"`)
	p := NewHostLocal()
	assign(t, p, call(config, "a"))
	assign(t, p, call(config, "b"))
	expect.NoError(t, os.Remove(dir+"/10.1.0.2"))
	d := p.dirs[dir]
	d.memo.holders[netip.MustParseAddr("10.1.0.2")] = "x"
	d.memo.stamp = expect.Value(stampOf(dir))(t) // as if the change had gone unnoticed
	if got := assign(t, p, call(config, "c")); !slices.Equal(got, []string{"10.1.0.2/24 via 10.1.0.1"}) {
		t.Errorf("got %q", got)
	}
}

// TestEmptyFilesHaveNoOwner: an empty file, as a killed reference plugin leaves
// it, blocks only its own address.
func TestEmptyFilesHaveNoOwner(t *testing.T) {
	base := t.TempDir()
	dir := base + "/podnet"
	p := NewHostLocal()
	config := configFor(base, dual)
	assign(t, p, call(config, "a"))
	for name, content := range map[string]string{"10.1.0.3": "", "10.1.0.4": "", "last_reserved_ip.0": "", "notes": "a\r\neth0"} {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	want := []string{"10.1.0.5/24 via 10.1.0.1", "fd00::3/64 via fd00::1"}
	if got := assign(t, p, call(config, "b")); !slices.Equal(got, want) {
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
	_, err := NewHostLocal().Add(ctx, call(configFor(base, dual), "a"))
	expect.Is(t, err, context.Canceled)
	if left := files(t, base); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}
