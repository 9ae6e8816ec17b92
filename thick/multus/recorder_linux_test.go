package multus

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// runDir is where Multus' programs have their socket if no configuration says otherwise.
const runDir = "/run/multus"

var socket = filepath.Join(runDir, "multus.sock")

// recorded is a request as it came.
type recorded struct {
	path string
	raw  []byte
}

// recorder is a daemon that answers as a function says, and keeps the requests.
type recorder struct {
	answer func(path string) (status int, body string)

	mu       sync.Mutex
	requests []recorded
}

// record serves Multus' socket until the test ends, one connection after the other.
func record(t testing.TB, answer func(path string) (int, string)) *recorder {
	t.Helper()
	expect.NoError(t, os.MkdirAll(runDir, 0o700))
	listener := expect.Value(net.Listen("unix", socket))(t)
	r, ended := &recorder{answer: answer}, make(chan error, 1)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				ended <- nil // closed by the clean-up
				return
			}
			if err := r.serve(conn); err != nil {
				ended <- err
				return
			}
		}
	}()
	t.Cleanup(func() { expect.NoError(t, listener.Close(), <-ended) })
	return r
}

// serve reads one request: a shim makes a connection for each.
func (r *recorder) serve(conn net.Conn) error {
	defer conn.Close()
	var raw bytes.Buffer
	request, err := http.ReadRequest(bufio.NewReader(io.TeeReader(conn, &raw)))
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, request.Body); err != nil {
		return err
	}
	r.mu.Lock()
	r.requests = append(r.requests, recorded{path: request.URL.Path, raw: raw.Bytes()})
	r.mu.Unlock()
	status, body := r.answer(request.URL.Path)
	answer := http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Close: true,
		ContentLength: int64(len(body)), Body: io.NopCloser(strings.NewReader(body)),
	}
	return answer.Write(conn)
}

// paths returns the paths of the requests in order.
func (r *recorder) paths() (paths []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, request := range r.requests {
		paths = append(paths, request.path)
	}
	return paths
}

// last returns the last request for a path.
func (r *recorder) last(t *testing.T, path string) []byte {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.requests) - 1; i >= 0; i-- {
		if r.requests[i].path == path {
			return r.requests[i].raw
		}
	}
	t.Fatalf("no request for %s", path)
	return nil
}

// exchange sends a request byte for byte and returns the answer in the same form.
func exchange(t *testing.T, request []byte) []byte {
	t.Helper()
	conn := expect.Value(net.Dial("unix", socket))(t)
	defer conn.Close()
	expect.Value(conn.Write(request))(t)
	// A server without keep-alives ends the connection after its answer.
	var answer bytes.Buffer
	if _, err := io.Copy(&answer, conn); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	return answer.Bytes()
}
