package floor_test

import (
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/bench/floor"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// TestAttachmentIsCompleteAndLeavesNothing checks the benchmark's premise: the
// floor is not fast because it omits something.
func TestAttachmentIsCompleteAndLeavesNothing(t *testing.T) {
	both := []netip.Prefix{netip.MustParsePrefix("10.90.0.0/16"), netip.MustParsePrefix("fd00:90::/64")}
	for name, tt := range map[string]struct {
		options         floor.Options
		outside, inside []string // lines that the attachment adds
	}{
		"bridge": {
			options: floor.Options{Prefixes: both[:1]},
			outside: []string{"link floor8000 type veth master bridge mtu 1500 up"},
			inside:  []string{"addr eth0 type veth 10.90.0.3/16", "route 0.0.0.0/0 via 10.90.0.1 dev eth0"},
		},
		"ptp": {
			options: floor.Options{Prefixes: both, Ptp: true},
			outside: []string{"addr floor8000 type veth 10.90.0.1/32", "route 10.90.0.3/32 dev floor8000",
				"addr floor8000 type veth fd00:90::1/128", "route fd00:90::3/128 dev floor8000"},
			inside: []string{"addr eth0 type veth 10.90.0.3/32", "route 10.90.0.1/32 dev eth0", "route 0.0.0.0/0 via 10.90.0.1 dev eth0",
				"addr eth0 type veth fd00:90::3/128", "route ::/0 via fd00:90::1 dev eth0"},
		},
		"filtered": {
			options: floor.Options{Prefixes: both, Filter: true},
			outside: []string{"link floor8000 type veth master filtered mtu 1500 up",
				"nft element inet bench_floor masq4 10.90.0.3", "nft element inet bench_floor ports6 tcp . 8000 : fd00:90::3 . 80"},
			inside: []string{"addr eth0 type veth 10.90.0.3/16", "addr eth0 type veth fd00:90::3/64", "route ::/0 via fd00:90::1 dev eth0"},
		},
		"forwarded": {
			options: floor.Options{Prefixes: both[:1], Filter: true, Forward: true, Hairpin: true},
			outside: []string{"nft element inet bench_floor masq4 10.90.0.3",
				"iptables-nft filter -A CNI-FORWARD -d 10.90.0.3/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
				"iptables-nft filter -A CNI-FORWARD -s 10.90.0.3/32 -j ACCEPT"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "netns", "c1")
			container, err := netns.Create(path)
			expect.NoError(t, err)
			script(t, floor.Script+floor.ForwardScript)
			o := tt.options
			o.Network, o.DataDir = name, filepath.Join(dir, "ipam")
			h, err := floor.Open(o)
			expect.NoError(t, err)
			expect.NoError(t, h.Add("c0", path, 8000)) // creates the shared parts that stay
			expect.NoError(t, h.Del("c0"))
			before := listBoth(t, container, dir)

			expect.NoError(t, h.Add("c1", path, 8000))
			during := listBoth(t, container, dir)
			for i, want := range [][]string{tt.outside, tt.inside} {
				added, removed := audit.Diff(before[i], during[i])
				for _, line := range want {
					if !slices.ContainsFunc(added, func(l string) bool { return strings.HasPrefix(l, line) }) {
						t.Errorf("no line %q among\n%s\n(gone: %q)", line, strings.Join(added, "\n"), removed)
					}
				}
			}
			expect.NoError(t, h.Del("c1"))
			after := listBoth(t, container, dir)
			for i := range before {
				if added, removed := audit.Diff(before[i], after[i]); len(added)+len(removed) > 0 {
					t.Errorf("left: %q, gone: %q", added, removed)
				}
			}
			expect.NoError(t, h.Close())
			expect.NoError(t, container.Close())
			expect.NoError(t, netns.Remove(path))
			script(t, "delete table inet bench_floor\ndelete table ip filter\n")
		})
	}
}

// TestForwardIsFirewallsForIPTables compares the rules with those that the firewall
// plugin makes by the program iptables.
func TestForwardIsFirewallsForIPTables(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "netns", "c1")
	container, err := netns.Create(path)
	expect.NoError(t, err)
	script(t, floor.Script+floor.ForwardScript)
	h, err := floor.Open(floor.Options{Network: "forward", DataDir: filepath.Join(dir, "ipam"), Filter: true, Forward: true, Hairpin: true,
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.90.0.0/16")}})
	expect.NoError(t, err)
	expect.NoError(t, h.Add("c1", path, 8000))
	const address = "10.90.0.2/32"
	for _, rule := range []string{"-d " + address + " -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-s " + address + " -j ACCEPT"} {
		if out, err := exec.Command("iptables", slices.Concat([]string{"-C", "CNI-FORWARD"}, strings.Fields(rule))...).CombinedOutput(); err != nil {
			t.Errorf("iptables does not know %q as its own: %v: %s", rule, err, out)
		}
	}
	port, err := netlink.LinkByName("floor8000")
	expect.NoError(t, err)
	mode, err := netlink.LinkGetProtinfo(port)
	expect.NoError(t, err)
	if !mode.Hairpin {
		t.Error("the port is not in hairpin mode")
	}
	expect.NoError(t, h.Del("c1"))
	if out, err := exec.Command("iptables", "-S", "CNI-FORWARD").CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "-N CNI-FORWARD" {
		t.Errorf("after the DEL: %v: %s", err, out)
	}
	expect.NoError(t, h.Close())
	expect.NoError(t, container.Close())
	expect.NoError(t, netns.Remove(path))
	script(t, "delete table inet bench_floor\ndelete table ip filter\n")
}

func script(t *testing.T, text string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
}

// listBoth lists the lines of the host and of the container.
func listBoth(t *testing.T, container *netns.Handle, dir string) (lines [2]audit.Lines) {
	t.Helper()
	all, err := audit.Snapshot(t.Context(), audit.Options{StateDirs: []string{dir}})
	expect.NoError(t, err)
	// host-local allocates the next address from there, so the file stays.
	lines[0] = all.Without(func(l string) bool { return strings.Contains(l, "last_reserved_ip.") })
	expect.NoError(t, container.Do(func() (err error) {
		lines[1], err = audit.Snapshot(t.Context(), audit.Options{})
		return err
	}))
	return lines
}

// BenchmarkFloor measures the kernel's share without a whole run of the
// benchmark.
func BenchmarkFloor(b *testing.B) {
	dir := b.TempDir()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(floor.Script)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	h, err := floor.Open(floor.Options{Network: "br0", DataDir: dir, Filter: true, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.90.0.0/16")}})
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(dir, "ns")
	var add, del time.Duration
	for b.Loop() {
		b.StopTimer()
		c, err := netns.Create(path)
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		start := time.Now()
		if err := h.Add("c", path, 8000); err != nil {
			b.Fatal(err)
		}
		add += time.Since(start)
		start = time.Now()
		if err := h.Del("c"); err != nil {
			b.Fatal(err)
		}
		del += time.Since(start)
		b.StopTimer()
		if err := netns.Remove(path); err != nil {
			b.Fatal(err)
		}
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(add.Microseconds())/float64(b.N), "µs/ADD")
	b.ReportMetric(float64(del.Microseconds())/float64(b.N), "µs/DEL")
}
