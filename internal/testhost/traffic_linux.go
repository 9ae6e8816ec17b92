package testhost

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// HostPort returns an address to dial.
func HostPort(host string, port int) string { return net.JoinHostPort(host, fmt.Sprint(port)) }

// AnswerWait limits the wait for an expected answer, and silenceWait for one
// that must not come: a dropped packet is never answered.
const (
	AnswerWait  = 10 * time.Second
	silenceWait = 300 * time.Millisecond
)

// At runs fn in the namespace at path, or on the host if path is empty.
func (h *RealHost) At(path string, fn func() error) error {
	if path == "" {
		return fn()
	}
	return netns.Do(path, fn)
}

// ProbeIPv6 makes package net detect IPv6 here, where the loopback interface is
// up. Package net probes once in a process, and in a namespace without loopback
// it would see no IPv6 anywhere.
func (h *RealHost) ProbeIPv6() {
	h.T.Helper()
	expect.NoError(h.T, expect.Value(net.Listen("tcp", ":0"))(h.T).Close())
}

// Serve is [nettest.Serve] in the namespace at path, or on the host if path is empty.
func (h *RealHost) Serve(path string, port int) {
	h.T.Helper()
	h.ProbeIPv6()
	h.with(path, func(ns *netns.Handle) { nettest.Serve(h.T, ns, port) })
}

// Ask returns the client's address as [RealHost.Serve] sees it.
func (h *RealHost) Ask(path, network, address string, wait time.Duration) (answer string, err error) {
	err = h.At(path, func() error {
		c, err := (&net.Dialer{Timeout: wait}).Dial(network, address)
		if err != nil {
			return err
		}
		defer c.Close() // everything has been sent
		if err := c.SetDeadline(time.Now().Add(wait)); err != nil {
			return err
		}
		if _, err := io.WriteString(c, "who am I?"); err != nil {
			return err
		}
		buf := make([]byte, 64)
		n, err := c.Read(buf)
		answer, _, _ = strings.Cut(string(buf[:n]), "\n")
		return err
	})
	return answer, err
}

// Question is one way that packets take: the client, the server, and the
// client's address as the server sees it. No answer is "".
type Question struct {
	From, Network, To string
	Want              string
}

func (h *RealHost) WantAnswers(questions []Question) {
	h.T.Helper()
	for _, q := range questions {
		wait := AnswerWait
		if q.Want == "" {
			wait = silenceWait
		}
		got, err := h.Ask(q.From, q.Network, q.To, wait)
		if timeout := net.Error(nil); q.Want == "" && errors.As(err, &timeout) && timeout.Timeout() {
			continue
		}
		if err != nil || got != q.Want {
			h.T.Errorf("%s to %s from %q is answered %q, %v; want %q", q.Network, q.To, q.From, got, err, q.Want)
		}
	}
}

// Both asks over TCP and UDP.
func Both(from, to, want string) []Question {
	return []Question{{from, "tcp", to, want}, {from, "udp", to, want}}
}
