package plugintest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// noProbes keeps connections silent while nobody uses them. Without the tables of nat the
// kernel translates nothing, so that a probe at that moment, on a slow machine, would
// break a connection that no repair could save.
const noProbes = -1

// Flow is a connection, or the UDP packets between two sockets.
type Flow struct {
	conn net.Conn
	n    int
}

// Echo answers on a port of all addresses of a namespace, with TCP and UDP, until the
// test ends.
func Echo(t testing.TB, ns *netns.Handle, port int) {
	t.Helper()
	var listener net.Listener
	var packets net.PacketConn
	err := ns.Do(func() (err error) {
		if listener, err = (&net.ListenConfig{KeepAlive: noProbes}).Listen(context.Background(), "tcp", fmt.Sprint(":", port)); err != nil {
			return err
		}
		packets, err = net.ListenPacket("udp", fmt.Sprint(":", port))
		return err
	})
	expect.NoError(t, err)
	t.Cleanup(func() {
		if err := errors.Join(listener.Close(), packets.Close()); err != nil {
			t.Error(err)
		}
	})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test ends
			}
			go func() {
				defer conn.Close()
				buf := make([]byte, 64)
				for {
					n, err := conn.Read(buf)
					if err != nil {
						return
					}
					if _, err := conn.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := packets.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo(buf[:n], from) // the other end may be gone
		}
	}()
}

// NewFlow begins a flow from a namespace to an [Echo].
func NewFlow(t testing.TB, from *netns.Handle, network string, to netip.AddrPort) *Flow {
	t.Helper()
	f := &Flow{}
	if err := from.Do(func() (err error) {
		f.conn, err = (&net.Dialer{Timeout: connectTime, KeepAlive: noProbes}).Dial(network, to.String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	if err := f.Answer(connectTime); err != nil {
		t.Fatalf("a new %s flow to %v: %v", network, to, err)
	}
	return f
}

// Close ends the flow. The other end may be gone, and the test may have closed it before.
func (f *Flow) Close() { _ = f.conn.Close() }

// Answer sends and waits for the answer. It returns an error if none comes in time.
// UDP packets, which may be lost, are sent again and again.
func (f *Flow) Answer(within time.Duration) error {
	f.n++
	said, buf := fmt.Appendf(nil, "%d;", f.n), make([]byte, 64)
	_, datagrams := f.conn.(*net.UDPConn)
	for begin, sent := time.Now(), false; ; {
		if !sent || datagrams {
			sent = true
			if _, err := f.conn.Write(said); err != nil && !datagrams {
				return err
			}
		}
		if err := f.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			return err
		}
		n, err := f.conn.Read(buf)
		if err == nil && bytes.HasSuffix(buf[:n], said) {
			return nil
		}
		var timeout net.Error
		if err != nil && !datagrams && !(errors.As(err, &timeout) && timeout.Timeout()) {
			return err
		}
		if time.Since(begin) > within {
			return fmt.Errorf("no answer within %v: %w", within, err)
		}
	}
}
