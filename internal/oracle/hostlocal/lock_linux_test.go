package hostlocal

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/leftovers"
	"github.com/embedcni/cni/internal/netfilter"
)

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
	if err != nil || len(items) != 1 {
		t.Fatalf("found %v, %v; want the address of a", items, err)
	}
	removed := make(chan error, 1)
	go func() { removed <- items[0].Remove(t.Context()) }()
	select {
	case err := <-removed:
		t.Errorf("the sweep did not wait for the reference's lock: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	expect.NoError(t, theirs.Unlock())
	if err := <-removed; err != nil {
		t.Error(err)
	}
	if theirs.FindByID("a", "eth0") {
		t.Error("the address is still there")
	}
}

// TestTheSweepReadsTheReferencesFormat: our separator is a copy.
func TestTheSweepReadsTheReferencesFormat(t *testing.T) {
	base := t.TempDir()
	ref := reference{configFor(base, `"subnet": "10.1.0.0/24"`)}
	expect.Value(ref.add("a"))(t)
	foreign, others, err := leftovers.Foreign(base + "/podnet")
	if err != nil || len(foreign) > 0 || len(others) != 1 {
		t.Fatalf("foreign %v, others %v, %v; want one of the reference's", foreign, others, err)
	}
	if r := others[0]; r.ContainerID != "a" || r.IfName != "eth0" || r.Addr != netip.MustParseAddr("10.1.0.2") {
		t.Errorf("read %+v", r)
	}
}
