package ports

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/record"
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
		expect.Must(t, len(claims) == 1, "%d claims of %q", len(claims), addr)
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
		expect.Must(t, c.Overlaps(o) == common && c.Includes(o) == all,
			"%v and %v: overlap %t, includes %t; want %t, %t", c, o, c.Overlaps(o), c.Includes(o), common, all)
		if common {
			overlapping++
		}
		if all {
			including++
		}
	}
	expect.That(t, overlapping >= 500 && including >= 500,
		"%d of the pairs overlapped and %d were included, too few to show anything", overlapping, including)
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

// TestConflictsAreOtherContainersOnTheSameHost: a record without a host is of any, and
// the first holder is named for each wanted port.
func TestConflictsAreOtherContainersOnTheSameHost(t *testing.T) {
	http, dns := Claim{Protocol: "tcp", Port: 80}, Claim{Protocol: "udp", Port: 53}
	holder := func(id record.ID, boot, host string, c Claim) Holder {
		return Holder{Record: &record.Record{ContainerID: id, Boot: boot, Host: host}, Claim: c}
	}
	own := &record.Record{ContainerID: "own", Boot: "b", Host: "h"}
	for name, tt := range map[string]struct {
		holders []Holder
		want    []string
	}{
		"nobody":                {nil, nil},
		"itself":                {[]Holder{holder("own", "b", "h", http)}, nil},
		"of another boot":       {[]Holder{holder("c", "a", "h", http)}, nil},
		"on another host":       {[]Holder{holder("c", "b", "g", http)}, nil},
		"on an unknown host":    {[]Holder{holder("c", "b", "", http)}, []string{"tcp 80: c"}},
		"the first of two":      {[]Holder{holder("c", "b", "h", http), holder("d", "b", "h", http)}, []string{"tcp 80: c"}},
		"one for each, in turn": {[]Holder{holder("c", "b", "h", dns), holder("d", "b", "h", http)}, []string{"tcp 80: d", "udp 53: c"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range conflicts(own, []Claim{http, dns}, tt.holders) {
				got = append(got, c.Wanted.String()+": "+string(c.Record.ContainerID))
			}
			expect.Same(t, "conflicts", got, tt.want)
		})
	}
}

func claim(protocol, addr string, port uint16) Claim {
	c := Claim{Protocol: protocol, Port: port}
	if addr != "" {
		c.Addr = netip.MustParseAddr(addr)
	}
	return c
}

// TestPick leaves ports of the kernel out, and those that are added later.
func TestPick(t *testing.T) {
	kernel := Local{Ephemeral: Row{7005, 8000}, Reserved: []Row{{7001, 7002}, {7006, 7006}}}
	avoided := func(p *Picked) string {
		var all []uint16
		for port := p.First; port <= p.Last; port++ {
			if p.Avoids(port) {
				all = append(all, port)
			}
		}
		return fmt.Sprint(all)
	}
	p := Pick(Range{First: 7000, Last: 7007}, []string{"tcp", "udp"}, kernel)
	expect.Same(t, "by default", avoided(p), "[7001 7002 7005 7006 7007]")
	named := Pick(Range{First: 7000, Last: 7007, Named: true}, []string{"tcp"}, kernel)
	expect.Same(t, "named", avoided(named), "[7005 7007]")
	p.Use([]uint16{7000, 7001})
	p.Avoid([]uint16{7000, 7003})
	expect.Same(t, "in use", avoided(p), "[7000 7001 7002 7003 7005 7006 7007]")
	expect.Same(t, "counted", []int{p.Excluded, p.InUse, len(p.Refused())}, []int{5, 1, 1})
	expect.Same(t, "claims", p.Claims([]uint16{7004}), []Claim{claim("tcp", "", 7004), claim("udp", "", 7004)})
}

func TestRowsThatCannotBeRead(t *testing.T) {
	for _, text := range []string{"x", "1-x", "70000", "1--2"} {
		all, err := ParseRows(text)
		expect.That(t, err != nil, "%s: %v", text, all)
	}
}

// TestLeaveAvoidsThePortsOfTheSameProtocol: they are not other containers'.
func TestLeaveAvoidsThePortsOfTheSameProtocol(t *testing.T) {
	p := &Picked{Protocols: []string{"tcp", "sctp"}, avoid: map[uint16]bool{}}
	p.Leave([]Claim{claim("tcp", "192.0.2.1", 80), claim("udp", "", 81)})
	expect.Same(t, "avoided", []bool{p.Avoids(80), p.Avoids(81)}, []bool{true, false})
	expect.Same(t, "refused", len(p.Refused()), 0)
}

// TestForeignAsksForEachAddressOnce: all addresses are never foreign, and one that
// cannot be looked up is not reported as foreign.
func TestForeignAsksForEachAddressOnce(t *testing.T) {
	wanted := []Claim{
		claim("tcp", "", 80), claim("tcp", "0.0.0.0", 80), claim("tcp", "192.0.2.1", 80),
		claim("tcp", "192.0.2.9", 80), claim("udp", "192.0.2.9", 53), claim("tcp", "2001:db8::1", 80),
	}
	asked := make(map[string]int)
	found, err := Foreign(wanted, func(a netip.Addr) (bool, error) {
		asked[a.String()]++
		if a.Is6() {
			return false, errors.New("no answer")
		}
		return a.String() == "192.0.2.1", nil
	})
	expect.Same(t, "conflicts", found, wanted[3:5])
	expect.Same(t, "asked", asked, map[string]int{"192.0.2.1": 1, "192.0.2.9": 1, "2001:db8::1": 1})
	expect.Same(t, "error", err.Error(), "look up address 2001:db8::1 of the host: no answer")
}
