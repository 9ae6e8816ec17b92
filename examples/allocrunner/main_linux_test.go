package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// serveVariable makes this test binary a job's program: it answers HTTP at these addresses.
const serveVariable = "ALLOCRUNNER_TEST_SERVE"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == proxyPlugin {
		redirector()
	}
	if addrs := os.Getenv(serveVariable); addrs != "" {
		serveAll(strings.Fields(addrs))
	}
	os.Exit(cnitest.Main(m, cnitest.BuildReferencePlugins()))
}

// serveAll answers at each address, and does not return.
func serveAll(addrs []string) {
	failed := make(chan error)
	for _, addr := range addrs {
		go func() { failed <- http.ListenAndServe(addr, http.HandlerFunc(whereAsked)) }()
	}
	fmt.Fprintln(os.Stderr, <-failed)
	os.Exit(1)
}

// whereAsked answers with the address that it was asked at, and the one of the client.
func whereAsked(w http.ResponseWriter, r *http.Request) {
	client, _, _ := net.SplitHostPort(r.RemoteAddr)
	// A failed write is a wrong answer in the test.
	fmt.Fprintf(w, "%v for %s", r.Context().Value(http.LocalAddrContextKey), client)
}

// serveAt answers in a network namespace until the test ends.
func serveAt(t *testing.T, path string, ports ...int) {
	t.Helper()
	for _, port := range ports {
		var l net.Listener
		expect.NoError(t, netns.Do(path, func() (err error) {
			l, err = net.Listen("tcp4", fmt.Sprint(":", port))
			return err
		}))
		server := &http.Server{Handler: http.HandlerFunc(whereAsked)}
		done := make(chan error, 1)
		go func() { done <- server.Serve(l) }()
		t.Cleanup(func() {
			expect.NoError(t, server.Close())
			expect.Is(t, expect.Await(t, "the end of the server", done), http.ErrServerClosed)
		})
	}
}

// ask returns the answer at an address, asked in a network namespace.
func ask(path, address string, patience time.Duration) (answer string, err error) {
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = netns.Do(path, func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}}
	response, err := client.Get("http://" + address)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

// wantAnswer waits for an answer: the program may not listen yet.
func wantAnswer(t *testing.T, path, address, want string) {
	t.Helper()
	var answer string
	expect.Eventually(t, "an answer at "+address, func() (ok bool) {
		var err error
		answer, err = ask(path, address, expect.Patience)
		return err == nil
	})
	expect.Same(t, "answer at "+address, answer, want)
}

// wantSilence checks that packets are dropped: a closed port would refuse at once.
func wantSilence(t *testing.T, path, address string) {
	t.Helper()
	const silence = 300 * time.Millisecond
	answer, err := ask(path, address, silence)
	timeout := net.Error(nil)
	expect.That(t, errors.As(err, &timeout) && timeout.Timeout(), "at %s: answer %q, error %v", address, answer, err)
}
