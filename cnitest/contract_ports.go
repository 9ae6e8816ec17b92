package cnitest

import (
	"errors"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
)

func (c *contract) hostPorts() {
	port := func(host int32, protocol, ip string) cni.NamespaceOpts {
		return cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: host, ContainerPort: 80, Protocol: protocol, HostIP: ip}})
	}
	_, result := c.attach("c1", onPods, port(8081, "", ""))
	expect.Same(c, "ports", result.Networks[0].Ports, []cni.PortMapping{{HostPort: 8081, ContainerPort: 80, Protocol: "tcp"}})
	for _, ip := range []string{"", "127.0.0.1"} {
		_, err := c.Setup(c.ctx, "c2", c.NetNS(), onPods, port(8081, "TCP", ip))
		c.is("the port of another container", err, cni.ErrPortInUse)
		var e *cni.PortError
		if !errors.As(err, &e) {
			c.Fatalf("error %v has no *cni.PortError", err)
		}
		if e.ContainerID != "c1" || e.Network != "pods" || e.IfName != "eth0" || e.Owner != contractOwner || e.State != cni.Attached || e.HostPort != 8081 || e.Protocol != "tcp" {
			c.Errorf("error %+v", *e)
		}
	}
	c.wantRecorded("after a conflict", "c1/eth0 pods attached")
	c.attach("c2", onPods, port(8081, "udp", ""))
	c.attach("c3", onTiny, port(8081, "", "")) // no plugin forwards it
	c.detach("c1")
	c.attach("c4", onPods, port(8081, "", ""))
	c.detach("c2", "c3", "c4")
}

func (c *contract) chosenPorts() {
	http := cni.WithPorts(cni.Port{Label: "http", ContainerPort: 80}, cni.Port{Label: "tls", HostPort: 8443, ContainerPort: 443})
	_, result := c.attach("c1", http) // only one of the networks forwards ports
	port, ok := result.Port("http")
	if fixed, _ := result.Port("tls"); !ok || port.HostPort < 20000 || port.HostPort > 29999 || port.ContainerPort != 80 || fixed.HostPort != 8443 {
		c.Errorf("ports %v", result.Requested)
	}
	expect.Same(c, "forwarded ports", []int{len(result.Networks[0].Ports), len(result.Networks[1].Ports), len(result.Requested)}, []int{2, 0, 2})
	again, err := c.Lookup("c1")
	expect.NoError(c, err)
	expect.Same(c, "result of Lookup", c.asText(again), c.asText(result))
	_, other := c.attach("c2", onPods, cni.WithPorts(cni.Port{Label: "http", ContainerPort: 80}))
	if second, _ := other.Port("http"); second.HostPort == port.HostPort || second.HostPort == 0 {
		c.Errorf("both containers have port %v", second)
	}
	_, err = c.Setup(c.ctx, "c3", c.NetNS(), onPods, cni.WithPorts(cni.Port{HostPort: port.HostPort, ContainerPort: 80}))
	c.is("a port that was chosen", err, cni.ErrPortInUse)
	c.detach("c1", "c2")
}

// portRange: Setup chooses ports from a range of two.
func (c *contract) portRange() {
	c.Runtime = c.start(cni.WithPortRange(20100, 20101))
	port := func(label string, host int32, protocols ...string) cni.Port {
		return cni.Port{Label: label, HostPort: host, ContainerPort: 80, Protocols: protocols}
	}
	got := func(id string, ports ...cni.Port) map[string]int32 {
		c.Helper()
		_, result := c.attach(id, onPods, cni.WithPorts(ports...))
		all := map[string]int32{}
		for _, p := range result.Requested {
			all[p.Label] = p.HostPort
		}
		return all
	}
	expect.Same(c, "beside a port of the same call", got("c1", port("fixed", 20100), port("any", 0)), map[string]int32{"fixed": 20100, "any": 20101})
	udp := got("c2", port("any", 0, "udp")) // which nobody has
	_, err := c.Setup(c.ctx, "c3", c.NetNS(), onPods, cni.WithPorts(port("any", 0), port("more", 0)))
	c.is("a range that is used up", err, cni.ErrPortInUse)
	var e *cni.PortRangeError
	if !errors.As(err, &e) {
		c.Fatalf("error %v has no *cni.PortRangeError", err)
	}
	expect.Same(c, "error", c.asText(e), c.asText(cni.PortRangeError{
		First: 20100, Last: 20101, Wanted: 2, Containers: []cni.OwnedPorts{{Owner: contractOwner, Ports: 2}},
	}))
	c.detach("c1")
	both := got("c1", port("first", 0), port("second", 0))
	if both["first"]+both["second"] != 20100+20101 || udp["any"] < 20100 || udp["any"] > 20101 {
		c.Errorf("ports %v, and before %v", both, udp)
	}
	c.wantRecorded("at the end", "c1/eth0 pods attached", "c2/eth0 pods attached")
	c.detach("c1", "c2")
}
