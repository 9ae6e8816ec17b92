package links

import (
	"errors"
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/nettest"
)

// Flows of neither a port nor an address would be all of the host's.
func TestForgetRefusesAllFlows(t *testing.T) {
	ns := nettest.New(t)
	if n, err := Forget(ns, false, Flows{Port: 53}, Flows{}); err == nil {
		t.Errorf("forgot %d flows of any port and address", n)
	}
}

// TestUntranslatedFlows: a flow that a rule has sent to a container stays, while one to
// the host itself goes.
func TestUntranslatedFlows(t *testing.T) {
	host, container := net.IPv4(192, 0, 2, 1), net.IPv4(10, 1, 0, 2)
	for answers, want := range map[string]bool{host.String(): true, container.String(): false} {
		f := &filter{untranslated: true}
		if err := errors.Join(f.AddProtocol(unix.IPPROTO_UDP), f.AddPort(netlink.ConntrackOrigDstPort, 53)); err != nil {
			t.Fatal(err)
		}
		flow := &netlink.ConntrackFlow{
			Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, DstIP: host, DstPort: 53},
			Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.ParseIP(answers), SrcPort: 53},
		}
		if got := f.MatchConntrackFlow(flow); got != want {
			t.Errorf("a flow that %s answers: matched %t, want %t", answers, got, want)
		}
	}
}
