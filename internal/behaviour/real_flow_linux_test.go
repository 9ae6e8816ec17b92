package behaviour_test

import (
	"context"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// addressed is a container with its addresses.
type addressed struct{ path, v4, v6 string }

func (h *realHost) attach(r *cni.Runtime, id string, opts ...cni.NamespaceOpts) addressed {
	h.T.Helper()
	path := h.Container(id)
	result, err := r.Setup(context.Background(), id, path, opts...)
	expect.NoError(h.T, err)
	return addressed{path, result.IPv4().IP().String(), result.IPv6().IP().String()}
}

func (h *realHost) detach(r *cni.Runtime, id string) {
	h.T.Helper()
	if err := r.Remove(context.Background(), id, h.Path("netns", id)); err != nil {
		h.T.Error(err)
	}
}

// run runs a tool on the host.
func (h *realHost) run(name string, args ...string) {
	h.T.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		h.T.Fatalf("%s %v: %v: %s; install iptables and nftables", name, args, err, out)
	}
}

func TestRealTrafficOfBridges(t *testing.T) {
	testhost.WantProcessAsBefore(t)
	for _, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			h := newRealHost(t)
			world := h.Outside()
			c := testhost.Case{Plugins: []string{
				testhost.BridgeConf(`"ipMasq": true, "hairpinMode": true, "ipMasqBackend": "` + backend + `", ` + testhost.HostLocal(testhost.V4Range+","+testhost.V6Range)),
				`{"type": "portmap", "backend": "` + backend + `", "snat": true, "capabilities": {"portMappings": true}}`,
			}}
			r := h.Real(cni.WithLoNetwork, cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
			before := h.Audit()
			a := h.attach(r, "a", cni.WithCapabilityPortMap([]cni.PortMapping{
				{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}, {HostPort: 8080, ContainerPort: 80, Protocol: "udp"},
			}))
			b := h.attach(r, "b")
			for _, path := range []string{a.path, b.path, "", world} {
				h.Serve(path, 80)
			}
			h.WantAnswers(slices.Concat(
				testhost.Both(b.path, testhost.HostPort(a.v4, 80), b.v4), testhost.Both(b.path, testhost.HostPort(a.v6, 80), b.v6),
				testhost.Both(b.path, testhost.HostPort("10.77.0.1", 80), b.v4), testhost.Both(b.path, testhost.HostPort("fd77::1", 80), b.v6),
				testhost.Both("", testhost.HostPort(a.v4, 80), "10.77.0.1"), testhost.Both("", testhost.HostPort(a.v6, 80), "fd77::1"),
				// Masqueraded: the containers' addresses are unknown outside.
				testhost.Both(a.path, testhost.HostPort("192.0.2.2", 80), "192.0.2.1"), testhost.Both(a.path, testhost.HostPort("2001:db8::2", 80), "2001:db8::1"),
				// Forwarded ports, from outside and from the host itself.
				testhost.Both(world, testhost.HostPort("192.0.2.1", 8080), "192.0.2.2"), testhost.Both(world, testhost.HostPort("2001:db8::1", 8080), "2001:db8::2"),
				testhost.Both("", testhost.HostPort("192.0.2.1", 8080), "192.0.2.1"), testhost.Both("", testhost.HostPort("2001:db8::1", 8080), "2001:db8::1"),
			))
			h.detach(r, "b")
			h.detach(r, "a")
			_, err := h.Ask(world, "tcp", testhost.HostPort("192.0.2.1", 8080), testhost.AnswerWait)
			if err == nil {
				t.Error("the host port is still answered after Remove")
			}
			h.WantClean(before)
		})
	}
}

func TestRealTrafficOfPointToPoint(t *testing.T) {
	h := newRealHost(t)
	world := h.Outside()
	c := testhost.Case{Plugins: []string{testhost.PtpConf(testhost.HostLocal(testhost.V4Range+","+testhost.V6Range, "0.0.0.0/0", "::/0"))}}
	r := h.Real(cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
	before := h.Audit()
	a, b := h.attach(r, "a"), h.attach(r, "b")
	for _, path := range []string{a.path, "", world} {
		h.Serve(path, 80)
	}
	h.WantAnswers(slices.Concat(
		testhost.Both(b.path, testhost.HostPort(a.v4, 80), b.v4), testhost.Both(b.path, testhost.HostPort(a.v6, 80), b.v6),
		testhost.Both(b.path, testhost.HostPort("10.77.0.1", 80), b.v4), testhost.Both(b.path, testhost.HostPort("fd77::1", 80), b.v6),
		testhost.Both(a.path, testhost.HostPort("192.0.2.2", 80), "192.0.2.1"), testhost.Both(a.path, testhost.HostPort("2001:db8::2", 80), "2001:db8::1"),
	))
	h.detach(r, "a")
	h.detach(r, "b")
	h.WantClean(before)
}

// TestRealFirewallOpensAClosedHost: if the host forwards nothing by itself,
// the plugin firewall allows a container's connections and their answers, and
// nothing else.
func TestRealFirewallOpensAClosedHost(t *testing.T) {
	h := newRealHost(t)
	world := h.Outside()
	h.run("iptables", "-P", "FORWARD", "DROP")
	h.run("ip6tables", "-P", "FORWARD", "DROP")
	bridge := testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range+","+testhost.V6Range))
	open := testhost.Case{Plugins: []string{bridge, `{"type": "firewall", "backend": "iptables"}`}}
	closed := testhost.Case{Plugins: []string{bridge}}
	r := h.Real(cni.WithConfListBytes(open.Conf("podnet", "1.0.0", h.Path("ipam"))))
	without := h.Real(cni.WithConfListBytes(closed.Conf("podnet", "1.0.0", h.Path("ipam"))))
	before := h.Audit()
	a, b := h.attach(r, "a"), h.attach(without, "b")
	h.Serve(world, 80)
	h.WantAnswers(slices.Concat(
		testhost.Both(a.path, testhost.HostPort("192.0.2.2", 80), "192.0.2.1"), testhost.Both(a.path, testhost.HostPort("2001:db8::2", 80), "2001:db8::1"),
		testhost.Both(b.path, testhost.HostPort("192.0.2.2", 80), ""), testhost.Both(b.path, testhost.HostPort("2001:db8::2", 80), ""),
	))
	h.detach(r, "a")
	h.detach(without, "b")
	h.WantClean(before)
}

func TestRealBandwidthLimits(t *testing.T) {
	h := newRealHost(t)
	const (
		rate  = 8_000_000 // bits per second
		burst = 800_000   // bits
		size  = 600_000   // bytes
	)
	c := testhost.Case{Plugins: []string{testhost.BridgeConf(testhost.HostLocal(testhost.V4Range)), `{"type": "bandwidth", "capabilities": {"bandwidth": true}}`}}
	r := h.Real(cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
	before := h.Audit()
	a := h.attach(r, "a", cni.WithCapabilityBandWidth(cni.BandWidth{
		IngressRate: rate, IngressBurst: burst, EgressRate: rate, EgressBurst: burst}))
	// The burst passes at once. Half of the remaining time leaves room for
	// bytes that the kernel does not count.
	atLeast := time.Duration(float64(size*8-burst) / rate / 2 * float64(time.Second))
	for _, way := range []struct{ name, from, to, address string }{
		{"ingress", "", a.path, testhost.HostPort(a.v4, 90)},
		{"egress", a.path, "", testhost.HostPort("10.77.0.1", 90)},
	} {
		if took := h.transfer(t, way.from, way.to, way.address, size); took < atLeast {
			t.Errorf("%s: %d bytes at %d bit/s took %v, less than %v", way.name, size, rate, took, atLeast)
		}
	}
	h.detach(r, "a")
	h.WantClean(before)
}
