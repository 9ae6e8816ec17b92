package graph

import (
	"fmt"
	"math/rand/v2"

	"github.com/embedcni/cni"
)

// node returns a model with n containers on a bridge of both families, of which one is
// broken, and a few others elsewhere.
func node(n int) Host {
	pods := Segment{Bridge: "pods0", Kind: "bridge", Networks: []string{"pods"}, Addresses: []string{"10.1.0.1/16", "fd00:1::1/64"}}
	for i := range n {
		m := Member{
			ContainerID: fmt.Sprintf("web-%d", i+1), Network: "pods", IfName: "eth0", HostIfName: fmt.Sprintf("veth%08x", 0xc0ffee01+i*77),
			NetNS: fmt.Sprintf("/run/netns/web-%d", i+1), Owner: "embedcni", State: cni.StateHealthy,
			Addresses: []string{fmt.Sprintf("10.1.%d.%d/16", (i+2)/250, (i+2)%250), fmt.Sprintf("fd00:1::%x/64", i+2)},
		}
		if i%4 == 0 {
			m.Ports = []Port{{"", int32(8080 + i), 80, "tcp"}}
		}
		if i == 6 {
			m.State = cni.StateBroken
			m.Words = []string{"bridge port " + m.HostIfName + " is missing", "port tcp 8086 is missing"}
		}
		pods.Members = append(pods.Members, m)
	}
	dmz := Segment{Bridge: "dmz0", Kind: "bridge", Networks: []string{"dmz", "dmz-internal"}, Addresses: []string{"192.168.7.1/24"},
		Broken: []string{"bridge dmz0 is missing", "address 192.168.7.1/24 on dmz0 is missing"},
		Members: []Member{
			{ContainerID: "4f0c1d2e3b4a59687766554433221100ffeeddccbbaa99887766554433221100", Network: "dmz", IfName: "eth1", HostIfName: "veth1",
				NetNS: "/proc/812/ns/net", Owner: "nomad", State: cni.StateBroken, Addresses: []string{"192.168.7.2/24"},
				Ports: []Port{{"127.0.0.1", 53, 53, "udp"}, {"::1", 53, 53, "udp"}}, Elsewhere: []string{"eth0 on pods0"}},
			{ContainerID: "batch", Network: "dmz-internal", IfName: "eth0", State: cni.StateUnknown, Owner: "embedcni", Addresses: []string{"192.168.7.3/24"},
				Words: []string{"container batch: another call for the container is in progress"}},
			{ContainerID: "old", Network: "dmz", IfName: "eth0", State: cni.StateGone, Owner: "embedcni", Addresses: []string{"192.168.7.9/24"},
				Words: []string{"its network namespace is gone"}},
		}}
	direct := Segment{Kind: "ptp", Networks: []string{"edge"}, Members: []Member{
		{ContainerID: "router", Network: "edge", IfName: "eth0", HostIfName: "veth9", State: cni.StateHealthy, Owner: "embedcni",
			Addresses: []string{"172.16.0.2/24", "2001:db8:1234:5678:9abc:def0:1234:5678/64"}}}}
	return Host{Name: "node-1", Segments: []Segment{dmz, direct, pods, {Bridge: "spare0", Kind: "bridge", Networks: []string{"spare"}}}}
}

// random returns any model.
func random(r *rand.Rand) Host {
	text := func(most int) string {
		letters := []rune("abcdefgh-0123456789.<&>\"'é網 W")
		s := make([]rune, 1+r.IntN(most))
		for i := range s {
			s[i] = letters[r.IntN(len(letters))]
		}
		return string(s)
	}
	texts := func(most, long int) (all []string) {
		for range r.IntN(most + 1) {
			all = append(all, text(long))
		}
		return all
	}
	states := []cni.HealthState{cni.StateHealthy, cni.StateBroken, cni.StateUnknown, cni.StateGone, cni.StateElsewhere}
	h := Host{Name: text(90)}
	for range r.IntN(6) {
		s := Segment{Kind: text(12), Networks: texts(4, 180), Addresses: texts(3, 43), Broken: texts(3, 300)}
		if r.IntN(3) > 0 {
			s.Bridge = text(15)
		}
		for range r.IntN(1 + r.IntN(90)) {
			m := Member{
				ContainerID: text(70), Network: text(180), IfName: text(15), HostIfName: text(15), NetNS: text(50), Owner: text(9),
				Addresses: texts(4, 43), State: states[r.IntN(len(states))], Words: texts(5, 200), Elsewhere: texts(2, 40),
			}
			for range r.IntN(5) {
				m.Ports = append(m.Ports, Port{text(40), r.Int32N(65536), r.Int32N(65536), "tcp"})
			}
			s.Members = append(s.Members, m)
		}
		h.Segments = append(h.Segments, s)
	}
	return h
}
