package multus

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost/servertest"
)

// runDir is where Multus' programs have their socket if no configuration says otherwise.
const runDir = "/run/multus"

var socket = filepath.Join(runDir, "multus.sock")

// record serves Multus' socket until the test ends.
func record(t testing.TB, answer func(path string) (status int, body string)) *servertest.Daemon {
	t.Helper()
	expect.NoError(t, os.MkdirAll(runDir, 0o700))
	d := &servertest.Daemon{Dir: runDir, Answer: func(path string, _ []byte) string {
		status, body := answer(path)
		return fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", status, http.StatusText(status), len(body), body)
	}}
	d.Listen(t)
	return d
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
