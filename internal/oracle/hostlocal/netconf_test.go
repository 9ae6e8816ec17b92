package hostlocal

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netconf"
)

// ranges returns random ranges, of which some are invalid.
func ranges(g *rand.Rand) (h netconf.HostLocal) {
	one := func() (r netconf.Range) {
		third := byte(g.IntN(12))
		if g.IntN(3) == 0 {
			r.Subnet = netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 7: third}), []int{64, 64, 64, 60, 127}[g.IntN(5)])
		} else {
			r.Subnet = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, third, 0}), []int{24, 24, 24, 22, 31, 16}[g.IntN(6)])
		}
		if g.IntN(20) != 0 {
			r.Subnet = r.Subnet.Masked()
		}
		inside := func() netip.Addr {
			a := r.Subnet.Addr()
			for range 1 + g.IntN(30) {
				a = a.Next()
			}
			return a
		}
		if g.IntN(3) == 0 {
			r.First = inside()
		}
		if g.IntN(3) == 0 {
			r.Last = inside()
		}
		if g.IntN(4) == 0 {
			r.Gateway = inside()
		}
		return r
	}
	for range g.IntN(5) {
		h.Ranges = append(h.Ranges, one())
	}
	return h
}

// raw renders the ranges without a look at them.
func raw(h netconf.HostLocal) string {
	type wire struct {
		Subnet     netip.Prefix `json:"subnet"`
		RangeStart *netip.Addr  `json:"rangeStart,omitempty"`
		RangeEnd   *netip.Addr  `json:"rangeEnd,omitempty"`
		Gateway    *netip.Addr  `json:"gateway,omitempty"`
	}
	some := func(a netip.Addr) *netip.Addr {
		if !a.IsValid() {
			return nil
		}
		return &a
	}
	of := func(r netconf.Range) wire { return wire{r.Subnet, some(r.First), some(r.Last), some(r.Gateway)} }
	sets := [][]wire{}
	for _, r := range h.Ranges {
		sets = append(sets, []wire{of(r)})
	}
	data, err := json.Marshal(sets)
	if err != nil {
		panic(err) // no field can fail
	}
	return head + `"ipam": {"type": "host-local", "ranges": ` + string(data) + `}}`
}

// TestRangesOfNetconf are refused exactly if the reference plugin refuses them, and are
// rendered as it understands them.
func TestRangesOfNetconf(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	g := rand.New(rand.NewPCG(seed, 0))
	valid := 0
	for range 5000 {
		h := ranges(g)
		_, refused := theirs(raw(h), "")
		rendered, err := netconf.Network{Name: "podnet", Plugins: []netconf.Plugin{netconf.Bridge{Name: "b0", IPAM: h}}}.Render()
		expect.Must(t, (err == nil) == (refused == nil), "netconf: %v\nreference: %v\n%s", err, refused, raw(h))
		if err != nil {
			continue
		}
		valid++
		var list struct {
			Name    string
			Plugins []struct{ IPAM json.RawMessage }
		}
		expect.NoError(t, json.Unmarshal(rendered, &list))
		got, err := theirs(head+`"ipam": `+string(list.Plugins[0].IPAM)+`}`, "")
		expect.Must(t, err == nil, "%v\n%s", err, rendered)
		want, err := theirs(raw(h), "")
		if err != nil || fmt.Sprint(got.Sets) != fmt.Sprint(want.Sets) || len(got.Sets) != len(h.Ranges) {
			t.Fatalf("understood as %v, want %v: %v", got.Sets, want.Sets, err)
		}
	}
	if valid < 500 {
		t.Errorf("only %d of 5000 were valid", valid)
	}
	expect.That(t, valid >= 500, "only %d of 5000 were valid", valid)
}
