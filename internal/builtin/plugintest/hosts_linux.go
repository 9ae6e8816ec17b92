package plugintest

import (
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// Host is a host with a container, and a veth pair between them.
type Host struct {
	Host, Container *netns.Handle
	NetNS           string // path of the container's pinned namespace
}

// The hardware addresses of the pair's ends.
const (
	HostMAC      = "02:00:00:00:00:01"
	ContainerMAC = "02:00:00:00:00:02"
)

// NewHost makes a host. Its end of the pair is veth0, the container's is eth0,
// and both are up.
func NewHost(t testing.TB) Host {
	t.Helper()
	var h Host
	h.Host, _ = NetNS(t)
	h.Container, h.NetNS = NetNS(t)
	nettest.Inside(t, h.Host, func(nl *netlink.Handle) error {
		a := nettest.Attrs("veth0")
		a.HardwareAddr = expect.Value(net.ParseMAC(HostMAC))(t)
		return nl.LinkAdd(&netlink.Veth{
			LinkAttrs: a, PeerName: "eth0", PeerHardwareAddr: expect.Value(net.ParseMAC(ContainerMAC))(t),
			PeerNamespace: netlink.NsFd(h.Container.File().Fd()),
		})
	})
	nettest.SetUp(t, h.Host, "veth0")
	nettest.SetUp(t, h.Container, "eth0")
	return h
}

// Result returns the result of a plugin that made the pair.
func (h Host) Result() []byte {
	return []byte(strings.NewReplacer("HOST", HostMAC, "CONTAINER", ContainerMAC, "PIN", h.NetNS).Replace(`{
		"cniVersion": "1.0.0",
		"interfaces": [{"name": "veth0", "mac": "HOST"}, {"name": "eth0", "mac": "CONTAINER", "sandbox": "PIN"}],
		"ips": [{"interface": 1, "address": "10.1.0.2/24", "gateway": "10.1.0.1"}],
		"dns": {}
	}`))
}
