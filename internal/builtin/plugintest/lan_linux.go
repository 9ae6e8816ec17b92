package plugintest

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// LAN is an Ethernet segment with cables to hosts: a bridge in its own
// namespace, with the addresses 10.1.0.99 and fd00::99.
type LAN struct {
	Machine *netns.Handle
	cables  int
}

// NewLAN makes a LAN without hosts.
func NewLAN(t testing.TB) *LAN {
	t.Helper()
	l := &LAN{}
	l.Machine, _ = NetNS(t)
	nettest.AddBridge(t, l.Machine, "switch")
	nettest.SetUp(t, l.Machine, "switch")
	nettest.AddAddress(t, l.Machine, "switch", "10.1.0.99/24")
	nettest.AddAddress(t, l.Machine, "switch", "fd00::99/64")
	return l
}

// Cable gives a host an interface on the LAN. It is down.
func (l *LAN) Cable(t testing.TB, host *netns.Handle, name string) {
	t.Helper()
	l.cables++
	port := fmt.Sprint("port", l.cables)
	nettest.Change(t, l.Machine, "switch", func(nl *netlink.Handle, br netlink.Link) error {
		a := nettest.Attrs(port)
		a.MasterIndex = br.Attrs().Index
		return nl.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: name, PeerNamespace: netlink.NsFd(host.File().Fd())})
	})
	nettest.SetUp(t, l.Machine, port)
}

// connectTime limits a connection. A lost first SYN is repeated after one
// second, and again after two more.
const connectTime = 10 * time.Second

// Connect listens on an address of the namespace to, opens a TCP connection to
// it from the namespace from, and returns the connection time.
func Connect(t testing.TB, from, to *netns.Handle, addr netip.Addr) (took time.Duration) {
	t.Helper()
	var listener net.Listener
	expect.NoError(t, to.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		return err
	}))
	defer listener.Close()
	expect.NoError(t, from.Do(func() error {
		begin := time.Now()
		conn, err := net.DialTimeout("tcp", listener.Addr().String(), connectTime)
		took = time.Since(begin)
		if err != nil {
			return fmt.Errorf("after %s: %w", took, err)
		}
		return conn.Close()
	}))
	return took
}
