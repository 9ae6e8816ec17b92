package nettest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// NoProbes keeps connections silent while nobody uses them. Without the tables of nat the
// kernel translates nothing, so that a probe at that moment, on a slow machine, would
// break a connection that no repair could save.
const NoProbes = -1

// Serve answers on a port of all addresses of a namespace, over TCP and UDP, until the test
// ends: with a line of the client's visible address, and what the client has sent. It says
// nothing unasked: an acknowledgement that the client sends while somebody has flushed the
// rules would end the connection.
func Serve(t testing.TB, ns *netns.Handle, port int) {
	t.Helper()
	var tcp net.Listener
	var udp net.PacketConn
	expect.NoError(t, ns.Do(func() (err error) {
		if tcp, err = (&net.ListenConfig{KeepAlive: NoProbes}).Listen(context.Background(), "tcp", fmt.Sprint(":", port)); err != nil {
			return err
		}
		udp, err = net.ListenPacket("udp", fmt.Sprint(":", port))
		return err
	}))
	done := make(chan struct{}, 2)
	go func() { serveTCP(tcp); done <- struct{}{} }()
	go func() { serveUDP(udp); done <- struct{}{} }()
	t.Cleanup(func() {
		if err := errors.Join(tcp.Close(), udp.Close()); err != nil {
			t.Error(err)
		}
		<-done
		<-done
	})
}

// serveTCP and serveUDP end when their socket is closed. Only the client needs
// to know about a broken connection.
func serveTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			buf := make([]byte, 64)
			for n, err := c.Read(buf); err == nil; n, err = c.Read(buf) {
				_, _ = c.Write(answer(c.RemoteAddr(), buf[:n]))
			}
		}()
	}
}

func serveUDP(c net.PacketConn) {
	buf := make([]byte, 64)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(answer(from, buf[:n]), from)
	}
}

func answer(client net.Addr, said []byte) []byte {
	host, _, err := net.SplitHostPort(client.String())
	if err != nil {
		host = err.Error()
	}
	return append([]byte(strings.TrimPrefix(host, "::ffff:")+"\n"), said...)
}
