package plugintest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// Flow is a connection, or the UDP packets between two sockets.
type Flow struct {
	conn net.Conn
	n    int
}

// NewFlow begins a flow from a namespace to a port of [nettest.Serve].
func NewFlow(t testing.TB, from *netns.Handle, network string, to netip.AddrPort) *Flow {
	t.Helper()
	f := &Flow{}
	expect.NoError(t, from.Do(func() (err error) {
		f.conn, err = (&net.Dialer{Timeout: connectTime, KeepAlive: nettest.NoProbes}).Dial(network, to.String())
		return err
	}))
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
