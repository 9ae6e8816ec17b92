package multus

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/server"
)

// scriptedBackend attaches nothing. It answers ADD as the scripted plugin does, unless fail has an
// error for the verb.
type scriptedBackend struct {
	fail func(ctx context.Context, verb string) error

	mu       sync.Mutex
	verbs    []string
	requests []server.Request
}

func (b *scriptedBackend) ask(ctx context.Context, verb string, r *server.Request) error {
	b.mu.Lock()
	b.verbs, b.requests = append(b.verbs, verb), append(b.requests, *r)
	b.mu.Unlock()
	if b.fail != nil {
		return b.fail(ctx, verb)
	}
	return nil
}

func (b *scriptedBackend) attach(ctx context.Context, verb string, r *server.Request) (types.Result, error) {
	if err := b.ask(ctx, verb, r); err != nil {
		return nil, err
	}
	return create.CreateFromBytes(fmt.Appendf(nil, `{"cniVersion": %q,
		"interfaces": [{"name": %q, "mac": "02:00:00:00:00:01", "sandbox": %q}],
		"ips": [{"interface": 0, "address": "10.9.0.2/24", "gateway": "10.9.0.1"}],
		"routes": [{"dst": "0.0.0.0/0", "gw": "10.9.0.1"}]}`, "1.0.0", r.IfName, r.NetNS))
}

func (b *scriptedBackend) Add(ctx context.Context, r *server.Request) (types.Result, error) {
	return b.attach(ctx, "ADD", r)
}
func (b *scriptedBackend) Del(ctx context.Context, r *server.Request) error {
	return b.ask(ctx, "DEL", r)
}
func (b *scriptedBackend) Check(ctx context.Context, r *server.Request) error {
	return b.ask(ctx, "CHECK", r)
}
func (b *scriptedBackend) GC(ctx context.Context, r *server.Request) error {
	return b.ask(ctx, "GC", r)
}
func (b *scriptedBackend) Status(ctx context.Context, r *server.Request) error {
	return b.ask(ctx, "STATUS", r)
}

func (b *scriptedBackend) DelegateAdd(ctx context.Context, r *server.Request, _ *server.InterfaceAttributes) (types.Result, error) {
	return b.attach(ctx, "delegate ADD", r)
}
func (b *scriptedBackend) DelegateDel(ctx context.Context, r *server.Request) error {
	return b.ask(ctx, "delegate DEL", r)
}
func (b *scriptedBackend) DelegateCheck(ctx context.Context, r *server.Request) error {
	return b.ask(ctx, "delegate CHECK", r)
}

// asked returns the verbs of the calls so far.
func (b *scriptedBackend) asked() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.verbs)
}

// serve has this library serve Multus' socket until the test ends, or until the result is
// called, which begins a shutdown and returns without waiting for its end.
func serve(t *testing.T, b server.Backend) (shutdown func()) {
	t.Helper()
	s := expect.Value(server.New(b, server.Options{Kubernetes: true}))(t)
	expect.NoError(t, os.MkdirAll(runDir, 0o700))
	listener := expect.Value(s.Listen(socket))(t)
	served, ended := make(chan error, 1), make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	var once sync.Once
	shutdown = func() {
		once.Do(func() { go func() { ended <- s.Shutdown(context.Background()) }() })
	}
	t.Cleanup(func() {
		shutdown()
		expect.NoError(t, expect.Await(t, "the end of the shutdown", ended))
		expect.Is(t, expect.Await(t, "the end of Serve", served), http.ErrServerClosed)
	})
	return shutdown
}
