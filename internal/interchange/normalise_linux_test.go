package interchange

import (
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/expect"
)

// normaliser replaces parts that are random or differ between equal hosts.
type normaliser struct {
	dir   string
	given string            // the configuration, which is not random
	names map[string]string // replacements of links' names
	macs  map[string]string
	one   bool // the host has one container

	bridges []string
}

// normaliser returns one for a network on a host. With several containers, a
// bridge takes a random one's address, so addresses are no longer
// distinguished.
func (h *host) normaliser(n *network, containers int) *normaliser {
	given := strings.Join(n.plugins, "") + n.caps
	for _, a := range n.args {
		given += a[1]
	}
	return &normaliser{dir: h.dir, given: strings.ToLower(given), one: containers == 1, names: map[string]string{}, macs: map[string]string{}}
}

// link names a link and its address by the order of discovery. A bridge's
// address is as random as its ports' and may equal one of them.
func (n *normaliser) link(where string, l netlink.Link) {
	if l.Type() == "bridge" {
		n.bridges = append(n.bridges, l.Attrs().Name)
		return
	}
	n.learn(where, l.Attrs().Name, l.Attrs().HardwareAddr)
}

func (n *normaliser) learn(where, name string, mac net.HardwareAddr) {
	if strings.HasPrefix(name, "veth") {
		if n.names[name] == "" {
			n.names[name] = fmt.Sprintf("VETH%d", len(n.names)+1)
		}
		name = n.names[name]
	}
	if n.macs[mac.String()] == "" && len(mac) == 6 {
		n.macs[mac.String()] = fmt.Sprintf("MAC-of-%s-in-%s", name, where)
	}
}

var macAddress = regexp.MustCompile(`\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b`)

// text replaces all known names and addresses in a text.
func (n *normaliser) text(s string) string {
	s = strings.ReplaceAll(s, n.dir, "DIR")
	for name, to := range n.names {
		s = strings.ReplaceAll(s, name, to)
	}
	return macAddress.ReplaceAllStringFunc(s, func(mac string) string {
		switch {
		case strings.Contains(n.given, mac), mac == "00:00:00:00:00:00", mac == "ff:ff:ff:ff:ff:ff":
			return mac
		case n.one && n.macs[mac] != "":
			return n.macs[mac]
		}
		return "MAC"
	})
}

// result replaces the random parts of a result.
func (n *normaliser) result(s string) string {
	for _, name := range n.bridges {
		// The keys of an interface have been sorted since 1.0.0.
		name = regexp.QuoteMeta(name)
		s = regexp.MustCompile(`"mac": "[^"]*",(\s+"name": "`+name+`")`).ReplaceAllString(s, `"mac": "any",${1}`)
		s = regexp.MustCompile(`("name": "`+name+`",\s+)"mac": "[^"]*"`).ReplaceAllString(s, `${1}"mac": "any"`)
	}
	return n.text(s)
}

func TestNormaliser(t *testing.T) {
	n := &normaliser{dir: "/tmp/x", given: `{"mac": "0a:00:00:00:00:01"}`, one: true, names: map[string]string{}, macs: map[string]string{}}
	n.learn("host", "cni0", net.HardwareAddr{2, 0, 0, 0, 0, 1})
	n.learn("host", "veth12345678", net.HardwareAddr{2, 0, 0, 0, 0, 1})
	n.learn("c1", "eth0", net.HardwareAddr{10, 0, 0, 0, 0, 1})
	got := n.text("/tmp/x/state veth12345678 02:00:00:00:00:01 0a:00:00:00:00:01 02:00:00:00:00:77 00:00:00:00:00:00 fd00::1")
	want := "DIR/state VETH1 MAC-of-cni0-in-host 0a:00:00:00:00:01 MAC 00:00:00:00:00:00 fd00::1"
	expect.Same(t, "text", got, want)
	n.bridges = []string{"cni0"}
	got = n.result(`{"mac": "02:00:00:00:00:99", "name": "cni0"}, {"mac": "0a:00:00:00:00:01", "name": "eth0"}, {"name": "cni0", "mac": "02:00:00:00:00:99"}`)
	want = `{"mac": "any", "name": "cni0"}, {"mac": "0a:00:00:00:00:01", "name": "eth0"}, {"name": "cni0", "mac": "any"}`
	expect.Same(t, "result", got, want)
}
