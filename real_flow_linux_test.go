package cni_test

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/embedcni/cni"
)

// addressed is a container with its addresses.
type addressed struct{ path, v4, v6 string }

func (h *realHost) attach(r *cni.Runtime, id string, opts ...cni.NamespaceOpts) addressed {
	h.t.Helper()
	path := h.container(id)
	result, err := r.Setup(context.Background(), id, path, opts...)
	if err != nil {
		h.t.Fatal(err)
	}
	return addressed{path, result.IPv4().IP().String(), result.IPv6().IP().String()}
}

func (h *realHost) detach(r *cni.Runtime, id string) {
	h.t.Helper()
	if err := r.Remove(context.Background(), id, h.path("netns", id)); err != nil {
		h.t.Error(err)
	}
}

// run runs a tool on the host.
func (h *realHost) run(name string, args ...string) {
	h.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		h.t.Fatalf("%s %v: %v: %s; install iptables and nftables", name, args, err, out)
	}
}

func port(host string, port int) string { return net.JoinHostPort(host, fmt.Sprint(port)) }

func TestRealTrafficOfBridges(t *testing.T) {
	wantProcessAsBefore(t)
	for _, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			h := newRealHost(t)
			world := h.outside()
			c := realCase{plugins: []string{
				bridgeConf(`"ipMasq": true, "hairpinMode": true, "ipMasqBackend": "` + backend + `", ` + hostLocal(v4Range+","+v6Range)),
				`{"type": "portmap", "backend": "` + backend + `", "snat": true, "capabilities": {"portMappings": true}}`,
			}}
			r := h.real(cni.WithLoNetwork, cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam"))))
			before := h.audit()
			a := h.attach(r, "a", cni.WithCapabilityPortMap([]cni.PortMapping{
				{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}, {HostPort: 8080, ContainerPort: 80, Protocol: "udp"},
			}))
			b := h.attach(r, "b")
			for _, path := range []string{a.path, b.path, "", world} {
				h.serve(path, 80)
			}
			h.wantAnswers(slices.Concat(
				both(b.path, port(a.v4, 80), b.v4), both(b.path, port(a.v6, 80), b.v6),
				both(b.path, port("10.77.0.1", 80), b.v4), both(b.path, port("fd77::1", 80), b.v6),
				both("", port(a.v4, 80), "10.77.0.1"), both("", port(a.v6, 80), "fd77::1"),
				// Masqueraded: outside nobody knows the containers' addresses.
				both(a.path, port("192.0.2.2", 80), "192.0.2.1"), both(a.path, port("2001:db8::2", 80), "2001:db8::1"),
				// Forwarded ports, from outside and from the host itself.
				both(world, port("192.0.2.1", 8080), "192.0.2.2"), both(world, port("2001:db8::1", 8080), "2001:db8::2"),
				both("", port("192.0.2.1", 8080), "192.0.2.1"), both("", port("2001:db8::1", 8080), "2001:db8::1"),
			))
			h.detach(r, "b")
			h.detach(r, "a")
			_, err := h.ask(world, "tcp", port("192.0.2.1", 8080), answerWait)
			if err == nil {
				t.Error("the host port is still answered after Remove")
			}
			h.wantClean(before)
		})
	}
}

func TestRealTrafficOfPointToPoint(t *testing.T) {
	h := newRealHost(t)
	world := h.outside()
	c := realCase{plugins: []string{ptpConf(hostLocal(v4Range+","+v6Range, "0.0.0.0/0", "::/0"))}}
	r := h.real(cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam"))))
	before := h.audit()
	a, b := h.attach(r, "a"), h.attach(r, "b")
	for _, path := range []string{a.path, "", world} {
		h.serve(path, 80)
	}
	h.wantAnswers(slices.Concat(
		both(b.path, port(a.v4, 80), b.v4), both(b.path, port(a.v6, 80), b.v6),
		both(b.path, port("10.77.0.1", 80), b.v4), both(b.path, port("fd77::1", 80), b.v6),
		both(a.path, port("192.0.2.2", 80), "192.0.2.1"), both(a.path, port("2001:db8::2", 80), "2001:db8::1"),
	))
	h.detach(r, "a")
	h.detach(r, "b")
	h.wantClean(before)
}

// Where the host forwards nothing by itself, firewall lets a container's
// connections out and their answers in, and nothing else.
func TestRealFirewallOpensWhatIsClosed(t *testing.T) {
	h := newRealHost(t)
	world := h.outside()
	h.run("iptables", "-P", "FORWARD", "DROP")
	h.run("ip6tables", "-P", "FORWARD", "DROP")
	bridge := bridgeConf(`"ipMasq": true, ` + hostLocal(v4Range+","+v6Range))
	open := realCase{plugins: []string{bridge, `{"type": "firewall", "backend": "iptables"}`}}
	closed := realCase{plugins: []string{bridge}}
	r := h.real(cni.WithConfListBytes(open.conf("podnet", "1.0.0", h.path("ipam"))))
	without := h.real(cni.WithConfListBytes(closed.conf("podnet", "1.0.0", h.path("ipam"))))
	before := h.audit()
	a, b := h.attach(r, "a"), h.attach(without, "b")
	h.serve(world, 80)
	h.wantAnswers(slices.Concat(
		both(a.path, port("192.0.2.2", 80), "192.0.2.1"), both(a.path, port("2001:db8::2", 80), "2001:db8::1"),
		both(b.path, port("192.0.2.2", 80), ""), both(b.path, port("2001:db8::2", 80), ""),
	))
	h.detach(r, "a")
	h.detach(without, "b")
	h.wantClean(before)
}

func TestRealBandwidthLimits(t *testing.T) {
	h := newRealHost(t)
	const (
		rate  = 8_000_000 // bits per second
		burst = 800_000   // bits
		size  = 600_000   // bytes
	)
	c := realCase{plugins: []string{bridgeConf(hostLocal(v4Range)), `{"type": "bandwidth", "capabilities": {"bandwidth": true}}`}}
	r := h.real(cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam"))))
	before := h.audit()
	a := h.attach(r, "a", cni.WithCapabilityBandWidth(cni.BandWidth{
		IngressRate: rate, IngressBurst: burst, EgressRate: rate, EgressBurst: burst}))
	// What the burst lets pass at once costs no time. Half of the rest is
	// loose enough for what the kernel does not count.
	atLeast := time.Duration(float64(size*8-burst) / rate / 2 * float64(time.Second))
	for _, way := range []struct{ name, from, to, address string }{
		{"ingress", "", a.path, port(a.v4, 90)},
		{"egress", a.path, "", port("10.77.0.1", 90)},
	} {
		if took := h.transfer(t, way.from, way.to, way.address, size); took < atLeast {
			t.Errorf("%s: %d bytes at %d bit/s took %v, less than %v", way.name, size, rate, took, atLeast)
		}
	}
	h.detach(r, "a")
	h.wantClean(before)
}
