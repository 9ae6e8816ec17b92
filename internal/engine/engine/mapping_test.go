package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/ports"
	"github.com/embedcni/cni/outcome"
)

// Claims are read from the caller's values, and from the record's JSON: they must be the
// same.
func TestClaimsOfMappingsAreThoseOfTheirJSON(t *testing.T) {
	for _, m := range []Mapping{
		{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"},
		{HostPort: 1, Protocol: "UDP", HostIP: "10.0.0.1"},
		{HostPort: 65535, HostIP: "::"},
		{HostPort: 53, Protocol: "sctp", HostIP: "::ffff:10.0.0.1"},
		{HostPort: 0}, {HostPort: -1}, {HostPort: 65536}, {HostPort: 80, Protocol: "icmp"},
		{HostPort: 80, HostIP: "fe80::1%eth0"}, {HostPort: 80, HostIP: "no address"},
	} {
		got, want := claimsOf([]Mapping{m}), ports.Of(json.RawMessage(expect.Value(json.Marshal([]Mapping{m}))(t)))
		expect.Same(t, fmt.Sprint(m), got, want)
	}
}

// TestFault_F22_PortMappingThatCannotBe is refused before anything runs.
func TestFault_F22_PortMappingThatCannotBe(t *testing.T) {
	for _, test := range []struct {
		mapping Mapping
		want    string
	}{
		{Mapping{HostPort: -1, ContainerPort: 80}, "port mapping :-1->80/tcp: host port -1 is not 1 to 65535"},
		{Mapping{HostPort: 0, ContainerPort: 80}, "host port 0 is not"},
		{Mapping{HostPort: 65536, ContainerPort: 80}, "host port 65536 is not"},
		{Mapping{HostPort: 80, ContainerPort: 0}, "container port 0 is not"},
		{Mapping{HostPort: 80, ContainerPort: -5}, "container port -5 is not"},
		{Mapping{HostPort: 80, ContainerPort: 70000}, "container port 70000 is not"},
		{Mapping{HostPort: 80, ContainerPort: 80, Protocol: "icmp"}, `protocol "icmp" is none of tcp, udp, sctp`},
		{Mapping{HostPort: 80, ContainerPort: 80, Protocol: " tcp"}, `protocol " tcp" is none of`},
		{Mapping{HostPort: 80, ContainerPort: 80, HostIP: "not-an-ip"}, `host address "not-an-ip" is not an IP address`},
		{Mapping{HostPort: 80, ContainerPort: 80, HostIP: "10.0.0.1/24"}, `is not an IP address`},
		{Mapping{HostPort: 80, ContainerPort: 80, HostIP: "fe80::1%eth0"}, `has a zone`},
	} {
		got, err := ValidMappings([]Mapping{{HostPort: 1, ContainerPort: 1}, test.mapping})
		expect.That(t, got == nil && errors.Is(err, outcome.ErrInvalidArgument) && strings.Contains(err.Error(), test.want),
			"%+v: %v, %v; want ErrInvalidArgument with %q", test.mapping, got, err, test.want)
	}
}

// TestFault_F22_HostPortMappedTwice in one call: the same protocol and number
// on overlapping addresses.
func TestFault_F22_HostPortMappedTwice(t *testing.T) {
	for _, test := range []struct {
		a, b     string // protocol and host address
		conflict bool
	}{
		{"", "", true}, {"tcp", "", true}, {"TCP", "tcp", true}, {"udp", "tcp", false}, {"sctp", "udp", false},
		{"tcp 10.0.0.1", "tcp 10.0.0.1", true}, {"tcp 10.0.0.1", "tcp 10.0.0.2", false}, {"tcp 10.0.0.1", "udp 10.0.0.1", false},
		{"tcp 10.0.0.1", "tcp", true}, {"tcp ::1", "tcp", true},
		{"tcp 10.0.0.1", "tcp 0.0.0.0", true}, {"tcp ::1", "tcp 0.0.0.0", false}, {"tcp ::1", "tcp ::", true}, {"tcp 10.0.0.1", "tcp ::", false},
		{"tcp 10.0.0.1", "tcp ::ffff:10.0.0.1", true}, {"tcp ::1", "tcp 0:0:0:0:0:0:0:1", true},
	} {
		mapping := func(s string) Mapping {
			protocol, ip, _ := strings.Cut(s, " ")
			return Mapping{HostPort: 8080, ContainerPort: 80, Protocol: protocol, HostIP: ip}
		}
		for _, both := range [][]Mapping{{mapping(test.a), mapping(test.b)}, {mapping(test.b), mapping(test.a)}} {
			_, err := ValidMappings(both)
			conflict := errors.Is(err, outcome.ErrInvalidArgument)
			expect.That(t, conflict == test.conflict && (err != nil) == test.conflict, "%+v: %v, want a conflict: %v", both, err, test.conflict)
			both[1].HostPort++
			_, err = ValidMappings(both)
			expect.That(t, err == nil, "%+v: %v", both, err)
		}
	}
}

// TestEveryWrongMappingIsNamed, so that a user can correct all of them at once.
func TestEveryWrongMappingIsNamed(t *testing.T) {
	_, err := ValidMappings([]Mapping{{HostPort: -1, ContainerPort: 1}, {HostPort: 5, ContainerPort: 5}, {HostPort: 5, ContainerPort: 6}, {HostPort: 1, ContainerPort: -2}})
	want := "port mapping :-1->1/tcp: host port -1 is not 1 to 65535: invalid argument; " +
		"host port :5->6/tcp is mapped twice: invalid argument; " +
		"port mapping :1->-2/tcp: container port -2 is not 1 to 65535: invalid argument"
	expect.That(t, err != nil && err.Error() == want, "error %v\nwant %s", err, want)
}
