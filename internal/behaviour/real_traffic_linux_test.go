package behaviour_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// transfer sends size bytes from one namespace to an address of another and
// returns the time until all have arrived.
func (h *realHost) transfer(t *testing.T, from, to, address string, size int64) time.Duration {
	t.Helper()
	var listener net.Listener
	err := h.At(to, func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	expect.NoError(t, err)
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
	expect.NoError(t, errors.Join(err, <-received, listener.Close()))
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
