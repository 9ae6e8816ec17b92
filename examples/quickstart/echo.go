package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/embedcni/cni/netns"
)

// patience limits every wait for the network. On one machine an answer takes
// microseconds, so a later one will never come.
const patience = 5 * time.Second

// echo sends a message, waits for its echo, and returns the time between the
// first packet, which may belong to TCP's handshake, and the last. This is much
// less than a millisecond, with one exception: the first message over IPv6 with
// the executable ptp. That plugin returns while the kernel still checks the
// host's addresses for duplicates. For a second or two the host forwards
// packets but answers none.
//
// A socket belongs for life to the namespace that it was opened in, so only the
// opening must happen inside.
func (p probe) echo(ctx context.Context) (took time.Duration, err error) {
	begin := time.Now()
	var conn net.Conn
	err = p.from.Do(func() (err error) {
		dialer := net.Dialer{Timeout: patience}
		conn, err = dialer.DialContext(ctx, p.protocol, p.to.String())
		return err
	})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	// Unique for each probe, so that an answer to another probe does not match.
	sent := fmt.Sprintf("%s on %s over %s at %s", p.what, p.network, p.protocol, begin)
	if _, err := io.WriteString(conn, sent); err != nil {
		return 0, err
	}
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(conn, got); err != nil {
		return 0, err
	}
	if string(got) != sent {
		return 0, fmt.Errorf("sent %q, got %q back", sent, got)
	}
	return time.Since(begin), nil
}

// echoServer sends received data back.
type echoServer struct {
	tcp  net.Listener
	udp  net.PacketConn
	done sync.WaitGroup
}

// serveEcho starts a server in the namespace. It listens on a port of all
// addresses, IPv4 and IPv6.
func serveEcho(ctx context.Context, at *netns.Handle, port int) (*echoServer, error) {
	s := &echoServer{}
	address := fmt.Sprintf(":%d", port)
	err := at.Do(func() (err error) {
		var listen net.ListenConfig
		if s.tcp, err = listen.Listen(ctx, "tcp", address); err != nil {
			return err
		}
		if s.udp, err = listen.ListenPacket(ctx, "udp", address); err != nil {
			s.tcp.Close()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	s.done.Add(2)
	go s.acceptTCP()
	go s.answerUDP()
	return s, nil
}

// Close stops the server and waits for its end.
func (s *echoServer) Close() {
	s.tcp.Close()
	s.udp.Close()
	s.done.Wait()
}

func (s *echoServer) acceptTCP() {
	defer s.done.Done()
	for {
		conn, err := s.tcp.Accept()
		if err != nil {
			return // closed
		}
		s.done.Add(1)
		go s.answerTCP(conn)
	}
}

// answerTCP answers until the other side closes. The other side reports failed
// deadlines, because it waits for an answer in vain.
func (s *echoServer) answerTCP(conn net.Conn) {
	defer s.done.Done()
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	buffer := make([]byte, 1500)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		if _, err := conn.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func (s *echoServer) answerUDP() {
	defer s.done.Done()
	buffer := make([]byte, 1500)
	for {
		n, from, err := s.udp.ReadFrom(buffer)
		if err != nil {
			return // closed
		}
		s.udp.SetWriteDeadline(time.Now().Add(patience))
		if _, err := s.udp.WriteTo(buffer[:n], from); err != nil {
			return
		}
	}
}
