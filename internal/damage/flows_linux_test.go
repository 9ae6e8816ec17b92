package damage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// noProbes keeps connections silent while nobody uses them. Without the tables of nat the
// kernel translates nothing, so that a probe at that moment, on a slow machine, would
// break a connection that no repair could save.
const noProbes = -1

// serve echoes over TCP and UDP on a port of the namespace at path, until the test
// ends.
func serve(h *testhost.RealHost, path string, port int) {
	h.T.Helper()
	var tcp net.Listener
	var udp net.PacketConn
	expect.NoError(h.T, h.At(path, func() (err error) {
		if tcp, err = (&net.ListenConfig{KeepAlive: noProbes}).Listen(context.Background(), "tcp", fmt.Sprintf(":%d", port)); err == nil {
			udp, err = net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		}
		return err
	}))
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				_, _ = io.Copy(c, c) // until the other end closes
				_ = c.Close()
			}()
		}
	}()
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := udp.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil { // else it is a former client's, who is gone
				_, _ = udp.WriteTo(buf[:n], from)
			}
		}
	}()
	h.T.Cleanup(func() { expect.NoError(h.T, errors.Join(tcp.Close(), udp.Close())) })
}

// way is a way of packets: from the namespace at path to a server.
type way struct{ from, address string }

// flow is a connection that lives as long as the test.
type flow struct {
	way
	net.Conn
	said int
}

// open opens a connection over each of the ways, with TCP and UDP.
func open(h *testhost.RealHost, ways []way) []*flow {
	h.T.Helper()
	var all []*flow
	for _, w := range ways {
		for _, network := range []string{"tcp", "udp"} {
			f := &flow{way: w}
			expect.NoError(h.T, h.At(w.from, func() (err error) {
				f.Conn, err = (&net.Dialer{Timeout: testhost.AnswerWait, KeepAlive: noProbes}).Dial(network, w.address)
				return err
			}))
			h.T.Cleanup(func() { _ = f.Close() }) // its end may be gone
			all = append(all, f)
		}
	}
	wantFlowing(h.T, all)
	return all
}

// wantFlowing checks that each connection is answered.
func wantFlowing(t testing.TB, all []*flow) {
	t.Helper()
	for _, f := range all {
		if err := f.echo(); err != nil {
			t.Errorf("the %s connection from %q to %s: %v", f.RemoteAddr().Network(), f.from, f.address, err)
		}
	}
}

// again is the time after which a datagram is sent again: some may be lost.
const again = 200 * time.Millisecond

// echo sends a message and waits for its answer.
func (f *flow) echo() error {
	f.said++
	text := fmt.Sprintf("ping %6d", f.said)
	end := time.Now().Add(testhost.AnswerWait)
	step := testhost.AnswerWait
	if f.RemoteAddr().Network() == "udp" {
		step = again
	}
	buf := make([]byte, len(text))
	for {
		if err := f.SetDeadline(time.Now().Add(step)); err != nil {
			return err
		}
		_, err := io.WriteString(f, text)
		for err == nil && string(buf) != text { // answers to earlier datagrams may come late
			_, err = io.ReadFull(f, buf)
		}
		refused := err != nil && strings.Contains(err.Error(), "refused") // an answer to an earlier datagram
		if err == nil || step == testhost.AnswerWait && !refused || time.Now().After(end) {
			return err
		}
	}
}

// wantNew checks that new connections can be made.
func wantNew(h *testhost.RealHost, ways []way) {
	h.T.Helper()
	for _, w := range ways {
		for _, network := range []string{"tcp", "udp"} {
			f := &flow{way: w}
			err := h.At(w.from, func() (err error) {
				f.Conn, err = (&net.Dialer{Timeout: testhost.AnswerWait, KeepAlive: noProbes}).Dial(network, w.address)
				return err
			})
			if err == nil {
				err = f.echo()
				_ = f.Close()
			}
			if err != nil {
				h.T.Errorf("a new %s connection from %q to %s: %v", network, w.from, w.address, err)
			}
		}
	}
}
