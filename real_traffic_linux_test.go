package cni_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/netns"
)

// answerWait bounds the wait for an answer that is expected, and silenceWait
// for one that must not come: a packet that is dropped is never answered.
const (
	answerWait  = 10 * time.Second
	silenceWait = 300 * time.Millisecond
)

// at runs fn in the namespace at path, or on the host if there is no path.
func (h *realHost) at(path string, fn func() error) error {
	if path == "" {
		return fn()
	}
	ns, err := netns.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(ns.Do(fn), ns.Close())
}

// probeIPv6 has the package net find out here, where the loopback interface is
// up, whether there is IPv6: it asks once in a process, and takes the answer of
// a namespace without loopback for all of them.
func (h *realHost) probeIPv6() {
	h.t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		h.t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		h.t.Fatal(err)
	}
}

// serve answers whoever asks on the port, by TCP and UDP, IPv4 and IPv6, with
// the address it sees asking.
func (h *realHost) serve(path string, port int) {
	h.t.Helper()
	h.probeIPv6()
	var tcp net.Listener
	var udp net.PacketConn
	err := h.at(path, func() (err error) {
		if tcp, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); err != nil {
			return err
		}
		udp, err = net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	done := make(chan struct{}, 2)
	go func() { serveTCP(tcp); done <- struct{}{} }()
	go func() { serveUDP(udp); done <- struct{}{} }()
	h.t.Cleanup(func() {
		if err := errors.Join(tcp.Close(), udp.Close()); err != nil {
			h.t.Error(err)
		}
		<-done
		<-done
	})
}

// serveTCP and serveUDP end when their socket is closed; a peer that goes away
// concerns the one who asked.
func serveTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, hostOf(c.RemoteAddr())+"\n")
		_ = c.Close()
	}
}

func serveUDP(c net.PacketConn) {
	buf := make([]byte, 64)
	for {
		_, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = c.WriteTo([]byte(hostOf(from)+"\n"), from)
	}
}

func hostOf(addr net.Addr) string {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return err.Error()
	}
	return strings.TrimPrefix(host, "::ffff:")
}

// ask returns what serve answers.
func (h *realHost) ask(path, network, address string, wait time.Duration) (answer string, err error) {
	err = h.at(path, func() error {
		c, err := (&net.Dialer{Timeout: wait}).Dial(network, address)
		if err != nil {
			return err
		}
		defer c.Close() // all there was to say is said
		if err := c.SetDeadline(time.Now().Add(wait)); err != nil {
			return err
		}
		if network == "udp" {
			if _, err := io.WriteString(c, "who am I?"); err != nil {
				return err
			}
		}
		buf := make([]byte, 64)
		n, err := c.Read(buf)
		answer = strings.TrimSpace(string(buf[:n]))
		return err
	})
	return answer, err
}

// outside makes the world beyond the host: a namespace with 192.0.2.2 and
// 2001:db8::2, which the host reaches as 192.0.2.1 and 2001:db8::1.
func (h *realHost) outside() string {
	h.t.Helper()
	path := h.container("outside")
	h.vethPair("wan0", "wan1")
	h.moveLink("wan1", path)
	configure := func(link, v4, v6 string) error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		for _, text := range []string{v4, v6} {
			addr, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(l, addr); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(l)
	}
	if err := configure("wan0", "192.0.2.1/24", "2001:db8::1/64"); err != nil {
		h.t.Fatal(err)
	}
	h.inside(path, func() error { return configure("wan1", "192.0.2.2/24", "2001:db8::2/64") })
	return path
}

func (h *realHost) moveLink(name, path string) {
	h.t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		h.t.Fatal(err)
	}
	ns, err := netns.Open(path)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := errors.Join(netlink.LinkSetNsFd(link, int(ns.File().Fd())), ns.Close()); err != nil {
		h.t.Fatal(err)
	}
}

// question is one way that packets take: who asks whom, and whom the asked one
// sees. No answer is "".
type question struct {
	from, network, to string
	want              string
}

func (h *realHost) wantAnswers(questions []question) {
	h.t.Helper()
	for _, q := range questions {
		wait := answerWait
		if q.want == "" {
			wait = silenceWait
		}
		got, err := h.ask(q.from, q.network, q.to, wait)
		if timeout := net.Error(nil); q.want == "" && errors.As(err, &timeout) && timeout.Timeout() {
			continue
		}
		if err != nil || got != q.want {
			h.t.Errorf("%s to %s from %q is answered %q, %v; want %q", q.network, q.to, q.from, got, err, q.want)
		}
	}
}

// both asks by TCP and by UDP.
func both(from, to, want string) []question {
	return []question{{from, "tcp", to, want}, {from, "udp", to, want}}
}

// transfer sends size bytes from one namespace to an address of another and
// returns how long it took until all had come.
func (h *realHost) transfer(t *testing.T, from, to, address string, size int64) time.Duration {
	t.Helper()
	var listener net.Listener
	err := h.at(to, func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan error, 1)
	go func() { received <- receive(listener, size) }()
	start := time.Now()
	err = h.at(from, func() error {
		c, err := net.DialTimeout("tcp", address, answerWait)
		if err != nil {
			return err
		}
		_, err = c.Write(make([]byte, size))
		return errors.Join(err, c.Close())
	})
	if err := errors.Join(err, <-received, listener.Close()); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

func receive(l net.Listener, size int64) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, c)
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes came of %d", n, size)
	}
	return errors.Join(err, c.Close())
}
