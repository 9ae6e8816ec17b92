package server_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/internal/wire"
	"github.com/embedcni/cni/thick/server"
)

// caller returns a function that calls as a process that this one has started.
func caller(t *testing.T, s *server.Server) func(verb, id string, changes ...func(*wire.Request)) *httptest.ResponseRecorder {
	t.Helper()
	child := exec.Command("sleep", "infinity")
	expect.NoError(t, child.Start())
	t.Cleanup(func() {
		expect.NoError(t, child.Process.Kill())
		_ = child.Wait() // by the signal
	})
	return func(verb, id string, changes ...func(*wire.Request)) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/cni", bytes.NewReader(request(verb, id, changes...)))
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r.WithContext(server.ByProcess(r.Context(), child.Process.Pid)))
		return w
	}
}

// TestARuntimeThatIsTheDaemonToo starts shims itself. None of their calls is taken for a plugin's
// that asks itself, also if the first ADD comes while a queued DEL of its container is carried out.
func TestARuntimeThatIsTheDaemonToo(t *testing.T) {
	l, q := newLedger(), newQueue(t)
	s := newServer(t, l, server.Options{})
	attach(t, s, "c1")
	begun, end := make(chan string, 10), make(chan struct{})
	l.Do = func(_ context.Context, verb string, r *server.Request) (types.Result, error) {
		begun <- verb
		<-end
		return addressed("10.1.0.7/16"), l.Keep(verb, r)
	}
	call := caller(t, s)
	q.put(t, "c1")
	drained := expect.Value(s.Drain(t.Context(), q.dir))(t)
	expect.Same(t, "the queued DEL", expect.Await(t, "it", begun), "DEL")
	answers := make(chan *httptest.ResponseRecorder, 10)
	go func() { answers <- call("ADD", "c1") }()
	expect.Eventually(t, "the ADD that waits for the DEL", func() bool { return server.Waiting(s) == 1 })
	end <- struct{}{}
	wantDrained(t, expect.Await(t, "the end of the Drain", drained), []string{"c1"}, nil, nil)

	expect.Same(t, "the ADD", expect.Await(t, "it", begun), "ADD")
	for _, verb := range []string{"ADD", "DEL"} { // beside it
		go func() { answers <- call(verb, "c1", variable("CNI_IFNAME", "net1")) }()
		expect.Same(t, "beside the ADD", expect.Await(t, "it", begun), verb)
	}
	close(end)
	for range 3 {
		expect.Same(t, "status", expect.Await(t, "an answer", answers).Code, http.StatusOK)
	}
}

// TestAPluginThatAsksItself is refused, and its DEL has nothing to do.
func TestAPluginThatAsksItself(t *testing.T) {
	var s *server.Server
	var call func(verb, id string, changes ...func(*wire.Request)) *httptest.ResponseRecorder
	b := &backend{Do: func(_ context.Context, verb string, r *server.Request) (types.Result, error) {
		if w := call(verb, r.ContainerID); verb == "DEL" {
			success(t, w, "")
		} else {
			refused(t, w, http.StatusBadRequest, types.ErrInvalidNetworkConfig)
		}
		return addressed("10.1.0.7/16"), nil
	}}
	s = newServer(t, b, server.Options{})
	call = caller(t, s)
	verbs := []string{"DEL", "STATUS", "ADD", "CHECK", "ADD", "DEL"}
	for _, verb := range verbs {
		expect.Same(t, verb, post(s, "/cni", request(verb, "c1")).Code, http.StatusOK)
	}
	expect.Same(t, "calls of the Backend", b.Verbs(), verbs)
}
