package container

import (
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/internal/store/ports"
	"github.com/embedcni/cni/netns"
)

// TestMain runs the tests in namespaces of their own.
func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }

// host returns a namespace whose loopback interface is up.
func host(t *testing.T) *Host {
	t.Helper()
	ns := nettest.New(t)
	nettest.SetUp(t, ns, "lo")
	return &Host{Handle: ns}
}

// listen opens a socket in a namespace. A mode has "listen", "reuse" or "v6only".
func listen(t *testing.T, ns *netns.Handle, protocol, addr string, port int, modes ...string) (fd int) {
	t.Helper()
	typ, proto := unix.SOCK_STREAM, unix.IPPROTO_TCP
	switch protocol {
	case "udp":
		typ, proto = unix.SOCK_DGRAM, unix.IPPROTO_UDP
	case "sctp":
		proto = unix.IPPROTO_SCTP
	}
	ip := netip.MustParseAddr(addr)
	var to unix.Sockaddr = &unix.SockaddrInet6{Port: port, Addr: ip.As16()}
	family := unix.AF_INET6
	if ip.Is4() {
		to, family = &unix.SockaddrInet4{Port: port, Addr: ip.As4()}, unix.AF_INET
	}
	expect.NoError(t, ns.Do(func() (err error) {
		if fd, err = unix.Socket(family, typ|unix.SOCK_CLOEXEC, proto); err != nil {
			return err
		}
		t.Cleanup(func() { expect.NoError(t, unix.Close(fd)) })
		if slices.Contains(modes, "reuse") {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
				return err
			}
		}
		if family == unix.AF_INET6 {
			only := 0
			if slices.Contains(modes, "v6only") {
				only = 1
			}
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only); err != nil {
				return err
			}
		}
		if err := unix.Bind(fd, to); err != nil || !slices.Contains(modes, "listen") {
			return err
		}
		return unix.Listen(fd, 1)
	}))
	return fd
}

func bound80(t *testing.T, h *Host, protocol, addr string) bool {
	t.Helper()
	c := ports.Claim{Protocol: protocol, Port: 80}
	if addr != "" {
		c.Addr = netip.MustParseAddr(addr)
	}
	return len(expect.Value(h.Bound([]ports.Claim{c}, slog.New(slog.DiscardHandler)))(t)) > 0
}

// TestBound: a socket has the ports at its address, for each protocol.
func TestBound(t *testing.T) {
	claims := []string{"", "0.0.0.0", "::", "127.0.0.1", "127.0.0.2", "::1"}
	for _, protocol := range ports.Protocols() {
		for _, tt := range []struct {
			addr  string // of the socket
			modes []string
			want  []string // the claims that it is in the way of
		}{
			{"0.0.0.0", nil, []string{"", "0.0.0.0", "127.0.0.1", "127.0.0.2"}},
			{"127.0.0.1", nil, []string{"", "0.0.0.0", "127.0.0.1"}},
			{"127.0.0.1", []string{"reuse"}, []string{"", "0.0.0.0", "127.0.0.1"}},
			{"::", nil, claims},
			{"::", []string{"v6only"}, []string{"", "::", "::1"}},
			{"::1", nil, []string{"", "::", "::1"}},
			{"::ffff:127.0.0.1", nil, []string{"", "0.0.0.0", "127.0.0.1"}},
		} {
			h := host(t)
			if protocol == "sctp" && !hasSCTP(t, h) {
				expect.Same(t, "a protocol that the kernel lacks", bound80(t, h, protocol, tt.addr), false)
				continue
			}
			modes := tt.modes
			if protocol != "udp" {
				modes = append(slices.Clone(modes), "listen")
			}
			listen(t, h.Handle, protocol, tt.addr, 80, modes...)
			var taken []string
			for _, addr := range claims {
				if bound80(t, h, protocol, addr) {
					taken = append(taken, addr)
				}
			}
			expect.Same(t, protocol+" at "+tt.addr, taken, tt.want)
		}
	}
}

// hasSCTP reports whether the kernel has the protocol.
func hasSCTP(t *testing.T, h *Host) (yes bool) {
	t.Helper()
	expect.NoError(t, h.Do(func() error {
		_, err := os.Stat("/proc/thread-self/net/sctp")
		yes = err == nil
		return nil
	}))
	if !yes {
		t.Log("the kernel has no SCTP")
	}
	return yes
}

// TestBoundLeavesNothing, and sees only its own namespace, and nothing that does not
// listen or at an address that is not there.
func TestBoundLeavesNothing(t *testing.T) {
	h, other := host(t), host(t)
	listen(t, other.Handle, "tcp", "0.0.0.0", 80, "listen")
	listen(t, h.Handle, "tcp", "127.0.0.1", 80, "reuse") // does not listen
	for range 2 {
		for _, addr := range []string{"", "127.0.0.1", "192.0.2.1", "2001:db8::1"} {
			for _, protocol := range ports.Protocols() {
				expect.That(t, !bound80(t, h, protocol, addr), "%s at %q is in use", protocol, addr)
			}
		}
	}
}

// TestBoundByOthers leaves out this process's sockets, and UDP in the ephemeral range.
func TestBoundByOthers(t *testing.T) {
	h := host(t)
	listen(t, h.Handle, "tcp", "127.0.0.1", 80, "listen")
	listen(t, h.Handle, "udp", "::", 81)
	theirs := listen(t, h.Handle, "tcp", "0.0.0.0", 82, "listen")
	ephemeral := listen(t, h.Handle, "udp", "127.0.0.1", 40000)
	child := exec.Command("sleep", "60")
	for _, fd := range []int{theirs, ephemeral} {
		child.ExtraFiles = append(child.ExtraFiles, os.NewFile(uintptr(expect.Value(unix.Dup(fd))(t)), "socket"))
	}
	expect.NoError(t, child.Start())
	defer func() {
		expect.NoError(t, child.Process.Kill())
		_ = child.Wait() // killed
	}()
	for i, fd := range []int{theirs, ephemeral} { // from here on only the child has them
		expect.NoError(t, child.ExtraFiles[i].Close())
		null := expect.Value(os.Open(os.DevNull))(t)
		expect.NoError(t, unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC))
		expect.NoError(t, null.Close())
	}
	claims := []ports.Claim{
		{Protocol: "tcp", Port: 80}, {Protocol: "udp", Port: 81, Addr: netip.MustParseAddr("127.0.0.1")}, {Protocol: "tcp", Port: 82},
		{Protocol: "udp", Port: 40000}, {Protocol: "tcp", Port: 83},
	}
	log := slog.New(slog.DiscardHandler)
	expect.Same(t, "by anybody", expect.Value(h.Bound(claims, log))(t), claims[:4])
	expect.Same(t, "by others", expect.Value(h.BoundByOthers(claims, log))(t), claims[2:3])
}

func TestLocalPortsAreThoseOfTheNamespace(t *testing.T) {
	h := host(t)
	expect.Same(t, "reserved in a new namespace", len(expect.Value(h.LocalPorts())(t).Reserved), 0)
	nettest.Shell(t, h.Handle, "echo 40000 41000 > /proc/sys/net/ipv4/ip_local_port_range; echo 8080,9000-9002 > /proc/sys/net/ipv4/ip_local_reserved_ports")
	local := expect.Value(h.LocalPorts())(t)
	expect.Same(t, "local ports", local, ports.Local{Ephemeral: ports.Row{First: 40000, Last: 41000}, Reserved: []ports.Row{{First: 8080, Last: 8080}, {First: 9000, Last: 9002}}})
	for port, want := range map[uint16][2]bool{8079: {}, 8080: {false, true}, 9001: {false, true}, 9003: {}, 40000: {true, false}, 41001: {}} {
		expect.Same(t, "ephemeral and reserved", [2]bool{local.IsEphemeral(port), local.IsReserved(port)}, want)
	}
}
