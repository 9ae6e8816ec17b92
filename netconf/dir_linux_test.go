package netconf

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/store/record"
)

// host is a namespace in the place of a host, with directories of its own.
type host struct {
	t *testing.T
	Dir
}

func newHost(t *testing.T) *host {
	t.Helper()
	nettest.Enter(t, nettest.New(t))
	dir := t.TempDir()
	return &host{t, Dir{Path: filepath.Join(dir, "net.d"), StateDir: filepath.Join(dir, "state")}}
}

func (h *host) ip(args string) {
	h.t.Helper()
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		h.t.Fatalf("ip %s: %v: %s", args, err, out)
	}
}

// wanted is a network that asks for subnets.
func wanted(name string, ranges ...Range) Network {
	return Network{Name: name, Plugins: []Plugin{
		Bridge{Name: name + "0", Gateway: true, IPAM: HostLocal{Ranges: ranges, DefaultRoutes: true}},
	}}
}

// few is a range with room for four subnets.
func few() Range {
	return Range{Pools: []netip.Prefix{netip.MustParsePrefix("10.7.0.0/22")}, Bits: 24}
}

func subnets(n Network) (all []string) {
	for _, r := range n.Plugins[0].(Bridge).IPAM.(HostLocal).Ranges {
		all = append(all, r.Subnet.String())
	}
	return all
}

func (h *host) put(file string, n Network) Written {
	h.t.Helper()
	return expect.Value(h.Write(h.t.Context(), file, n))(h.t)
}

// TestWriteOnlyWhatChanges.
func TestWriteOnlyWhatChanges(t *testing.T) {
	h := newHost(t)
	n := wanted("apps", AnyIPv4(), AnyIPv6())
	before := expect.Value(json.Marshal(n))(t)
	first := h.put("10-apps.conflist", n)
	expect.Same(t, "the caller's", string(expect.Value(json.Marshal(n))(t)), string(before))
	expect.Same(t, "path and change", first.Path+fmt.Sprint(first.Changed), filepath.Join(h.Path, "10-apps.conflist")+"true")
	fi := expect.Value(os.Stat(first.Path))(t)
	expect.Same(t, "mode", fi.Mode(), 0o644)
	expect.Same(t, "content", string(expect.Value(os.ReadFile(first.Path))(t)), string(expect.Value(first.Network.Render())(t)))
	for range 3 {
		again := h.put("10-apps.conflist", n)
		expect.Same(t, "again", again, Written{Path: first.Path, Network: first.Network})
	}
	if now := expect.Value(os.Stat(first.Path))(t); !os.SameFile(fi, now) || !fi.ModTime().Equal(now.ModTime()) {
		t.Error("the file was touched")
	}
	for what, change := range map[string]func() error{
		"mode":    func() error { return os.Chmod(first.Path, 0o600) },
		"content": func() error { return os.WriteFile(first.Path, []byte("{"), 0o644) },
		"link": func() error {
			return errors.Join(os.Rename(first.Path, first.Path+".x"), os.Symlink(first.Path+".x", first.Path))
		},
		"gone": func() error { return os.Remove(first.Path) },
	} {
		expect.NoError(t, change())
		again := h.put("10-apps.conflist", n)
		expect.Same(t, what, again, first)
		if now := expect.Value(os.Lstat(first.Path))(t); now.Mode() != 0o644 {
			t.Errorf("%s: mode %v", what, now.Mode())
		}
	}
	_, err := h.Write(t.Context(), "10-apps.conflist", wanted("apps", Range{Subnet: netip.MustParsePrefix("10.1.2.3/16")}))
	expect.Is(t, err, ErrInvalid)
	for _, file := range []string{"", ".x.conflist", "a/b.conflist", "../b.conflist", "apps.conf", "apps", ".conflist"} {
		_, err := h.Write(t.Context(), file, n)
		expect.Is(t, err, ErrInvalid)
		expect.Is(t, h.Remove(t.Context(), file, "apps"), ErrInvalid)
	}
}

// TestFreeSubnet: whatever uses a subnet, another is chosen. Of four, three are in the way.
func TestFreeSubnet(t *testing.T) {
	for name, use := range map[string]func(h *host){
		"addresses of links": func(h *host) {
			h.ip("link add d0 type bridge")
			h.ip("addr add 10.7.0.9/24 dev d0")
			h.ip("addr add 10.7.1.1/23 dev d0")
			h.ip("addr add 10.7.2.1/32 dev d0")
		},
		"routes of the main table": func(h *host) {
			h.ip("link add d0 up type bridge")
			h.ip("route add 10.7.0.0/25 dev d0")
			h.ip("route add 10.7.1.0/24 dev d0")
			h.ip("route add 10.7.2.128/26 dev d0")
		},
		"routes of other tables, and of other types": func(h *host) {
			h.ip("link add d0 up type bridge")
			h.ip("route add 10.7.0.0/24 dev d0 table 100")
			h.ip("route add blackhole 10.7.1.0/24 table 70000")
			h.ip("route add unreachable 10.7.2.0/24")
		},
		"other configurations": func(h *host) {
			expect.NoError(h.t, os.MkdirAll(h.Path, 0o755))
			for file, content := range map[string]string{
				"1.conf":      `{"name": "a", "type": "bridge", "ipam": {"type": "host-local", "subnet": "10.7.0.0/24"}}`,
				"2.conflist":  `{"name": "b", "plugins": [{"type": "x", "ipam": {"type": "static", "addresses": [{"address": "10.7.1.5\/24"}]}}]}`,
				"3.conflist":  `{"name": "c", "plugins": [{"type": "bridge", "ipam": {"ranges": [[{"subnet": "10.7.2.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]`, // half written
				".4.conflist": `{"name": "d", "plugins": [{"type": "x", "subnet": "10.7.0.0/16"}]}`,                                                              // no configuration
			} {
				expect.NoError(h.t, os.WriteFile(filepath.Join(h.Path, file), []byte(content), 0o644))
			}
		},
		"containers on record": func(h *host) {
			records := record.Open(filepath.Join(h.StateDir, "embedcni", "attachments"))
			expect.NoError(h.t, records.Begin(&record.Record{ContainerID: "c1", Attachments: []record.Attachment{
				{Network: "gone", IfName: "eth0", Config: []byte(`{"ipam": {"subnet": "10.7.0.0/24"}}`)},
				{Network: "gone2", IfName: "eth1", Config: []byte(`{}`), Result: json.RawMessage(`{"ips": [{"address": "10.7.1.77/24"}]}`)},
			}}))
			expect.NoError(h.t, os.WriteFile(records.Path("damaged"), []byte(`x "10.7.2.7/24" x`), 0o600))
		},
		"reservations of others": func(h *host) {
			for _, n := range []string{"a", "b", "c"} {
				h.put(n+".conflist", wanted(n, few()))
				expect.NoError(h.t, os.Remove(filepath.Join(h.Path, n+".conflist")))
			}
		},
		"its own range": func(h *host) {},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			use(h)
			n := wanted("apps", few())
			if name == "its own range" {
				n = wanted("apps", Range{Subnet: netip.MustParsePrefix("10.7.0.0/24")}, few(), few(), few())
			}
			got := subnets(h.put("apps.conflist", n).Network)
			seen := map[string]bool{}
			for _, s := range got {
				seen[s] = true
			}
			switch {
			case name == "its own range":
				expect.Same(t, "different ones", len(seen), 4)
			case name == "reservations of others":
				expect.Same(t, "one", len(got), 1)
			default:
				expect.Same(t, "subnet", got, []string{"10.7.3.0/24"})
			}
			_, err := h.Write(t.Context(), "more.conflist", wanted("more", few()))
			expect.Is(t, err, ErrNoFreeSubnet)
			expect.Same(t, "later", subnets(h.put("apps.conflist", n).Network), got)
			if _, err := os.Stat(filepath.Join(h.Path, "more.conflist")); !os.IsNotExist(err) {
				t.Errorf("a file was written: %v", err)
			}
		})
	}
}

// TestRoutesToEverywhereDoNotCount: nearly every host has one.
func TestRoutesToEverywhereDoNotCount(t *testing.T) {
	h := newHost(t)
	h.ip("link add d0 up type bridge")
	for _, route := range []string{"default", "0.0.0.0/1", "128.0.0.0/1", "-6 default", "-6 2000::/3", "-6 8000::/1"} {
		to := strings.TrimPrefix(route, "-6 ")
		h.ip(strings.TrimSuffix(route, to) + "route add " + to + " dev d0")
	}
	// 8000::/1 covers fd00::/8.
	got := subnets(h.put("apps.conflist", wanted("apps", AnyIPv4(), AnyIPv6())).Network)
	other := newHost(t)
	other.Path = h.Path
	expect.NoError(t, os.RemoveAll(h.Path))
	expect.Same(t, "as on a host without", subnets(other.put("apps.conflist", wanted("apps", AnyIPv4(), AnyIPv6())).Network), got)
}

// TestTwoProgramsThatDoNotKnowEachOther: each has its own directories, and no container
// has made a bridge yet.
func TestTwoProgramsThatDoNotKnowEachOther(t *testing.T) {
	h := newHost(t)
	other := Dir{Path: filepath.Join(t.TempDir(), "net.d"), StateDir: t.TempDir()}
	n := wanted("default", AnyIPv6())
	theirs := expect.Value(other.Write(t.Context(), "10-default.conflist", n))(t)
	if ours := h.put("10-default.conflist", n); subnets(ours.Network)[0] == subnets(theirs.Network)[0] {
		t.Errorf("both have %v", subnets(ours.Network))
	}
}

// TestNeverChangedOnceChosen: neither what comes later on the host nor the file matters.
func TestNeverChangedOnceChosen(t *testing.T) {
	h := newHost(t)
	n := wanted("apps", few(), AnyIPv6())
	first := h.put("10-apps.conflist", n)
	got := subnets(first.Network)
	h.ip("link add d0 up type bridge")
	h.ip("addr add " + strings.Replace(got[0], ".0/24", ".1/24", 1) + " dev d0")
	h.ip("route add 10.0.0.0/8 dev d0 table 9")
	expect.Same(t, "in use", subnets(h.put("10-apps.conflist", n).Network), got)
	expect.NoError(t, os.Remove(first.Path))
	expect.Same(t, "file gone", subnets(h.put("20-apps.conflist", n).Network), got)
	more := h.put("20-apps.conflist", wanted("apps", few(), AnyIPv6(), AnyIPv6()))
	expect.Same(t, "another range", subnets(more.Network)[:2], got)
	_, err := h.Write(t.Context(), "20-apps.conflist", wanted("apps", AnyIPv4()))
	expect.Same(t, "within the wider pool", err, nil)
	_, err = h.Write(t.Context(), "20-apps.conflist", wanted("apps", Range{Pools: few().Pools, Bits: 25}))
	expect.Is(t, err, ErrInvalid)
	_, err = h.Write(t.Context(), "20-apps.conflist", wanted("apps", Range{Pools: AnyIPv6().Pools, Bits: 8}))
	expect.Is(t, err, ErrInvalid)

	// Another directory's network of that name is another network.
	elsewhere := h.Dir
	elsewhere.Path = filepath.Join(t.TempDir(), "net.d")
	_, err = elsewhere.Write(t.Context(), "apps.conflist", wanted("apps", few()))
	expect.Is(t, err, ErrNoFreeSubnet) // of 10.0.0.0/8

	expect.NoError(t, h.Remove(t.Context(), "20-apps.conflist", "apps"), h.Remove(t.Context(), "20-apps.conflist", "apps"))
	_, err = h.Write(t.Context(), "10-apps.conflist", n)
	expect.Is(t, err, ErrNoFreeSubnet)
	left := expect.Value(filepath.Glob(filepath.Join(h.Path, "*")))(t)
	reserved := expect.Value(filepath.Glob(filepath.Join(h.reservations().Dir, "*")))(t)
	expect.Same(t, "left", [][]string{left, reserved}, [][]string{nil, nil})
}

// bridgeFor makes a bridge with the first address of a subnet.
func (h *host) bridgeFor(name, of string) {
	h.t.Helper()
	p := netip.MustParsePrefix(of)
	h.ip("link add " + name + " up type bridge")
	h.ip(fmt.Sprintf("addr add %s/%d dev %s nodad", p.Addr().Next(), p.Bits(), name))
}

// TestABridgeStaysAfterRemove: the network gets the subnet of its name again, which the
// bridge has.
func TestABridgeStaysAfterRemove(t *testing.T) {
	h := newHost(t)
	n := wanted("apps", few(), AnyIPv6())
	got := subnets(h.put("apps.conflist", n).Network)
	h.bridgeFor("apps0", got[0])
	h.ip("addr add " + strings.Replace(got[1], "::/64", "::1/64", 1) + " dev apps0 nodad")
	expect.NoError(t, h.Remove(t.Context(), "apps.conflist", "apps"))
	expect.Same(t, "after Remove", subnets(h.put("apps.conflist", n).Network), got)
	expect.Same(t, "again", subnets(h.put("apps.conflist", n).Network), got)
}

// TestABridgeWithAnotherAddressIsRefused: whatever were chosen, no container could be
// attached to it, or others would lose their gateway.
func TestABridgeWithAnotherAddressIsRefused(t *testing.T) {
	for what, tt := range map[string]struct {
		exists  func(h *host)
		refused bool
	}{
		"not of the pools": {func(h *host) { h.bridgeFor("apps0", "10.99.0.0/24") }, true},
		"not of the name": {func(h *host) {
			h.bridgeFor("apps0", "10.7.0.0/24")
			h.ip("addr add 10.7.1.1/24 dev apps0") // either is not what follows from the name
		}, true},
		"of another length": {func(h *host) { h.bridgeFor("apps0", "10.7.0.0/25") }, true},
		"another network's": {func(h *host) {
			h.put("other.conflist", wanted("other", Range{Subnet: netip.MustParsePrefix("10.7.1.0/24")}))
			h.bridgeFor("apps0", "10.7.1.0/24")
		}, true},
		"no bridge of this name": {func(h *host) { h.bridgeFor("apps1", "10.99.0.0/24") }, false},
		"without an address":     {func(h *host) { h.ip("link add apps0 type bridge") }, false},
		"of the other family":    {func(h *host) { h.bridgeFor("apps0", "fd00:7::/64") }, false},
		"with a link-local one":  {func(h *host) { h.bridgeFor("apps0", "169.254.0.0/16") }, false},
	} {
		t.Run(what, func(t *testing.T) {
			h := newHost(t)
			tt.exists(h)
			w, err := h.Write(t.Context(), "apps.conflist", wanted("apps", few()))
			if !tt.refused {
				expect.NoError(t, err)
				return
			}
			expect.Is(t, err, ErrInvalid)
			if err == nil || !strings.Contains(err.Error(), "apps0") {
				t.Errorf("wrote %v: %v", subnets(w.Network), err)
			}
			r := expect.Value(h.reservations().Load(h.Path, "apps"))(t)
			expect.Same(t, "reserved", len(r.V4), 0)
			// A subnet that the caller names is the caller's matter.
			h.put("apps.conflist", wanted("apps", Range{Subnet: netip.MustParsePrefix("10.55.0.0/24")}))
		})
	}
}

// TestSubnetWithoutABridge: any plugin's range gets one.
func TestSubnetWithoutABridge(t *testing.T) {
	h := newHost(t)
	w := h.put("apps.conflist", Network{Name: "apps", Plugins: []Plugin{PTP{IPAM: HostLocal{Ranges: []Range{few()}}}}})
	expect.Same(t, "a subnet", w.Network.Plugins[0].(PTP).IPAM.(HostLocal).Ranges[0].Subnet.Bits(), 24)
}

// TestSymlinkedDirectory: the reservation is the directory's, however it is spelled.
func TestSymlinkedDirectory(t *testing.T) {
	h := newHost(t)
	got := subnets(h.put("apps.conflist", wanted("apps", few())).Network)
	link := h.Dir
	link.Path = filepath.Join(t.TempDir(), "link")
	expect.NoError(t, os.Symlink(h.Path, link.Path))
	w := expect.Value(link.Write(t.Context(), "apps.conflist", wanted("apps", few())))(t)
	expect.Same(t, "the same", subnets(w.Network), got)
	expect.Same(t, "changed", w.Changed, false)
	expect.NoError(t, link.Remove(t.Context(), "apps.conflist", "apps"))
	expect.Same(t, "reserved", len(expect.Value(os.ReadDir(h.reservations().Dir))(t)), 0)
}

// TestUnreadable: what cannot be known is not taken for free.
func TestUnreadable(t *testing.T) {
	h := newHost(t)
	expect.NoError(t, os.MkdirAll(filepath.Join(h.Path, "net.conflist.d"), 0o755), syscall.Mkfifo(filepath.Join(h.Path, "x.conflist"), 0o644))
	_, err := h.Write(t.Context(), "apps.conflist", wanted("apps", few()))
	expect.Says(t, "error", err, "subnets are unknown")
	expect.NoError(t, os.Remove(filepath.Join(h.Path, "x.conflist")))
	h.put("apps.conflist", wanted("apps", few()))
	reserved := expect.Value(filepath.Glob(filepath.Join(h.reservations().Dir, "*.json")))(t)
	expect.NoError(t, os.WriteFile(reserved[0], []byte("{"), 0o600))
	expect.Says(t, "a name that is reserved", expect.Err(h.Write(t.Context(), "apps.conflist", wanted("apps", few()))), reserved[0])
	expect.NoError(t, h.Remove(t.Context(), "apps.conflist", "apps"))
	h.put("apps.conflist", wanted("apps", few()))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = h.Write(ended, "apps.conflist", wanted("apps", few()))
	expect.Is(t, err, context.Canceled)
}

// writerEnv makes this program write a network: "net.d state name file pause".
const writerEnv = "EMBEDCNI_NETCONF_WRITER"

func writeMain(job string) int {
	f := strings.Fields(job)
	d := Dir{Path: f[0], StateDir: f[1]}
	if f[4] == "pause" {
		d.chosen = func() {
			fmt.Println("chosen")
			_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
		}
	}
	w, err := d.Write(context.Background(), f[3], wanted(f[2], few()))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(subnets(w.Network)[0])
	return 0
}

func (h *host) writer(name, file, pause string) (*exec.Cmd, *bufio.Reader) {
	h.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), writerEnv+"="+strings.Join([]string{h.Path, h.StateDir, name, file, pause}, " "))
	expect.Value(cmd.StdinPipe())(h.t)
	out := expect.Value(cmd.StdoutPipe())(h.t)
	expect.NoError(h.t, cmd.Start())
	return cmd, bufio.NewReader(out)
}

// TestSeveralProcessesAtOnce: different networks get different subnets, one network one.
func TestSeveralProcessesAtOnce(t *testing.T) {
	h := newHost(t)
	type writer struct {
		name string
		cmd  *exec.Cmd
		out  *bufio.Reader
	}
	var writers []writer
	for i := range 8 {
		name := fmt.Sprint("n", i/2) // four networks, by two processes each
		cmd, out := h.writer(name, name+".conflist", "go")
		writers = append(writers, writer{name, cmd, out})
	}
	by := map[string]string{}
	of := map[string]string{}
	for _, w := range writers {
		line := strings.TrimSpace(expect.Value(w.out.ReadString('\n'))(t))
		expect.NoError(t, w.cmd.Wait())
		if by[w.name] != "" && by[w.name] != line || of[line] != "" && of[line] != w.name {
			t.Errorf("%s got %s; so far %v", w.name, line, by)
		}
		by[w.name], of[line] = line, w.name
	}
	expect.Same(t, "subnets", len(of), 4)
}

// TestKilledBetweenChoiceAndFile: the subnet is reserved, nobody is kept waiting, and the
// next Write has it.
func TestKilledBetweenChoiceAndFile(t *testing.T) {
	h := newHost(t)
	cmd, out := h.writer("apps", "apps.conflist", "pause")
	expect.Same(t, "its word", expect.Value(out.ReadString('\n'))(t), "chosen\n")
	reserved := expect.Value(h.reservations().Load(h.Path, "apps"))(t)
	expect.NoError(t, cmd.Process.Kill())
	expect.Fails(t, "it was not killed", cmd.Wait())
	if files, err := os.ReadDir(h.Path); err != nil || len(files) > 0 {
		t.Errorf("in the directory: %v, %v", files, err)
	}
	seen := map[string]bool{reserved.V4[0].String(): true}
	for _, name := range []string{"a", "b", "c"} {
		seen[subnets(h.put(name+".conflist", wanted(name, few())).Network)[0]] = true
	}
	expect.Same(t, "different ones", len(seen), 4)
	expect.Same(t, "its own", subnets(h.put("apps.conflist", wanted("apps", few())).Network), []string{reserved.V4[0].String()})
}

// TestKilledAtAnyTime: a writer that is killed leaves one subnet for its network, and a
// file that is whole or not there.
func TestKilledAtAnyTime(t *testing.T) {
	h := newHost(t)
	for round := range 16 {
		name := fmt.Sprint("n", round%4)
		cmd, _ := h.writer(name, name+".conflist", "go")
		time.AfterFunc(time.Duration(2*round)*time.Millisecond, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		if data, err := os.ReadFile(filepath.Join(h.Path, name+".conflist")); err == nil && !json.Valid(data) {
			t.Fatalf("round %d: %q", round, data)
		}
		if round%4 == 3 {
			expect.NoError(t, os.RemoveAll(h.Path))
		}
	}
	seen := map[string]bool{}
	for i := range 4 {
		name := fmt.Sprint("n", i)
		seen[subnets(h.put(name+".conflist", wanted(name, few())).Network)[0]] = true
	}
	expect.Same(t, "different ones", len(seen), 4)
}
