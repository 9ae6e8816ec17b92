// Package graph draws the networks of a node: the host, its bridges, the containers on
// them, and what of these is broken. [Look] makes the model from the library's records and
// verdicts, [WriteSVG] and [WriteDOT] draw it.
package graph

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/embedcni/cni"
)

// Host is what a picture shows.
type Host struct {
	Name     string    `json:"name"`
	Segments []Segment `json:"segments"`
}

// Segment is a bridge with the containers on it, or a network that connects each of its
// containers without a bridge.
type Segment struct {
	Bridge    string   `json:"bridge,omitempty"` // the name of the bridge; empty if there is none
	Kind      string   `json:"kind"`             // the type of the plugin that makes the interfaces: bridge, ptp, …
	Networks  []string `json:"networks"`         // those whose containers are here
	Addresses []string `json:"addresses"`        // the gateways of the containers, which the bridge should have
	Broken    []string `json:"broken,omitempty"` // what is wrong with the bridge itself
	Members   []Member `json:"members"`
}

// Member is an interface of a container.
type Member struct {
	ContainerID string          `json:"containerID"`
	Network     string          `json:"network"`
	IfName      string          `json:"ifName"`
	HostIfName  string          `json:"hostIfName,omitempty"` // the host's end; empty if there is none
	NetNS       string          `json:"netns"`
	Owner       string          `json:"owner"`
	Addresses   []string        `json:"addresses"`
	Ports       []Port          `json:"ports"`
	State       cni.HealthState `json:"state"`
	Words       []string        `json:"words,omitempty"`     // what is broken or unknown, and why
	Elsewhere   []string        `json:"elsewhere,omitempty"` // the container's other interfaces, as "eth1 on dmz0"
}

// Port is a port of the host that leads to a member.
type Port struct {
	HostIP        string `json:"hostIP,omitempty"` // empty: all addresses of the host
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"`
}

// String is the port as docker prints it, with an arrow that every font has.
func (p Port) String() string {
	return fmt.Sprintf("%s → %d/%s", p.outside(), p.ContainerPort, p.Protocol)
}

// outside is the port as seen from outside of the host.
func (p Port) outside() string {
	if p.HostIP == "" {
		return fmt.Sprint(p.HostPort)
	}
	if addr, err := netip.ParseAddr(p.HostIP); err == nil {
		return netip.AddrPortFrom(addr, uint16(p.HostPort)).String()
	}
	return fmt.Sprintf("%s:%d", p.HostIP, p.HostPort)
}

// comparePorts sorts by number, which is what a reader looks for.
func comparePorts(a, b Port) int {
	return cmp.Or(
		cmp.Compare(a.HostPort, b.HostPort),
		strings.Compare(a.Protocol, b.Protocol),
		strings.Compare(a.HostIP, b.HostIP),
		cmp.Compare(a.ContainerPort, b.ContainerPort),
	)
}

// title is the text on the bar of a segment.
func (s Segment) title() string {
	switch {
	case s.Bridge != "":
		return s.Bridge
	case s.Kind != "":
		return s.Kind + ", no bridge"
	}
	return "unknown network"
}

// healthy reports whether nothing is known to be wrong with a member.
func (m Member) healthy() bool { return m.State == cni.StateHealthy }

// broken reports whether something of a member is missing or different, its bridge included.
func (m Member) broken() bool { return m.State == cni.StateBroken }

// count returns the number of containers, and how many of them are broken or not known to
// be healthy. A container with several interfaces counts once.
func (h Host) count() (all, broken, doubtful int) {
	const isHealthy, isDoubtful, isBroken = 1, 2, 3
	worst := map[string]int{}
	for _, s := range h.Segments {
		for _, m := range s.Members {
			state := isDoubtful
			switch {
			case m.broken():
				state = isBroken
			case m.healthy():
				state = isHealthy
			}
			worst[m.ContainerID] = max(worst[m.ContainerID], state)
		}
	}
	for _, state := range worst {
		switch state {
		case isBroken:
			broken++
		case isDoubtful:
			doubtful++
		}
	}
	return len(worst), broken, doubtful
}

// summary is the line below the name of the host.
func (h Host) summary() string {
	all, broken, doubtful := h.count()
	parts := []string{plural(all, "container"), plural(h.networks(), "network")}
	if broken > 0 {
		parts = append(parts, fmt.Sprintf("%d broken", broken))
	}
	if doubtful > 0 {
		parts = append(parts, fmt.Sprintf("%d not known to be healthy", doubtful))
	}
	if broken+doubtful == 0 && all > 0 {
		parts = append(parts, "all healthy")
	}
	return strings.Join(parts, ", ")
}

// networks returns the number of networks.
func (h Host) networks() int {
	names := map[string]bool{}
	for _, s := range h.Segments {
		for _, n := range s.Networks {
			names[n] = true
		}
	}
	return len(names)
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
