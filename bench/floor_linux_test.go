package main

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// TestFloorIsCompleteAndLeavesNothing checks the benchmark's premise: the
// floor is not fast because it omits something.
func TestFloorIsCompleteAndLeavesNothing(t *testing.T) {
	for work, tt := range map[work]struct {
		outside, inside []string // lines that the attachment adds
		hairpin         bool
	}{
		workLoopback: {inside: []string{"link lo type loopback mtu 65536 up"}},
		workBridge: {
			outside: []string{"link floor9 type veth master bench2 mtu 1500 up"},
			inside:  []string{"addr eth0 type veth 10.102.0.3/16", "route 0.0.0.0/0 via 10.102.0.1 dev eth0"},
		},
		workNAT: {
			outside: []string{"link floor9 type veth master bench2 mtu 1500 up",
				"nft element inet bench_floor masq 10.102.0.3", "nft element inet bench_floor ports tcp . 8001 : 10.102.0.3 . 80"},
		},
		workDefault: {outside: []string{"nft element inet bench_floor masq 10.102.0.3"}, hairpin: true},
	} {
		t.Run(string(work), func(t *testing.T) {
			dir := t.TempDir()
			one := container{N: 9, Network: 2, ID: "c0", Path: filepath.Join(dir, "netns", "c1"), Ports: []uint16{8000, 8001}}
			ns := expect.Value(netns.Create(one.Path))(t)
			h := expect.Value(newHost(spec{Contender: bare, Work: work, Dir: dir}))(t)
			expect.NoError(t, h.do(t.Context(), verbADD, one)) // creates the shared parts that stay
			expect.NoError(t, h.do(t.Context(), verbDEL, one))
			before := listBoth(t, ns, dir)
			one.ID = "c1"
			expect.NoError(t, h.do(t.Context(), verbADD, one))
			during := listBoth(t, ns, dir)
			for i, want := range [][]string{tt.outside, tt.inside} {
				added, removed := audit.Diff(before[i], during[i])
				for _, line := range want {
					if !slices.ContainsFunc(added, func(l string) bool { return strings.HasPrefix(l, line) }) {
						t.Errorf("no line %q among\n%s\n(gone: %q)", line, strings.Join(added, "\n"), removed)
					}
				}
			}
			if tt.hairpin {
				port := expect.Value(netlink.LinkByName("floor9"))(t)
				mode := expect.Value(netlink.LinkGetProtinfo(port))(t)
				expect.Same(t, "hairpin mode", mode.Hairpin, true)
			}
			expect.NoError(t, h.do(t.Context(), verbDEL, one))
			after := listBoth(t, ns, dir)
			for i := range before {
				added, removed := audit.Diff(before[i], after[i])
				expect.Unchanged(t, "the host", added, removed)
			}
			expect.NoError(t, ns.Close())
			expect.NoError(t, netns.Remove(one.Path))
			if bridge, err := netlink.LinkByName("bench2"); err == nil {
				expect.NoError(t, netlink.LinkDel(bridge))
			}
			if work.filters() {
				out, err := exec.Command("nft", "delete", "table", "inet", "bench_floor").CombinedOutput()
				if err != nil {
					t.Errorf("nft: %v: %s", err, out)
				}
			}
		})
	}
}

// listBoth lists the lines of the host and of the container.
func listBoth(t *testing.T, container *netns.Handle, dir string) (lines [2]audit.Lines) {
	t.Helper()
	all := expect.Value(audit.Snapshot(t.Context(), audit.Options{StateDirs: []string{dir}}))(t)
	// host-local allocates the next address from there, so the file stays.
	lines[0] = all.Without(func(l string) bool { return strings.Contains(l, "last_reserved_ip.") })
	expect.NoError(t, container.Do(func() (err error) {
		lines[1], err = audit.Snapshot(t.Context(), audit.Options{})
		return err
	}))
	return lines
}
