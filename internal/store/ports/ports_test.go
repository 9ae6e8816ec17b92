package ports

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// packet is what the model knows: to which address, protocol and port a packet goes.
type packet struct {
	protocol string
	addr     netip.Addr
	port     uint16
}

func hosts() []netip.Addr {
	var all []netip.Addr
	for _, a := range []string{"127.0.0.1", "192.0.2.1", "192.0.2.2", "::1", "2001:db8::1", "2001:db8::2"} {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

// packets returns the packets for a mapping in the universe of hosts, from the words
// of the mapping and not from a Claim.
func packets(protocol, hostIP string, port uint16) map[packet]bool {
	all := map[packet]bool{}
	for _, a := range hosts() {
		switch hostIP {
		case "":
		case "0.0.0.0", "::ffff:0.0.0.0":
			if !a.Is4() {
				continue
			}
		case "::":
			if a.Is4() {
				continue
			}
		default:
			if a != netip.MustParseAddr(hostIP).Unmap() {
				continue
			}
		}
		all[packet{protocol, a, port}] = true
	}
	return all
}

func TestOverlapsIsThatOfPackets(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	addrs := []string{"", "0.0.0.0", "::", "::ffff:0.0.0.0", "127.0.0.1", "192.0.2.1", "192.0.2.2", "::ffff:192.0.2.1", "::1", "2001:db8::1", "2001:db8::2"}
	pick := func() (Claim, map[packet]bool) {
		protocol, addr, port := Protocols()[random.IntN(3)], addrs[random.IntN(len(addrs))], uint16(1+random.IntN(2))
		claims := Of([]map[string]any{{"hostPort": port, "containerPort": 80, "protocol": protocol, "hostIP": addr}})
		if len(claims) != 1 {
			t.Fatalf("%d claims of %q", len(claims), addr)
		}
		return claims[0], packets(protocol, addr, port)
	}
	overlapping, including := 0, 0
	for range 20_000 {
		c, forC := pick()
		o, forO := pick()
		common, all := false, true
		for p := range forO {
			common, all = common || forC[p], all && forC[p]
		}
		if c.Overlaps(o) != common || c.Includes(o) != all {
			t.Fatalf("%v and %v: overlap %t, includes %t; want %t, %t", c, o, c.Overlaps(o), c.Includes(o), common, all)
		}
		if common {
			overlapping++
		}
		if all {
			including++
		}
	}
	if overlapping < 500 || including < 500 {
		t.Errorf("%d of the pairs overlapped and %d were included, too few to show anything", overlapping, including)
	}
}

func TestOfReadsMappings(t *testing.T) {
	addr := netip.MustParseAddr
	for what, tt := range map[string]struct {
		mappings any
		want     []Claim
	}{
		"nothing":       {nil, nil},
		"no list":       {map[string]any{"hostPort": 1}, nil},
		"not encodable": {func() {}, nil},
		"a record's":    {json.RawMessage(`[{"hostPort": 80, "containerPort": 1, "protocol": "TCP", "hostIP": "::ffff:192.0.2.1"}]`), []Claim{{"tcp", addr("192.0.2.1"), 80}}},
		"any case":      {json.RawMessage(`[{"HostPort": 80, "HOSTIP": "::"}]`), []Claim{{"tcp", addr("::"), 80}}},
		"some that no plugin applies": {json.RawMessage(`[{"hostPort": 0}, {"hostPort": 70000}, {"hostPort": "1"}, {"hostPort": 1, "protocol": "icmp"},
			{"hostPort": 1, "hostIP": "host"}, {"hostPort": 1, "hostIP": "fe80::1%eth0"}, 5, {"hostPort": 2, "protocol": "sctp"}]`), []Claim{{Protocol: "sctp", Port: 2}}},
	} {
		expect.Same(t, what, Of(tt.mappings), tt.want)
	}
}

func TestClaimsPrintWell(t *testing.T) {
	for want, c := range map[string]Claim{
		"tcp 80":               {Protocol: "tcp", Port: 80},
		"udp 192.0.2.1:53":     {Protocol: "udp", Addr: netip.MustParseAddr("192.0.2.1"), Port: 53},
		"sctp [2001:db8::1]:9": {Protocol: "sctp", Addr: netip.MustParseAddr("2001:db8::1"), Port: 9},
	} {
		expect.Same(t, "text", c.String(), want)
	}
}
