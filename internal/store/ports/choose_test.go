package ports

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

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
		if all, err := ParseRows(text); err == nil {
			t.Errorf("%s: %v", text, all)
		}
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
