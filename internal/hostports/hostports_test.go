package hostports

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/sockdiag"
)

func claim(protocol, addr string, port uint16) ports.Claim {
	c := ports.Claim{Protocol: protocol, Port: port}
	if addr != "" {
		c.Addr = netip.MustParseAddr(addr)
	}
	return c
}

func TestKeysDistinguishHostsProtocolsAndPorts(t *testing.T) {
	keys := Keys("4-17", []ports.Claim{claim("tcp", "", 80), claim("udp", "192.0.2.1", 53)})
	expect.Same(t, "keys", keys, []lock.Key{{Name: "port/4-17/tcp/80"}, {Name: "port/4-17/udp/53"}})
}

// TestTakenNamesTheFirstSocketOfEachPort, and its process if that is visible.
func TestTakenNamesTheFirstSocketOfEachPort(t *testing.T) {
	wanted := []ports.Claim{claim("tcp", "", 80), claim("tcp", "192.0.2.1", 81), claim("udp", "", 80)}
	sockets := []sockdiag.Socket{
		{Claim: claim("tcp", "192.0.2.1", 80), Inode: 7}, {Claim: claim("tcp", "", 80), Inode: 8},
		{Claim: claim("tcp", "192.0.2.2", 81), Inode: 9}, {Claim: claim("udp", "::", 80), Inode: 10},
	}
	http := sockdiag.Process{PID: 12, Name: "httpd"}
	found := taken(wanted, sockets, map[uint32]sockdiag.Process{7: http})
	expect.Same(t, "conflicts", found, []Conflict{
		{Wanted: wanted[0], At: netip.MustParseAddr("192.0.2.1"), Holder: http},
		{Wanted: wanted[2], At: netip.IPv6Unspecified()},
	})
}

// TestLeaveAvoidsThePortsOfTheSameProtocol: they are not other containers'.
func TestLeaveAvoidsThePortsOfTheSameProtocol(t *testing.T) {
	p := &Picked{avoid: map[uint16]bool{}}
	p.Leave([]ports.Claim{claim("tcp", "192.0.2.1", 80), claim("udp", "", 81)}, []string{"tcp", "sctp"})
	expect.Same(t, "avoided", []bool{p.Avoids(80), p.Avoids(81)}, []bool{true, false})
	expect.Same(t, "refused", len(p.Refused()), 0)
}

// TestForeignAsksForEachAddressOnce: all addresses are never foreign, and one that
// cannot be looked up is not reported as foreign.
func TestForeignAsksForEachAddressOnce(t *testing.T) {
	wanted := []ports.Claim{
		claim("tcp", "", 80), claim("tcp", "0.0.0.0", 80), claim("tcp", "192.0.2.1", 80),
		claim("tcp", "192.0.2.9", 80), claim("udp", "192.0.2.9", 53), claim("tcp", "2001:db8::1", 80),
	}
	asked := make(map[string]int)
	found, err := foreign(wanted, func(a netip.Addr) (bool, error) {
		asked[a.String()]++
		if a.Is6() {
			return false, errors.New("no answer")
		}
		return a.String() == "192.0.2.1", nil
	})
	expect.Same(t, "conflicts", found, []Conflict{{Wanted: wanted[3], Foreign: true}, {Wanted: wanted[4], Foreign: true}})
	expect.Same(t, "asked", asked, map[string]int{"192.0.2.1": 1, "192.0.2.9": 1, "2001:db8::1": 1})
	expect.Same(t, "error", err.Error(), "look up address 2001:db8::1 of the host: no answer")
}
