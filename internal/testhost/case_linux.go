package testhost

import (
	"fmt"
	"strings"

	"github.com/embedcni/cni"
)

// Case is a typical network of reference plugins.
type Case struct {
	Name    string
	Since   string   // the lowest version that all its plugins support; empty: 0.1.0
	Plugins []string // their configurations, in order
	Prepare func(h *RealHost)
	Lo      bool // also load the loopback network

	Ports     []cni.PortMapping
	Bandwidth cni.BandWidth

	Routes []string // those that a plugin adds without reporting them
}

// Single reports whether the network predates lists.
func (c *Case) Single(version string) bool { return version < "0.3.0" }

// Conf returns the configuration file. ipam is host-local's directory.
func (c *Case) Conf(network, version, ipam string) []byte {
	head := fmt.Sprintf(`{"cniVersion": %q, "name": %q, `, version, network)
	text := head + `"plugins": [` + strings.Join(c.Plugins, ",\n") + `]}`
	if c.Single(version) {
		text = head + c.Plugins[0][1:]
	}
	return []byte(strings.ReplaceAll(text, "IPAM", ipam))
}

const (
	V4Range = `[{"subnet": "10.77.0.0/24"}]`
	V6Range = `[{"subnet": "fd77::/64"}]`
)

func HostLocal(ranges string, routes ...string) string {
	var dst []string
	for _, r := range routes {
		dst = append(dst, fmt.Sprintf(`{"dst": %q}`, r))
	}
	return fmt.Sprintf(`"ipam": {"type": "host-local", "dataDir": "IPAM", "ranges": [%s], "routes": [%s]}`,
		ranges, strings.Join(dst, ", "))
}

func BridgeConf(more string) string {
	return `{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, ` + more + `}`
}

func PtpConf(more string) string { return `{"type": "ptp", "ipMasq": true, ` + more + `}` }

// Uplink makes the interface that macvlan uses.
func Uplink(h *RealHost) {
	h.VethPair("up0", "up1")
	h.LinkUp("up0", "up1")
}

// Macvlan returns a network whose interfaces have a cable of the host as their
// master.
func Macvlan() Case {
	return Case{Prepare: Uplink, Plugins: []string{`{"type": "macvlan", "master": "up0", ` + HostLocal(V4Range) + `}`}}
}

// HostDevice returns a network that lends one end of a cable.
func HostDevice() Case {
	return Case{
		Prepare: func(h *RealHost) { h.VethPair("up0", "up1"); h.LinkUp("up1") },
		Plugins: []string{`{"type": "host-device", "device": "up0", ` + HostLocal(V4Range) + `}`},
	}
}
