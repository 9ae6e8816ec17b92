package audit

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/netns"
)

// inNS runs fn in a new namespace.
func inNS(t *testing.T, fn func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ns")
	h := expect.Value(netns.Create(path))(t)
	defer func() {
		expect.Succeeds(t, "Join", errors.Join(h.Close(), netns.Remove(path)))
	}()
	expect.NoError(t, h.Do(func() error { fn(); return nil }))
}

// sh runs a script in the calling thread's namespaces.
func sh(t *testing.T, script string) {
	t.Helper()
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	expect.Must(t, err == nil, "%s\n%v: %s", script, err, out)
}

func snapshot(t *testing.T, o Options) Lines {
	t.Helper()
	return expect.Value(Snapshot(t.Context(), o))(t)
}

// wantDiff fails unless exactly these lines were added between two snapshots, and none
// was removed.
func wantDiff(t *testing.T, what string, before, after, want Lines) {
	t.Helper()
	added, removed := Diff(before, after)
	expect.That(t, reflect.DeepEqual(added, want) && removed == nil,
		"%s: added:\n%s\nremoved:\n%s\nwant:\n%s", what, text(added), text(removed), text(want))
}

type change struct {
	setup, do, undo string
	want            Lines
}

// changes has a row for each kind of line. DIR is the state directory, NS the
// directory of pinned namespaces.
func changes() map[string]change {
	const veth = "ip link add d0 type veth peer name d1; ip link set d1 up"
	return map[string]change{
		"link": {"", "ip link add cni0 type bridge; ip link add v0 mtu 1400 type veth peer name v1; ip link set v0 master cni0 up alias x",
			"ip link del v0; ip link del cni0",
			Lines{"link cni0 type bridge mtu 1400 down", "link v0 type veth master cni0 mtu 1400 up alias x", "link v1 type veth mtu 1500 down"}},
		"link with parent": {veth, "ip link add m0 link d0 type macvlan", "ip link del m0",
			Lines{"link m0 type macvlan parent d0 mtu 1500 down"}},
		"address": {veth, "ip addr add 10.1.0.1/24 dev d0; ip addr add fd00::1/64 dev d0; ip addr add 10.2.0.1 peer 10.2.0.2 dev d0",
			"ip addr flush dev d0",
			Lines{"addr d0 type veth 10.1.0.1/24", "addr d0 type veth 10.2.0.1/32 peer 10.2.0.2/32", "addr d0 type veth fd00::1/64"}},
		"chosen link-local address": {veth, "ip addr add fe80::1/64 dev d0", "ip addr del fe80::1/64 dev d0",
			Lines{"addr d0 type veth fe80::1/64"}},
		"route": {veth + "; ip link set d0 up; ip addr add 10.1.0.1/24 dev d0; ip addr add fd00::1/64 dev d0 nodad",
			"ip route add default via 10.1.0.9; ip route add 10.9.0.0/16 dev d0 src 10.1.0.1 metric 7 table 100; ip -6 route add fd01::/64 via fd00::9; ip route add blackhole 10.8.0.0/16; ip route add 10.7.0.0/16 via 10.3.0.1 dev d0 onlink",
			"ip route flush table 100; ip route del default; ip -6 route del fd01::/64; ip route del blackhole 10.8.0.0/16; ip route del 10.7.0.0/16",
			Lines{
				"route 0.0.0.0/0 via 10.1.0.9 dev d0 type veth proto boot scope universe",
				"route 10.7.0.0/16 via 10.3.0.1 dev d0 type veth onlink proto boot scope universe",
				"route 10.9.0.0/16 dev d0 type veth proto boot scope link src 10.1.0.1 metric 7 table 100",
				"route blackhole 10.8.0.0/16 proto boot scope universe",
				"route fd01::/64 via fd00::9 dev d0 type veth proto boot metric 1024",
			}},
		"subnet route": {veth + "; ip link set d0 up", "ip addr add 10.1.0.1/24 dev d0", "ip addr del 10.1.0.1/24 dev d0",
			Lines{"addr d0 type veth 10.1.0.1/24", "route 10.1.0.0/24 dev d0 type veth proto kernel scope link src 10.1.0.1"}},
		"rule": {"", "ip rule add from 10.1.0.2 table 100 pref 99; ip -6 rule add fwmark 1 table 100 pref 98", "ip rule del pref 99; ip -6 rule del pref 98",
			Lines{"rule inet 99 from 10.1.0.2/32 table 100", "rule inet6 98 mark 0x1 table 100"}},
		"permanent neighbour": {veth + "; ip link set d0 up", "ip neigh add 10.1.0.2 lladdr 02:00:00:00:00:01 dev d0", "ip neigh del 10.1.0.2 dev d0",
			Lines{"neigh d0 10.1.0.2 02:00:00:00:00:01"}},
		"volatile neighbour": {veth + "; ip link set d0 up", "ip neigh add 10.1.0.2 lladdr 02:00:00:00:00:01 dev d0 nud reachable", "ip neigh del 10.1.0.2 dev d0", nil},
		"qdisc": {veth + "; ip link set d0 up", "tc qdisc add dev d0 handle 1: root tbf rate 1mbit burst 10k latency 1s; tc qdisc add dev d0 ingress", "tc qdisc del dev d0 root; tc qdisc del dev d0 ingress",
			Lines{"qdisc d0 ingress ffff:0 parent ingress", "qdisc d0 tbf 1:0 parent root"}},
		"iptables": {"", "iptables-nft -t nat -N CNI-x; iptables-nft -t nat -A POSTROUTING -s 10.1.0.2 -j CNI-x; iptables-nft -P FORWARD DROP; ip6tables-nft -A INPUT -s fd00::1 -j DROP",
			"iptables-nft -t nat -F; iptables-nft -t nat -X; iptables-nft -P FORWARD ACCEPT; ip6tables-nft -F",
			Lines{"ip6tables-nft filter -A INPUT -s fd00::1/128 -j DROP", "iptables-nft filter -P FORWARD DROP",
				"iptables-nft nat -A POSTROUTING -s 10.1.0.2/32 -j CNI-x", "iptables-nft nat -N CNI-x"}},
		"the same rule twice": {"iptables-nft -A INPUT -s 10.1.0.2 -j DROP", "iptables-nft -A INPUT -s 10.1.0.2 -j DROP", "iptables-nft -D INPUT 1",
			Lines{"iptables-nft filter -A INPUT -s 10.1.0.2/32 -j DROP"}},
		"nft": {"", "nft 'table inet t { set s { type ipv4_addr; }; chain c { type nat hook postrouting priority 100; }; }; add element inet t s { 10.0.0.1 }; add rule inet t c ip saddr 10.1.0.2 counter masquerade'", "nft delete table inet t",
			Lines{"nft chain inet t c", "nft chain inet t c type nat hook postrouting priority srcnat; policy accept;", "nft element inet t s 10.0.0.1",
				"nft rule inet t c ip saddr 10.1.0.2 counter masquerade", "nft set inet t s", "nft set inet t s type ipv4_addr", "nft table inet t"}},
		"file": {"", "mkdir -p DIR/a; echo 1 >DIR/a/f; ln -s f DIR/a/l; mkfifo DIR/p; head -c 70000 /dev/zero >DIR/big", "rm -r DIR/*",
			Lines{"dir DIR/a/", "file DIR/a/f sha256:4355a46b19d348dc", "file DIR/big large", "special DIR/p p---------", "symlink DIR/a/l f"}},
		"content": {"echo 1 >DIR/f", "echo 2 >DIR/f", "echo 1 >DIR/f", Lines{"file DIR/f sha256:53c234e5e8472b6a"}},
		"host-local": {"", "mkdir -p DIR/net DIR/other; touch DIR/net/lock DIR/net/last_reserved_ip.0 DIR/net/10.1.0.2 DIR/other/lock DIR/other/x", "rm -r DIR/*",
			Lines{"dir DIR/net/ host-local", "dir DIR/other/", "file DIR/net/10.1.0.2 sha256:e3b0c44298fc1c14", "file DIR/net/last_reserved_ip.0 host-local",
				"file DIR/net/lock host-local", "file DIR/other/lock sha256:e3b0c44298fc1c14", "file DIR/other/x sha256:e3b0c44298fc1c14"}},
		"ledger": {"", "echo 1 >DIR/ledger.0123456789abcdef; echo 1 >DIR/ledger.0123456789abcdeX", "rm DIR/*",
			Lines{"file DIR/ledger.0123456789abcdeX sha256:4355a46b19d348dc", "file DIR/ledger.0123456789abcdef ledger"}},
		"mount":     {"mkdir DIR/m", "mount -t tmpfs x 'DIR/m'", "umount DIR/m", Lines{"mount tmpfs DIR/m"}},
		"pin":       {"", "touch NS/a; mount --bind /proc/self/ns/net NS/a", "umount NS/a; rm NS/a", Lines{"mount nsfs NS/a", "netns NS/a ID"}},
		"stale pin": {"", "touch NS/a", "rm NS/a", Lines{"netns NS/a none"}},
		"orphan":    {"", "sleep 61 >/dev/null 2>&1 &", "kill $(pgrep -f '^sleep 61$')", Lines{"process sleep: sleep 61"}},
	}
}

func TestSnapshotShowsExactlyTheChange(t *testing.T) {
	for name, tt := range changes() {
		t.Run(name, func(t *testing.T) {
			o := Options{StateDirs: []string{t.TempDir()}, NetNSDirs: []string{t.TempDir()}}
			inNS(t, func() {
				id := expect.Value(netns.CurrentID())(t)
				fill := strings.NewReplacer("DIR/", o.StateDirs[0]+"/", "NS/", o.NetNSDirs[0]+"/", " ID", " "+id.String())
				sh(t, fill.Replace(tt.setup))
				before := snapshot(t, o)
				sh(t, fill.Replace(tt.do))
				after := snapshot(t, o)
				var want Lines
				for _, l := range tt.want {
					want = append(want, fill.Replace(l))
				}
				kept := before
				if name == "content" { // the line of the old content has gone
					kept = before.Without(func(l string) bool { return !slices.Contains(after, l) })
				}
				wantDiff(t, "the change", kept, after, want)
				wantDiff(t, "a second snapshot", after, snapshot(t, o), nil)
				sh(t, fill.Replace(tt.undo))
				wantDiff(t, "after undoing it", before, snapshot(t, o), nil)
			})
		})
	}
}

func text(l Lines) string { return strings.Join(l, "\n") }

func TestSnapshotShowsLegacyRules(t *testing.T) {
	inNS(t, func() {
		before := snapshot(t, Options{})
		out, err := exec.Command("iptables-legacy", "-t", "nat", "-A", "OUTPUT", "-d", "10.1.0.2", "-j", "ACCEPT").CombinedOutput()
		expect.Must(t, err == nil, "these tests need both variants of iptables: %v: %s", err, out)
		wantDiff(t, "a rule", before, snapshot(t, Options{}), Lines{"iptables-legacy nat -A OUTPUT -d 10.1.0.2/32 -j ACCEPT"})
	})
}

// Changes that the kernel makes by itself, up to two seconds after a link comes
// up, must not show.
func TestSnapshotIsStableWhileTheKernelSettles(t *testing.T) {
	inNS(t, func() {
		sh(t, "ip link set lo up; ip link add br0 type bridge; ip link add v0 type veth peer name v1; ip link set v0 master br0; "+
			"ip link set br0 up; ip link set v0 up; ip link set v1 up; ip addr add fd00::1/64 dev br0; ip addr add 10.1.0.1/24 dev br0")
		first := snapshot(t, Options{})
		for tick, end := time.NewTicker(200*time.Millisecond), time.Now().Add(2500*time.Millisecond); time.Now().Before(end); <-tick.C {
			wantDiff(t, "meanwhile", first, snapshot(t, Options{}), nil)
		}
	})
}

func TestSnapshotShowsDescriptors(t *testing.T) {
	before := snapshot(t, Options{})
	file := expect.Value(os.Open("/dev/zero"))(t)
	fd := expect.Value(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))(t)
	wantDiff(t, "opened", before, snapshot(t, Options{}), Lines{"fd /dev/zero", "fd socket"})
	expect.NoError(t, errors.Join(file.Close(), unix.Close(fd)))
	wantDiff(t, "closed", before, snapshot(t, Options{}), nil)
}

func TestSnapshotEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect.Is(t, expect.Err(Snapshot(ctx, Options{})), context.Canceled)
}

func TestSnapshotNamesMissingTools(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	expect.Is(t, expect.Err(lookPath("no-such-tool")), exec.ErrNotFound)
	expect.Succeeds(t, "not found where Debian has it", expect.Err(lookPath("nft")))
}

func TestMain(m *testing.M) { os.Exit(refplugins.Main(m)) }
