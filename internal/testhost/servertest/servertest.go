// Package servertest has Backends that do what a test says, and serves them.
package servertest

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/server"
)

// Backend answers as Do says, or each call with the same address, and keeps its calls.
type Backend struct {
	Do func(ctx context.Context, verb string, r *server.Request) (types.Result, error)

	mu    sync.Mutex
	calls []Call
}

// Call is a call of a Backend.
type Call struct {
	Verb    string
	Request *server.Request
}

func (b *Backend) ask(ctx context.Context, verb string, r *server.Request) (types.Result, error) {
	b.mu.Lock()
	b.calls = append(b.calls, Call{verb, r})
	b.mu.Unlock()
	if b.Do == nil {
		return Addressed("eth0", "/run/netns/c1", "10.1.0.7/16"), nil
	}
	return b.Do(ctx, verb, r)
}

func (b *Backend) Add(ctx context.Context, r *server.Request) (types.Result, error) {
	return b.ask(ctx, "ADD", r)
}
func (b *Backend) Del(ctx context.Context, r *server.Request) error {
	return expect.Err(b.ask(ctx, "DEL", r))
}
func (b *Backend) Check(ctx context.Context, r *server.Request) error {
	return expect.Err(b.ask(ctx, "CHECK", r))
}
func (b *Backend) GC(ctx context.Context, r *server.Request) error {
	return expect.Err(b.ask(ctx, "GC", r))
}
func (b *Backend) Status(ctx context.Context, r *server.Request) error {
	return expect.Err(b.ask(ctx, "STATUS", r))
}

// Calls returns the calls so far.
func (b *Backend) Calls() []Call {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

// Verbs returns the verbs of the calls so far.
func (b *Backend) Verbs() (verbs []string) {
	for _, c := range b.Calls() {
		verbs = append(verbs, c.Verb)
	}
	return verbs
}

// Count returns how often a verb was asked for.
func (b *Backend) Count(verb string) (n int) {
	for _, v := range b.Verbs() {
		if v == verb {
			n++
		}
	}
	return n
}

// Last returns the last call.
func (b *Backend) Last() Call {
	all := b.Calls()
	return all[len(all)-1]
}

// Ledger is a server.Ledger that keeps its attachments in memory.
type Ledger struct {
	Backend
	Failing error // of Attachments

	state    sync.Mutex
	Attached []server.Attachment
}

// NewLedger returns a Ledger. Every container gets a result.
func NewLedger(result types.Result) *Ledger {
	l := &Ledger{}
	l.Do = func(_ context.Context, verb string, r *server.Request) (types.Result, error) {
		return result, l.Keep(verb, r)
	}
	return l
}

// Keep changes the attachments as a verb asks.
func (l *Ledger) Keep(verb string, r *server.Request) error {
	l.state.Lock()
	defer l.state.Unlock()
	is := func(a server.Attachment) bool {
		return a.ContainerID == r.ContainerID && a.IfName == r.IfName && a.Network == r.Network
	}
	known := slices.ContainsFunc(l.Attached, is)
	switch {
	case verb == "ADD" && !known:
		l.Attached = append(l.Attached, server.Attachment{ContainerID: r.ContainerID, IfName: r.IfName, Network: r.Network, NetNS: r.NetNS, Began: r.Began})
	case verb == "DEL":
		l.Attached = slices.DeleteFunc(l.Attached, is)
	case verb == "CHECK" && !known:
		return types.NewError(types.ErrUnknownContainer, "not attached", r.ContainerID)
	case verb == "GC":
		l.Attached = slices.DeleteFunc(l.Attached, func(a server.Attachment) bool {
			return a.Network == r.Network && !slices.Contains(r.Valid, types.GCAttachment{ContainerID: a.ContainerID, IfName: a.IfName})
		})
	}
	return nil
}

// Attachments implements server.Ledger.
func (l *Ledger) Attachments(_ context.Context, ids ...string) ([]server.Attachment, error) {
	l.state.Lock()
	defer l.state.Unlock()
	return slices.DeleteFunc(slices.Clone(l.Attached), func(a server.Attachment) bool {
		return len(ids) > 0 && !slices.Contains(ids, a.ContainerID)
	}), l.Failing
}

// Addressed returns a result of an interface with an address.
func Addressed(ifName, path, cidr string) *types100.Result {
	ip, network, err := net.ParseCIDR(cidr)
	if err != nil {
		panic(err)
	}
	return &types100.Result{
		CNIVersion: "1.0.0", Interfaces: []*types100.Interface{{Name: ifName, Sandbox: path}},
		IPs: []*types100.IPConfig{{Interface: types100.Int(0), Address: net.IPNet{IP: ip, Mask: network.Mask}}},
	}
}

// Serve serves a socket until the test ends, or until it shuts the Server down.
func Serve(t testing.TB, b server.Backend, o server.Options, path string) *server.Server {
	t.Helper()
	s := expect.Value(server.New(b, o))(t)
	l := expect.Value(s.Listen(path))(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), expect.Patience)
		defer cancel()
		expect.NoError(t, s.Shutdown(ctx))
		expect.Is(t, expect.Await(t, "the end of Serve", served), http.ErrServerClosed)
	})
	return s
}
