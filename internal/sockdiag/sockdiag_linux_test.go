package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/netns"
)

// TestMain runs the tests in their own namespaces.
func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }

// hostNS returns a namespace whose loopback interface is up.
func hostNS(t testing.TB) *netns.Handle {
	t.Helper()
	ns := nettest.New(t)
	nettest.SetUp(t, ns, "lo")
	return ns
}

// bind opens a socket in a namespace. A mode has "listen", "connect" or "v6only".
func bind(t testing.TB, ns *netns.Handle, protocol, addr string, port int, modes ...string) (fd int) {
	t.Helper()
	typ := unix.SOCK_STREAM
	if protocol == "udp" {
		typ = unix.SOCK_DGRAM
	}
	ip := netip.MustParseAddr(addr)
	var to unix.Sockaddr = &unix.SockaddrInet6{Port: port, Addr: ip.As16()}
	family := unix.AF_INET6
	if ip.Is4() {
		to, family = &unix.SockaddrInet4{Port: port, Addr: ip.As4()}, unix.AF_INET
	}
	expect.NoError(t, ns.Do(func() (err error) {
		if fd, err = unix.Socket(family, typ|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
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
		err = unix.Bind(fd, to)
		if err == nil && slices.Contains(modes, "listen") {
			err = unix.Listen(fd, 1)
		}
		if err == nil && slices.Contains(modes, "connect") {
			err = unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}})
		}
		return err
	}))
	t.Cleanup(func() { expect.NoError(t, unix.Close(fd)) })
	return fd
}

func rendered(all []Socket) []string {
	lines := []string{}
	for _, s := range all {
		lines = append(lines, s.Claim.String())
	}
	slices.Sort(lines)
	return lines
}

func boundIn(t *testing.T, ns *netns.Handle, protocol string) []Socket {
	t.Helper()
	all, err := Bound(ns, protocol, 0, 65535)
	expect.NoError(t, err)
	return all
}

func TestBoundListsSocketsThatWaitForAnyPeer(t *testing.T) {
	ns, other := hostNS(t), hostNS(t)
	bind(t, ns, "tcp", "0.0.0.0", 80, "listen")
	bind(t, ns, "tcp", "127.0.0.1", 81, "listen")
	bind(t, ns, "tcp", "::", 82, "listen")
	bind(t, ns, "tcp", "::", 83, "listen", "v6only")
	bind(t, ns, "tcp", "::1", 84, "listen")
	bind(t, ns, "tcp", "::ffff:127.0.0.1", 85, "listen")
	bind(t, ns, "tcp", "127.0.0.1", 86) // does not listen
	bind(t, ns, "udp", "0.0.0.0", 53)
	bind(t, ns, "udp", "::", 54)
	bind(t, ns, "udp", "::1", 55, "v6only")
	bind(t, ns, "udp", "127.0.0.1", 56, "connect")
	bind(t, other, "tcp", "0.0.0.0", 90, "listen")
	expect.Same(t, "tcp", rendered(boundIn(t, ns, "tcp")), []string{"tcp 0.0.0.0:80", "tcp 127.0.0.1:81", "tcp 127.0.0.1:85", "tcp 82", "tcp [::1]:84", "tcp [::]:83"})
	expect.Same(t, "udp", rendered(boundIn(t, ns, "udp")), []string{"udp 0.0.0.0:53", "udp 54", "udp [::1]:55"})
	expect.Same(t, "another namespace", rendered(boundIn(t, other, "tcp")), []string{"tcp 0.0.0.0:90"})
}

// TestBoundListsThousands, which no single answer holds.
func TestBoundListsThousands(t *testing.T) {
	ns := hostNS(t)
	for port := range 1_500 {
		bind(t, ns, "tcp", "127.0.0.1", 2_000+port, "listen")
	}
	all := boundIn(t, ns, "tcp")
	slices.SortFunc(all, func(a, b Socket) int { return int(a.Port) - int(b.Port) })
	if len(all) != 1_500 || all[0].Port != 2_000 || all[1_499].Port != 3_499 {
		t.Errorf("%d sockets", len(all))
	}
}

// TestTheKernelListsOnlyTheWantedPorts, with the borders.
func TestTheKernelListsOnlyTheWantedPorts(t *testing.T) {
	ns := hostNS(t)
	for _, port := range []int{1, 79, 80, 81, 90, 65535} {
		bind(t, ns, "tcp", "127.0.0.1", port, "listen")
		bind(t, ns, "tcp", "::1", port, "listen")
		bind(t, ns, "udp", "::", port)
	}
	for _, protocol := range []string{"tcp", "udp"} {
		for _, tt := range []struct{ first, last, want uint16 }{
			{80, 80, 1}, {80, 89, 2}, {80, 90, 3}, {0, 65535, 6}, {82, 89, 0}, {65535, 65535, 1}, {0, 1, 1}, {90, 80, 0},
		} {
			all, err := Bound(ns, protocol, tt.first, tt.last)
			expect.NoError(t, err)
			found := map[uint16]bool{}
			for _, s := range all {
				found[s.Port] = true
			}
			expect.Same(t, fmt.Sprint(protocol, tt), uint16(len(found)), tt.want)
			listed, err := bound(ns, protocol, filter(tt.first, tt.last))
			expect.NoError(t, err)
			expect.Same(t, fmt.Sprint("sockets that the kernel lists for ", protocol, tt), len(listed), len(all))
		}
	}
}

// TestAFilterThatTheKernelRefuses: all sockets are listed.
func TestAFilterThatTheKernelRefuses(t *testing.T) {
	ns := hostNS(t)
	bind(t, ns, "tcp", "127.0.0.1", 80, "listen")
	bind(t, ns, "tcp", "::", 81, "listen")
	bad := filter(80, 80)
	bad[unix.SizeofRtAttr] = 99 // no such op
	all, err := bound(ns, "tcp", bad)
	expect.NoError(t, err)
	expect.Same(t, "all", rendered(all), []string{"tcp 127.0.0.1:80", "tcp 81"})
}

// BenchmarkBound beside sockets of others that listen.
func BenchmarkBound(b *testing.B) {
	for _, others := range []int{0, 1_000} {
		b.Run(fmt.Sprint(others), func(b *testing.B) {
			ns := hostNS(b)
			for i := range others {
				bind(b, ns, "tcp", "127.0.0.1", 2_000+i, "listen")
			}
			for b.Loop() {
				if _, err := Bound(ns, "tcp", 80, 80); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestSCTPIsListedOrUnknown(t *testing.T) {
	ns := hostNS(t)
	all, err := Bound(ns, "sctp", 0, 65535)
	if len(all) > 0 || err != nil && !errors.Is(err, ErrUnknown) {
		t.Errorf("%v, %v", all, err)
	}
	t.Logf("the kernel answers %v", err)
}

func TestASocketHasAProcess(t *testing.T) {
	ns := hostNS(t)
	fd := bind(t, ns, "tcp", "127.0.0.1", 80, "listen")
	s := boundIn(t, ns, "tcp")[0]
	own, err := Own()
	expect.NoError(t, err)
	expect.Same(t, "own", own[s.Inode], true)
	holders := Holders(map[uint32]bool{s.Inode: true, 0: true})
	comm, err := os.ReadFile("/proc/self/comm")
	expect.NoError(t, err)
	expect.Same(t, "holders", holders, map[uint32]Process{s.Inode: {os.Getpid(), string(comm[:len(comm)-1])}})

	child := exec.Command("sleep", "60")
	child.ExtraFiles = []*os.File{os.NewFile(uintptr(duplicate(t, fd)), "listener")}
	expect.NoError(t, child.Start())
	defer func() {
		expect.NoError(t, child.Process.Kill())
		_ = child.Wait() // killed
	}()
	all, err := inodes(fmt.Sprintf("/proc/%d/fd", child.Process.Pid))
	expect.NoError(t, err)
	expect.Same(t, "a child has it too", all[s.Inode], true)
}

func duplicate(t *testing.T, fd int) int {
	t.Helper()
	another, err := unix.Dup(fd)
	expect.NoError(t, err)
	return another
}

func TestEphemeralIsThatOfTheNamespace(t *testing.T) {
	ns := hostNS(t)
	nettest.Shell(t, ns, "echo 40000 41000 > /proc/sys/net/ipv4/ip_local_port_range")
	first, last, err := Ephemeral(ns)
	expect.NoError(t, err)
	expect.Same(t, "range", [2]uint16{first, last}, [2]uint16{40000, 41000})
}

func TestLocalPortsAreThoseOfTheNamespace(t *testing.T) {
	ns := hostNS(t)
	local, err := LocalPorts(ns)
	expect.NoError(t, err)
	expect.Same(t, "reserved in a new namespace", len(local.Reserved), 0)
	nettest.Shell(t, ns, "echo 40000 41000 > /proc/sys/net/ipv4/ip_local_port_range; echo 8080,9000-9002 > /proc/sys/net/ipv4/ip_local_reserved_ports")
	local, err = LocalPorts(ns)
	expect.NoError(t, err)
	expect.Same(t, "local ports", local, Local{Span{40000, 41000}, []Span{{8080, 8080}, {9000, 9002}}})
	for port, want := range map[uint16][2]bool{8079: {}, 8080: {false, true}, 9001: {false, true}, 9003: {}, 40000: {true, false}, 41001: {}} {
		expect.Same(t, fmt.Sprint(port), [2]bool{local.IsEphemeral(port), local.IsReserved(port)}, want)
	}
}

func TestSpansThatCannotBeRead(t *testing.T) {
	for _, text := range []string{"x", "1-x", "70000", "1--2"} {
		if all, err := parseSpans(text); err == nil {
			t.Errorf("%s: %v", text, all)
		}
	}
}

// answer returns an answer of the kernel about one socket.
func answer(family byte, port uint16, src []byte, attrs ...[]byte) []byte {
	body := make([]byte, sizeofAnswer)
	body[0] = family
	binary.BigEndian.PutUint16(body[4:], port)
	copy(body[8:24], src)
	binary.NativeEndian.PutUint32(body[sizeofAnswer-4:], 7)
	for _, a := range attrs {
		body = append(body, a...)
	}
	return message(unix.SOCK_DIAG_BY_FAMILY, body)
}

func message(typ uint16, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, make([]byte, unix.NLMSG_HDRLEN-6)...)
	b = append(b, body...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func attr(typ uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofRtAttr+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, typ), value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// TestSCTPHasSeveralAddresses: the kernel of a test host may have no SCTP, so its
// answer is written here.
func TestSCTPHasSeveralAddresses(t *testing.T) {
	four, six := make([]byte, sizeofAddress), make([]byte, sizeofAddress)
	binary.NativeEndian.PutUint16(four, unix.AF_INET)
	copy(four[4:], []byte{192, 0, 2, 1})
	binary.NativeEndian.PutUint16(six, unix.AF_INET6)
	copy(six[8:], netip.MustParseAddr("2001:db8::1").AsSlice())
	data := append(answer(unix.AF_INET6, 80, make([]byte, 16), attr(attrV6Only, []byte{0}), attr(attrLocals, append(four, six...))),
		answer(unix.AF_INET6, 81, make([]byte, 16), attr(attrV6Only, []byte{0}))...)
	data = append(data, answer(unix.AF_INET, 0, nil)...)
	all, done, err := parse(append(data, message(unix.NLMSG_DONE, make([]byte, 4))...), "sctp")
	expect.NoError(t, err)
	expect.Same(t, "done", done, true)
	expect.Same(t, "sockets", all, []Socket{
		{ports.Claim{Protocol: "sctp", Addr: netip.MustParseAddr("192.0.2.1"), Port: 80}, 7},
		{ports.Claim{Protocol: "sctp", Addr: netip.MustParseAddr("2001:db8::1"), Port: 80}, 7},
		{ports.Claim{Protocol: "sctp", Port: 81}, 7},
	})
}

func TestAnErrorEndsTheAnswer(t *testing.T) {
	enoent := binary.NativeEndian.AppendUint32(nil, uint32(0xffffffff-uint32(unix.ENOENT)+1))
	for _, typ := range []uint16{unix.NLMSG_DONE, unix.NLMSG_ERROR} {
		_, done, err := parse(message(typ, enoent), "sctp")
		if !done || !errors.Is(err, unix.ENOENT) {
			t.Errorf("%d: %t, %v", typ, done, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(answer(unix.AF_INET6, 80, make([]byte, 16), attr(attrV6Only, []byte{0}), attr(attrLocals, make([]byte, sizeofAddress))))
	f.Add(message(unix.NLMSG_DONE, nil))
	f.Fuzz(func(_ *testing.T, data []byte) { _, _, _ = parse(data, "tcp") })
}
