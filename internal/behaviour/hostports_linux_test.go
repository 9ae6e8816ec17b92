package behaviour_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// portBackend is a way in which ports are forwarded.
type portBackend struct {
	name        string
	portmap     string // of the plugin's configuration
	executables bool
}

func portBackends() []portBackend {
	return []portBackend{
		{"sets", ``, false},
		{"executables on iptables", `"backend": "iptables", `, true},
		{"executables on nftables", `"backend": "nftables", `, true},
	}
}

// portNetwork returns a network whose containers have an address of each family.
func (h *realHost) portNetwork(name, subnet string, b portBackend) cni.Opt {
	c := testhost.Case{Plugins: []string{
		fmt.Sprintf(`{"type": "bridge", "bridge": "br-%s", "isDefaultGateway": true, "ipMasq": true, %s}`, name,
			testhost.HostLocal(fmt.Sprintf(`[{"subnet": "10.%s.0.0/24"}], [{"subnet": "fd%s::/64"}]`, subnet, subnet))),
		`{"type": "portmap", ` + b.portmap + `"snat": true, "capabilities": {"portMappings": true}}`}}
	return cni.WithConfListBytes(c.Conf(name, "1.0.0", h.Path("ipam")))
}

// forwarding returns a Runtime with networks of that backend.
func (h *realHost) forwarding(b portBackend, opts ...cni.Opt) *cni.Runtime {
	if b.executables {
		return h.Real(opts...)
	}
	return h.Runtime(opts...)
}

func mapping(protocol, hostIP string, port int32) cni.PortMapping {
	return cni.PortMapping{HostPort: port, ContainerPort: 80, Protocol: protocol, HostIP: hostIP}
}

func mapped(all ...cni.PortMapping) cni.NamespaceOpts { return cni.WithCapabilityPortMap(all) }

// TestAHostPortIsOneContainers on every backend: another container is refused before a
// plugin runs, and gets the port when the first is gone.
func TestAHostPortIsOneContainers(t *testing.T) {
	for _, b := range portBackends() {
		t.Run(b.name, func(t *testing.T) {
			h := newRealHost(t)
			var o testhost.Observer
			r := h.forwarding(b, h.portNetwork("one", "81", b), cni.WithObserver(o.Observe))
			c1, c2 := h.Container("c1"), h.Container("c2")
			before := h.Audit()
			held := []cni.PortMapping{mapping("tcp", "", 8080), mapping("udp", "127.0.0.1", 8080), mapping("tcp", "::1", 8081), mapping("tcp", "0.0.0.0", 8082)}
			testhost.MustSetUp(t, r, "c1", c1, mapped(held...))
			attached := h.Audit()
			ran := len(o.Events)
			for _, tt := range []struct {
				wanted cni.PortMapping
				holder string // the address of the holder
			}{
				{mapping("tcp", "", 8080), "invalid IP"},
				{mapping("TCP", "127.0.0.1", 8080), "invalid IP"},
				{mapping("tcp", "::1", 8080), "invalid IP"},
				{mapping("udp", "", 8080), "127.0.0.1"},
				{mapping("udp", "0.0.0.0", 8080), "127.0.0.1"},
				{mapping("udp", "::ffff:127.0.0.1", 8080), "127.0.0.1"},
				{mapping("tcp", "::", 8081), "::1"},
				{mapping("tcp", "", 8082), "0.0.0.0"},
			} {
				_, err := r.Setup(t.Context(), "c2", c2, mapped(mapping("tcp", "", 9000), tt.wanted))
				expect.Is(t, err, cni.ErrPortInUse)
				var e *cni.PortError
				expect.That(t, errors.As(err, &e) && e.ContainerID == "c1" && e.Network == "one" && e.IfName == "eth0" && e.State == cni.Attached && e.HostPort == int(tt.wanted.HostPort) && e.HolderIP.String() == tt.holder && e.Owner != "",
					"%+v: %#v", tt.wanted, e)
			}
			expect.Same(t, "calls of plugins", len(o.Events), ran)
			expect.Same(t, "host", h.Normalize(h.Audit()), h.Normalize(attached))

			others := []cni.PortMapping{mapping("udp", "::1", 8080), mapping("tcp", "", 8083), mapping("tcp", "127.0.0.1", 8081), mapping("tcp", "::", 8082)}
			testhost.MustSetUp(t, r, "c2", c2, mapped(others...))
			expect.NoError(t, r.Check(t.Context(), "c1", c1))
			expect.NoError(t, r.Check(t.Context(), "c2", c2))
			expect.NoError(t, r.Remove(t.Context(), "c2", c2))
			expect.NoError(t, r.Remove(t.Context(), "c1", c1))
			testhost.MustSetUp(t, r, "c2", c2, mapped(held...))
			expect.NoError(t, r.Remove(t.Context(), "c2", c2))
			h.WantClean(before)
		})
	}
}

// listen opens a socket on the host, in this process.
func (h *realHost) listen(protocol, addr string, port int) (closing func()) {
	h.T.Helper()
	h.ProbeIPv6()
	network := protocol + "6"
	ip := netip.MustParseAddr(addr)
	if ip.Is4() {
		network = protocol + "4"
	}
	if addr == "::" {
		network = protocol // both families
		addr = ""
	}
	var c io.Closer
	var err error
	if protocol == "tcp" {
		c, err = net.Listen(network, testhost.HostPort(addr, port))
	} else {
		c, err = net.ListenPacket(network, testhost.HostPort(addr, port))
	}
	expect.NoError(h.T, err)
	return func() { expect.NoError(h.T, c.Close()) }
}

// listenElsewhere is listen in another process.
func (h *realHost) listenElsewhere(protocol, addr string, port int) (end func()) {
	h.T.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), listenEnv+"="+fmt.Sprintf("%s %s %d", protocol, addr, port))
	out := expect.Value(cmd.StdoutPipe())(h.T)
	cmd.Stderr = os.Stderr
	expect.NoError(h.T, cmd.Start()) // in the host's namespace, as the test's thread is
	end = sync.OnceFunc(func() {
		expect.NoError(h.T, cmd.Process.Kill())
		_ = cmd.Wait() // killed
	})
	h.T.Cleanup(end)
	line, err := bufio.NewReader(out).ReadString('\n')
	expect.Must(h.T, err == nil && line == "listening\n", "%q, %v", line, err)
	return end
}

// listenEnv makes the test binary a process that listens until it is killed.
const listenEnv = "EMBEDCNI_TEST_LISTEN"

// listenMain listens as the variable says: "tcp 127.0.0.1 8080".
func listenMain() {
	var protocol, addr string
	var port int
	_, err := fmt.Sscan(os.Getenv(listenEnv), &protocol, &addr, &port)
	ip, perr := netip.ParseAddr(addr)
	if err = errors.Join(err, perr); err == nil {
		err = listenRaw(protocol, ip, port)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("listening")
	select {}
}

// listenRaw opens a socket that stays open. One of :: is of both families, unlike with
// package net where the host's IPv6 is not probed yet.
func listenRaw(protocol string, ip netip.Addr, port int) error {
	typ, family := unix.SOCK_STREAM, unix.AF_INET6
	if protocol == "udp" {
		typ = unix.SOCK_DGRAM
	}
	var to unix.Sockaddr = &unix.SockaddrInet6{Port: port, Addr: ip.As16()}
	if ip.Is4() {
		to, family = &unix.SockaddrInet4{Port: port, Addr: ip.As4()}, unix.AF_INET
	}
	fd, err := unix.Socket(family, typ, 0)
	if err == nil {
		err = unix.Bind(fd, to)
	}
	if err == nil && protocol == "tcp" {
		err = unix.Listen(fd, 1)
	}
	return err
}

// warned renders warnings: "tcp 8080: 127.0.0.1 of NAME".
func warned(res *cni.Result) []string {
	lines := []string{}
	for _, w := range res.PortWarnings {
		lines = append(lines, w.Error())
	}
	return lines
}

// TestFault_F56_APortThatAProcessOfTheHostUses is a warning, and refused if ports are strict.
func TestFault_F56_APortThatAProcessOfTheHostUses(t *testing.T) {
	for _, b := range portBackends() {
		t.Run(b.name, func(t *testing.T) {
			h := newRealHost(t)
			var log testhost.Log
			network := h.portNetwork("one", "81", b)
			r := h.forwarding(b, network, log.Logger())
			strict := h.forwarding(b, network, cni.WithStrictPorts(), cni.WithRetry(cni.Retry{Attempts: 5, Delay: time.Hour}))
			c1 := h.Container("c1")
			before := h.Audit()
			for _, tt := range []struct {
				protocol, addr string // of the socket
				wanted         cni.PortMapping
				conflict       bool
			}{
				{"tcp", "0.0.0.0", mapping("tcp", "", 8080), true},
				{"tcp", "127.0.0.1", mapping("tcp", "127.0.0.1", 8080), true},
				{"tcp", "127.0.0.1", mapping("tcp", "127.0.0.2", 8080), false},
				{"tcp", "127.0.0.1", mapping("udp", "", 8080), false},
				{"tcp", "::1", mapping("tcp", "0.0.0.0", 8080), false},
				{"tcp", "::", mapping("tcp", "127.0.0.1", 8080), true},
				{"udp", "0.0.0.0", mapping("udp", "0.0.0.0", 8080), true},
				{"udp", "::1", mapping("udp", "", 8080), true},
				{"udp", "::1", mapping("udp", "::1", 40000), false}, // ephemeral
				{"tcp", "::1", mapping("tcp", "::1", 40000), true},
			} {
				end := h.listenElsewhere(tt.protocol, tt.addr, int(tt.wanted.HostPort))
				wanted := []string{}
				if tt.conflict {
					at := fmt.Sprintf("%s %d", strings.ToLower(tt.wanted.Protocol), tt.wanted.HostPort)
					if tt.wanted.HostIP != "" {
						at = tt.wanted.Protocol + " " + testhost.HostPort(tt.wanted.HostIP, int(tt.wanted.HostPort))
					}
					wanted = append(wanted, fmt.Sprintf("host port %s is in use by a process of the host", at))
				}
				what := fmt.Sprintf("%s %s and %+v", tt.protocol, tt.addr, tt.wanted)
				_, err := strict.Setup(t.Context(), "c1", c1, mapped(tt.wanted))
				if len(wanted) == 0 {
					expect.NoError(t, err)
					expect.NoError(t, strict.Remove(t.Context(), "c1", c1))
				} else {
					expect.Is(t, err, cni.ErrPortInUse)
					expect.Same(t, what, err.Error(), `set up container "c1": `+wanted[0])
					h.WantClean(before)
				}
				expect.Same(t, what, warned(testhost.MustSetUp(t, r, "c1", c1, mapped(tt.wanted))), wanted)
				expect.NoError(t, r.Check(t.Context(), "c1", c1))
				expect.NoError(t, r.Remove(t.Context(), "c1", c1))
				end()
			}
			expect.Same(t, "logged warnings", len(log.Lines("WARN")), 6)
		})
	}
}

// TestFault_F56_AnAddressThatTheHostDoesNotHave may come to it later: it is a warning,
// unless ports are strict.
func TestFault_F56_AnAddressThatTheHostDoesNotHave(t *testing.T) {
	h := newRealHost(t)
	b := portBackends()[0]
	network := h.portNetwork("one", "81", b)
	c1 := h.Container("c1")
	h.sh("ip address add 192.0.2.1/32 dev lo")
	all := []cni.PortMapping{mapping("tcp", "192.0.2.1", 80), mapping("tcp", "127.0.0.7", 80), mapping("udp", "192.0.2.2", 80),
		mapping("tcp", "::1", 81), mapping("tcp", "2001:db8::1", 81), mapping("sctp", "0.0.0.0", 82), mapping("sctp", "::", 83)}
	wanted := []string{"host port udp 192.0.2.2:80: 192.0.2.2 is not an address of the host",
		"host port tcp [2001:db8::1]:81: 2001:db8::1 is not an address of the host"}
	_, err := h.Runtime(network, cni.WithStrictPorts()).Setup(t.Context(), "c1", c1, mapped(all...))
	expect.Is(t, err, cni.ErrNotHostAddress)
	expect.Same(t, "error", err.Error(), `set up container "c1": `+strings.Join(wanted, "; "))
	r := h.Runtime(network)
	res := testhost.MustSetUp(t, r, "c1", c1, mapped(all...))
	expect.Same(t, "warnings", warned(res), wanted)
	data := expect.Value(json.Marshal(res))(t)
	var again cni.Result
	expect.NoError(t, json.Unmarshal(data, &again))
	expect.Same(t, "warnings in JSON", len(again.PortWarnings), 2)
	expect.Same(t, "address in JSON", again.PortWarnings[0].HostIP, netip.MustParseAddr("192.0.2.2"))
	expect.NoError(t, r.Remove(t.Context(), "c1", c1))
}

// TestAPortReservedByItsCaller: schedulers listen on a port until the container has it.
func TestAPortReservedByItsCaller(t *testing.T) {
	h := newRealHost(t)
	r := h.Runtime(h.portNetwork("one", "81", portBackends()[0]), cni.WithStrictPorts())
	c1 := h.Container("c1")
	defer h.listen("tcp", "0.0.0.0", 8080)()
	defer h.listen("udp", "::1", 8080)()
	res := testhost.MustSetUp(t, r, "c1", c1, mapped(mapping("tcp", "", 8080), mapping("udp", "", 8080)))
	expect.Same(t, "warnings", warned(res), []string{})
	expect.NoError(t, r.Remove(t.Context(), "c1", c1))
}

// TestAContainerOnTwoNetworksWithOnePort conflicts with nobody: the first network
// forwards, the Result says so, and when it is gone the second does.
func TestAContainerOnTwoNetworksWithOnePort(t *testing.T) {
	for _, b := range portBackends() {
		for _, calls := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, %d Setups", b.name, calls), func(t *testing.T) {
				h := newRealHost(t)
				r := h.forwarding(b, h.portNetwork("one", "81", b), h.portNetwork("two", "82", b))
				c1 := h.Container("c1")
				h.Serve(c1, 80)
				before := h.Audit()
				port := mapping("tcp", "", 8080)
				got := map[string][]cni.PortMapping{}
				setUp := func(opts ...cni.NamespaceOpts) {
					res := testhost.MustSetUp(t, r, "c1", c1, append(opts, mapped(port))...)
					for _, n := range res.Networks {
						got[n.Name] = n.Ports
					}
				}
				if calls == 1 {
					setUp()
				} else {
					setUp(cni.WithNetwork("one"))
					setUp(cni.WithNetwork("two"))
				}
				expect.Same(t, "forwarded", got, map[string][]cni.PortMapping{"one": {port}, "two": nil})
				recorded := expect.Value(r.Lookup("c1"))(t)
				for _, n := range recorded.Networks {
					expect.Same(t, "forwarded by the record to "+n.Name, n.Ports, got[n.Name])
				}
				h.WantAnswers([]testhost.Question{{Network: "tcp", To: "127.0.0.1:8080", Want: "10.81.0.1"}})
				expect.NoError(t, r.Check(t.Context(), "c1", c1))

				expect.Is(t, errOf(r.Setup(t.Context(), "c2", h.Container("c2"), cni.WithNetwork("two"), mapped(port))), cni.ErrPortInUse)

				expect.NoError(t, r.Remove(t.Context(), "c1", c1, cni.WithNetwork("one")))
				h.WantAnswers([]testhost.Question{{Network: "tcp", To: "127.0.0.1:8080", Want: "10.82.0.1"}})
				expect.NoError(t, r.Check(t.Context(), "c1", c1, cni.WithNetwork("two")))
				recorded = expect.Value(r.Lookup("c1"))(t)
				expect.Same(t, "forwarded to the second", recorded.Networks[0].Ports, []cni.PortMapping{port})
				expect.NoError(t, r.Remove(t.Context(), "c1", c1))
				h.WantClean(before)
			})
		}
	}
}
