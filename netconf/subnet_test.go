package netconf

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, s := range texts {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

func TestNth(t *testing.T) {
	for _, test := range []struct {
		pool string
		bits int
		n    uint64
		want string
	}{
		{"10.0.0.0/8", 24, 0, "10.0.0.0/24"}, {"10.0.0.0/8", 24, 1, "10.0.1.0/24"}, {"10.0.0.0/8", 24, 65535, "10.255.255.0/24"},
		{"172.16.0.0/12", 20, 255, "172.31.240.0/20"}, {"10.0.0.0/24", 24, 0, "10.0.0.0/24"}, {"192.168.0.0/16", 30, 16383, "192.168.255.252/30"},
		{"fd00::/8", 64, 1, "fd00:0:0:1::/64"}, {"fd00::/8", 64, 1<<56 - 1, "fdff:ffff:ffff:ffff::/64"}, {"fd00::/8", 126, 5, "fd00::14/126"},
	} {
		expect.Same(t, test.pool, nth(netip.MustParsePrefix(test.pool), test.bits, test.n).String(), test.want)
	}
}

// TestChooseFollowsFromTheName: these must not change, because hosts agree on them.
func TestChooseFollowsFromTheName(t *testing.T) {
	v4, v6 := Range{Pools: prefixes("10.0.0.0/8", "172.16.0.0/12"), Bits: 24}, Range{Pools: prefixes("fd00::/8"), Bits: 64}
	for _, test := range []struct {
		name string
		wish Range
		used []netip.Prefix
		want string
	}{
		{"apps 0", v4, nil, "10.91.184.0/24"}, {"apps 1", v4, nil, "10.134.42.0/24"}, {"apps 0", v6, nil, "fd09:33f8:914f:1710::/64"},
		{"apps 0", v4, prefixes("10.0.0.0/8"), "172.31.222.0/24"}, {"apps 0", v6, prefixes("fd00::/9", "2001:db8::/32"), "fdea:dbe8:e1e4:56ca::/64"},
	} {
		got, ok := chooseSubnet(test.name, test.wish, test.used)
		if !ok || got.String() != test.want {
			t.Errorf("%q %v beside %v: %v, want %s", test.name, test.wish, test.used, got, test.want)
		}
	}
}

// TestChooseRandomly: what is chosen is in the pool and free, and it is found if there is
// any.
func TestChooseRandomly(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		pool := netip.MustParsePrefix("10.64.0.0/16")
		w := Range{Pools: []netip.Prefix{pool}, Bits: 16 + rnd.IntN(11)}
		var used []netip.Prefix
		for range rnd.IntN(300) {
			bits := 15 + rnd.IntN(18)
			if rnd.IntN(200) != 0 {
				bits = max(bits, 18)
			}
			addr := netip.AddrFrom4([4]byte{10, byte(63 + rnd.IntN(3)), byte(rnd.IntN(256)), byte(rnd.IntN(256))})
			used = append(used, netip.PrefixFrom(addr, bits))
		}
		exists := false
		for n := range uint64(1) << (w.Bits - 16) {
			p, free := nth(pool, w.Bits, n), true
			for _, u := range used {
				free = free && !u.Overlaps(p)
			}
			exists = exists || free
		}
		got, ok := chooseSubnet(fmt.Sprint(rnd.Int()), w, used)
		if ok != exists {
			t.Fatalf("found: %v, there is one: %v; %v beside %v", ok, exists, w, used)
		}
		if !ok {
			continue
		}
		for _, u := range used {
			if u.Overlaps(got) || !w.allows(got) || got != got.Masked() {
				t.Fatalf("%v overlaps %v, or is not in %v", got, u, w)
			}
		}
	}
}

func TestAllows(t *testing.T) {
	w := Range{Pools: prefixes("10.0.0.0/8", "192.168.0.0/16"), Bits: 24}
	for s, want := range map[string]bool{"10.1.2.0/24": true, "192.168.9.0/24": true, "10.1.0.0/16": false, "172.16.1.0/24": false, "fd00::/24": false} {
		expect.Same(t, s, w.allows(netip.MustParsePrefix(s)), want)
	}
}

func TestScan(t *testing.T) {
	const text = `{"subnet": "10.1.2.0/24", "x": "10.9.8.7\/16", "a": ["fd00:1::5/64","::/0","0.0.0.0/0","128.0.0.0/1","2000::/3"],
		"path": "/var/lib/10/24", "date": "2026/11", "half": "10.4.0.0/1`
	expect.Same(t, "found", fmt.Sprint(scanPrefixes([]byte(text))), "[10.1.2.0/24 10.9.0.0/16 fd00:1::/64]")
	if all := scanPrefixes(nil); all != nil {
		t.Errorf("got %v", all)
	}
}

func TestMerge(t *testing.T) {
	got := mergePrefixes(prefixes("10.1.2.3/24", "0.0.0.0/0"), prefixes("10.1.2.0/24", "::ffff:10.2.0.0/112", "fd00::1/64"), []netip.Prefix{{}})
	expect.Same(t, "merged", fmt.Sprint(got), "[10.1.2.0/24 10.2.0.0/16 fd00::/64]")
}

func TestReservations(t *testing.T) {
	s := reservations{filepath.Join(t.TempDir(), "subnets")}
	r := expect.Value(s.Load("/etc/a", "net"))(t)
	expect.Same(t, "nothing", *r, reservation{ConfDir: "/etc/a", Network: "net"})
	expect.Same(t, "others", expect.Value(s.Others("/etc/a", "net"))(t), nil)
	r.V4, r.V6 = prefixes("10.1.2.0/24", "10.3.0.0/16"), prefixes("fd00::/64")
	expect.NoError(t, s.Save(r))
	expect.Same(t, "again", *expect.Value(s.Load("/etc/a", "net"))(t), *r)
	expect.NoError(t, s.Save(&reservation{ConfDir: "/etc/b", Network: "net", V4: prefixes("10.9.0.0/16")}))
	expect.Same(t, "others", expect.Value(s.Others("/etc/a", "net"))(t), prefixes("10.9.0.0/16"))
	expect.Same(t, "of others", expect.Value(s.Others("/etc/c", "net"))(t), expect.Value(s.Others("/etc/a", "x"))(t))
	// A damaged file keeps what is legible, and its network gets no other subnet.
	expect.NoError(t, os.WriteFile(s.path("/etc/b", "net"), []byte(`{"V4":["10.9.0.0/16","10.8.`), 0o600))
	expect.Same(t, "others", expect.Value(s.Others("/etc/a", "net"))(t), prefixes("10.9.0.0/16"))
	expect.Fails(t, "a damaged reservation is no error", expect.Err(s.Load("/etc/b", "net")))
	expect.NoError(t, os.Rename(s.path("/etc/a", "net"), s.path("/etc/b", "net")))
	expect.Fails(t, "another network's reservation is no error", expect.Err(s.Load("/etc/b", "net")))
	expect.NoError(t, s.Delete("/etc/b", "net"), s.Delete("/etc/b", "net"))
	expect.Same(t, "nothing is left", len(expect.Value(os.ReadDir(s.Dir))(t)), 0)
}
