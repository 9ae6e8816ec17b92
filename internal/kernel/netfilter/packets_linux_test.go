package netfilter

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// The machines of the packet tests: two containers on a bridge of the host, and
// a client beyond the host that has no route to the containers.
const (
	container4, container6 = "10.1.0.2", "fd00:1::2"
	bridge4, bridge6       = "10.1.0.1", "fd00:1::1"
	outside4, outside6     = "192.0.2.1", "2001:db8::1" // the host's, towards the client
	client4, client6       = "192.0.2.2", "2001:db8::2"
)

type topology struct {
	*host
	c1, c2, client *netns.Handle
}

func newTopology(t *testing.T) *topology {
	t.Helper()
	h := newHost(t, "nft")
	n := &topology{host: h, c1: h.newNetNS("c1"), c2: h.newNetNS("c2"), client: h.newNetNS("client")}
	in := func(name string) string { return "nsenter --net=" + filepath.Join(h.dir, "netns", name) }
	h.sh(`echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
ip link add br1 type bridge
ip addr add ` + bridge4 + `/24 dev br1
ip addr add ` + bridge6 + `/64 dev br1 nodad
ip link set br1 up
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
echo 1 >/proc/sys/net/ipv4/conf/br1/route_localnet`)
	link := func(name, hostSide, more string, addrs ...string) {
		pin := filepath.Join(h.dir, "netns", name)
		h.sh("ip link add " + hostSide + " type veth peer name eth0\nip link set eth0 netns " + pin + "\nip link set " + hostSide + " up " + more)
		for _, a := range addrs {
			nodad := ""
			if strings.Contains(a, ":") {
				nodad = " nodad"
			}
			h.sh(in(name) + " ip addr add " + a + " dev eth0" + nodad)
		}
		h.sh(in(name) + " ip link set lo up\n" + in(name) + " ip link set eth0 up")
	}
	link("c1", "veth1", "master br1", container4+"/24", container6+"/64")
	// Otherwise the bridge sends nothing back through the port that it came
	// from. This is bridge's hairpinMode.
	h.sh("bridge link set dev veth1 hairpin on")
	link("c2", "veth2", "master br1", "10.1.0.3/24", "fd00:1::3/64")
	link("client", "veth3", "", client4+"/24", client6+"/64")
	for _, c := range []string{"c1", "c2"} {
		h.sh(in(c) + " ip route add default via " + bridge4 + "\n" + in(c) + " ip -6 route add default via " + bridge6)
	}
	h.sh("ip addr add " + outside4 + "/24 dev veth3\nip addr add " + outside6 + "/64 dev veth3 nodad")
	return n
}

// serve answers on the port, over TCP and UDP, with the client's visible
// address. It closes its sockets when the test ends.
func (n *topology) serve(ns *netns.Handle, port int) {
	n.t.Helper()
	expect.NoError(n.t, ns.Do(func() error {
		l, err := net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
		if err != nil {
			return err
		}
		n.t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, seen(c.RemoteAddr()))
				_ = c.Close()
			}
		}()
		u, err := net.ListenPacket("udp", fmt.Sprintf("[::]:%d", port))
		if err != nil {
			return err
		}
		n.t.Cleanup(func() { _ = u.Close() })
		go func() {
			b := make([]byte, 100)
			for {
				_, from, err := u.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = u.WriteTo([]byte(seen(from)), from)
			}
		}()
		return nil
	}))
}

func seen(a net.Addr) string {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return err.Error()
	}
	return ap.Addr().Unmap().WithZone("").String()
}

// ask returns the client's address as the other side sees it, if it answers in time.
func (n *topology) ask(from *netns.Handle, network, addr string, port int, wait time.Duration) (string, error) {
	var conn net.Conn
	err := from.Do(func() (err error) {
		conn, err = net.DialTimeout(network, net.JoinHostPort(addr, fmt.Sprint(port)), wait)
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return "", err
	}
	if network == "udp" {
		if _, err := io.WriteString(conn, "who am I"); err != nil {
			return "", err
		}
	}
	b := make([]byte, 100)
	read, err := conn.Read(b)
	return string(b[:read]), err
}

// settle waits until each machine reaches the next without any rules: the
// kernel takes a while for IPv6 addresses and the bridge's ports.
func (n *topology) settle() {
	n.t.Helper()
	deadline := time.Now().Add(expect.Patience)
	for _, p := range []packet{
		{"client", n.client, outside6, 7000, client6}, {"container", n.c1, bridge6, 7000, container6},
		{"neighbour", n.c2, bridge6, 7000, "fd00:1::3"}, {"host", n.ns, container6, 80, bridge6}, {"host", n.ns, client6, 9000, outside6},
	} {
		for {
			got, err := n.ask(p.from, "tcp", p.to, p.port, time.Second)
			if got == p.want {
				break
			}
			expect.Must(n.t, !time.Now().After(deadline), "%s to %s: %q, %v", p.name, p.to, got, err)
		}
	}
}

type packet struct {
	name string
	from *netns.Handle
	to   string
	port int
	want string // visible address; empty: no answer
}

// expect sends them over TCP and UDP.
func (n *topology) expect(packets []packet) {
	n.t.Helper()
	for _, p := range packets {
		for _, network := range []string{"tcp", "udp"} {
			wait := 10 * time.Second
			if p.want == "" { // nothing answers a packet that is dropped
				wait = time.Second
			}
			got, err := n.ask(p.from, network, p.to, p.port, wait)
			expect.That(n.t, got == p.want && (err == nil) == (p.want != ""),
				"%s, %s to %s port %d: seen as %q (%v), want %q", p.name, network, p.to, p.port, got, err, p.want)
		}
	}
}

// both is the port for TCP and UDP.
func both(port uint16, hostIP string) []HostPort {
	var ports []HostPort
	for _, protocol := range []string{"tcp", "udp"} {
		p := HostPort{HostPort: port, ContainerPort: 80, Protocol: protocol}
		if hostIP != "" {
			p.HostIP = netip.MustParseAddr(hostIP)
		}
		ports = append(ports, p)
	}
	return ports
}

func (n *topology) packets() []packet {
	return []packet{
		{"the client to the host's port", n.client, outside4, 8080, client4},
		{"the client to the host's port", n.client, outside6, 8080, client6},
		{"the client to a port of one address", n.client, outside4, 8081, client4},
		{"the client to a port of one address", n.client, outside6, 8082, client6},
		{"the client to a port of another address", n.client, outside4, 8083, ""},
		{"the client to a port that is not forwarded", n.client, outside4, 8084, ""},
		{"the host to itself", n.ns, outside4, 8080, outside4},
		{"the host to itself", n.ns, outside6, 8080, outside6},
		{"the host to its loopback", n.ns, "127.0.0.1", 8080, bridge4},
		{"the host to a port of its loopback", n.ns, "127.0.0.1", 8083, bridge4},
		{"the container to itself", n.c1, outside4, 8080, bridge4},
		{"the container to itself", n.c1, outside6, 8080, bridge6},
		{"the container to the client", n.c1, client4, 9000, outside4},
		{"the container to the client", n.c1, client6, 9000, outside6},
		{"the container to its neighbour", n.c1, "10.1.0.3", 9000, container4},
		{"the container to its neighbour", n.c1, "fd00:1::3", 9000, container6},
		{"the neighbour to the host's port", n.c2, outside4, 8080, bridge4},
		{"the neighbour to the host's port", n.c2, outside6, 8080, bridge6},
	}
}

func TestPackets(t *testing.T) {
	n := newTopology(t)
	n.serve(n.c1, 80)
	n.serve(n.c2, 9000)
	n.serve(n.client, 9000)
	n.serve(n.ns, 7000)
	n.settle()
	o := Owner{Network: "podnet", ContainerID: "c1", IfName: "eth0"}
	v4, v6 := prefix(container4+"/24"), prefix(container6+"/64")
	r := testRules{
		Masquerade: []testMasquerade{{Owner: o, Addresses: []netip.Prefix{v4, v6}}},
		HostPorts:  []testPorts{{Owner: o, V4: v4, V6: v6, SNAT: true}},
	}
	for port, hostIP := range map[uint16]string{8080: "", 8081: outside4, 8082: outside6, 8083: "127.0.0.1"} {
		r.HostPorts[0].Ports = append(r.HostPorts[0].Ports, both(port, hostIP)...)
	}
	expect.NoError(t, n.fw.Add(t.Context(), r.rules()...))
	n.expect(n.packets())
	expect.NoError(t, n.fw.Remove(t.Context(), r.rules()...))
	n.expect([]packet{
		{"afterwards", n.client, outside4, 8080, ""},
		{"afterwards", n.c1, client4, 9000, ""},
	})
	// With MasqAll, everything to a forwarded port is masqueraded as
	// the host.
	r.HostPorts[0].MasqAll = true
	expect.NoError(t, n.fw.Add(t.Context(), r.rules()...))
	n.expect([]packet{
		{"masqAll", n.client, outside4, 8080, bridge4},
		{"masqAll", n.client, outside6, 8080, bridge6},
	})
}

// TestPacketsBetweenBridges: packets from one bridge with a policy do not reach
// another, or the same one if that is isolated. The client's link stands for a
// second bridge.
func TestPacketsBetweenBridges(t *testing.T) {
	n := newTopology(t)
	n.serve(n.c1, 80)
	n.serve(n.c2, 9000)
	n.serve(n.client, 9000)
	n.serve(n.ns, 7000)
	n.settle()
	o := Owner{Network: "podnet", ContainerID: "c1", IfName: "eth0"}
	v4, v6 := prefix(container4+"/24"), prefix(container6+"/64")
	n.mustWrite(testRules{
		Masquerade: []testMasquerade{{Owner: o, Addresses: []netip.Prefix{v4, v6}}},
		HostPorts:  []testPorts{{Owner: o, V4: v4, V6: v6, SNAT: true, Ports: both(8080, "")}},
	})
	policy := func(policy, bridge string) {
		n.mustWrite(testRules{Forward: []testForward{{Owner: o, Ingress: policy, Bridge: bridge}}})
	}
	fromHost := packet{"the host", n.ns, outside4, 8080, outside4}
	open := []packet{fromHost,
		{"the client", n.client, outside4, 8080, client4}, {"the client", n.client, outside6, 8080, client6},
		{"the container to itself", n.c1, outside4, 8080, bridge4}, {"the container to itself", n.c1, outside6, 8080, bridge6}}
	policy("open", "")
	n.expect(open)
	policy("same-bridge", "br1")
	n.expect(open) // the other side has no policy
	policy("same-bridge", "veth3")
	n.expect([]packet{fromHost, open[3], open[4],
		{"from another bridge", n.client, outside4, 8080, ""}, {"from another bridge", n.client, outside6, 8080, ""},
		{"to another bridge", n.c1, client4, 9000, ""}})
	policy("isolated", "br1")
	n.expect([]packet{fromHost,
		{"within an isolated bridge", n.c1, outside4, 8080, ""}, {"within an isolated bridge", n.c1, outside6, 8080, ""}})
}

// TestFramesWithAnotherAddress do not leave a container whose MAC address is checked, and
// its neighbour's do.
func TestFramesWithAnotherAddress(t *testing.T) {
	n := newTopology(t)
	n.serve(n.ns, 7000)
	n.serve(n.c1, 80)
	n.serve(n.c2, 9000)
	n.serve(n.client, 9000)
	n.settle()
	in := "nsenter --net=" + filepath.Join(n.dir, "netns", "c1")
	var own net.HardwareAddr
	expect.NoError(t, n.c1.Do(func() error {
		i, err := net.InterfaceByName("eth0")
		if err == nil {
			own = i.HardwareAddr
		}
		return err
	}))
	check := testSpoof{Owner: Owner{Network: "podnet", ContainerID: "c1", IfName: "eth0"}, Port: "veth1", MAC: own}
	r := testRules{Spoof: []testSpoof{check}}
	expect.NoError(t, n.fw.Add(t.Context(), r.rules()...))
	reaches := []packet{{"the container", n.c1, bridge4, 7000, container4}, {"the neighbour", n.c2, bridge4, 7000, "10.1.0.3"}}
	n.expect(reaches)
	change := func(a net.HardwareAddr) {
		n.sh(in + " ip link set eth0 address " + a.String() + "; " + in + " ip route replace default via " + bridge4 + "; ip neigh flush dev br1")
	}
	change(net.HardwareAddr{2, 0, 0, 0, 0, 9})
	n.expect([]packet{{"another address", n.c1, bridge4, 7000, ""}, reaches[1]})
	expect.NoError(t, n.fw.Remove(t.Context(), testRules{Spoof: []testSpoof{{Owner: check.Owner}}}.rules()...))
	n.expect(reaches)
}
