package shim

import (
	"strings"
	"testing"
)

// FuzzAnswer: whatever a daemon answers, it is read or refused within the limit.
func FuzzAnswer(f *testing.F) {
	for _, answer := range []string{
		"", "HTTP/1.0 200 OK\r\n\r\n", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 400\r\nA\r\n\r\n",
		"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "SSH-2.0-x\r\n", "HTTP/1.0 -10 x\r\n\r\n",
	} {
		f.Add(answer)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		status, body, err := readAnswer(strings.NewReader(answer))
		switch {
		case err != nil:
		case !strings.HasSuffix(answer, string(body)) || !strings.HasPrefix(answer, protocol):
			t.Errorf("%q: the body is %q", answer, body)
		case status < 0 || status > 999:
			t.Errorf("%q: the status is %d", answer, status)
		}
	})
}
