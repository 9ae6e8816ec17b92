package servertest

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// Daemon listens at multus.sock in a directory, and writes for each request what a function
// returns. It keeps the requests: a shim makes a connection for each.
type Daemon struct {
	Dir      string
	Answer   func(path string, body []byte) string // what is written before the connection is closed
	Listener net.Listener

	mu    sync.Mutex
	asked []Asked
}

// Asked is a request as it came.
type Asked struct {
	Path      string
	Raw, Body []byte
}

// Socket returns the path of the socket.
func (d *Daemon) Socket() string { return filepath.Join(d.Dir, "multus.sock") }

// Listen serves the socket until the test ends.
func (d *Daemon) Listen(t testing.TB) {
	t.Helper()
	ln := expect.Value(net.Listen("unix", d.Socket()))(t)
	d.Listener = ln
	t.Cleanup(func() { ln.Close() })
	go d.Serve(ln)
}

// Serve serves a listener until it is closed.
func (d *Daemon) Serve(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		go d.one(conn)
	}
}

func (d *Daemon) one(conn net.Conn) {
	defer conn.Close()
	var raw bytes.Buffer
	r, err := http.ReadRequest(bufio.NewReader(io.TeeReader(conn, &raw)))
	if err != nil {
		return // it was a look whether anyone listens
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Method != http.MethodPost {
		return
	}
	d.mu.Lock()
	d.asked = append(d.asked, Asked{r.URL.Path, raw.Bytes(), body})
	d.mu.Unlock()
	io.WriteString(conn, d.Answer(r.URL.Path, body))
}

// Asked returns the requests for a path so far, or all if it is empty.
func (d *Daemon) Asked(path string) (found []Asked) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.asked {
		if path == "" || a.Path == path {
			found = append(found, a)
		}
	}
	return found
}
