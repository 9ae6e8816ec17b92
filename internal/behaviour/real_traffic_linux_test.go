package behaviour_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// outside makes the world beyond the host: a namespace with 192.0.2.2 and
// 2001:db8::2, which the host reaches as 192.0.2.1 and 2001:db8::1.
func (h *realHost) outside() string {
	h.T.Helper()
	path := h.Container("outside")
	h.VethPair("wan0", "wan1")
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
		h.T.Fatal(err)
	}
	h.Inside(path, func() error { return configure("wan1", "192.0.2.2/24", "2001:db8::2/64") })
	return path
}

func (h *realHost) moveLink(name, path string) {
	h.T.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		h.T.Fatal(err)
	}
	ns, err := netns.Open(path)
	if err != nil {
		h.T.Fatal(err)
	}
	if err := errors.Join(netlink.LinkSetNsFd(link, int(ns.File().Fd())), ns.Close()); err != nil {
		h.T.Fatal(err)
	}
}

// transfer sends size bytes from one namespace to an address of another and
// returns the time until all have arrived.
func (h *realHost) transfer(t *testing.T, from, to, address string, size int64) time.Duration {
	t.Helper()
	var listener net.Listener
	err := h.At(to, func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan error, 1)
	go func() { received <- receive(listener, size) }()
	start := time.Now()
	err = h.At(from, func() error {
		c, err := net.DialTimeout("tcp", address, testhost.AnswerWait)
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
