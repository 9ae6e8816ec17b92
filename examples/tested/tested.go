// Package tested is a small part of a program that attaches containers, with its test: it
// shows how package cnitest is used, whose documentation quotes the test.
package tested

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/embedcni/cni"
)

// Network has the methods of a *cni.Runtime that the program calls. A cnitest.Fake has
// them too.
type Network interface {
	Setup(ctx context.Context, id, path string, opts ...cni.NamespaceOpts) (*cni.Result, error)
	Remove(ctx context.Context, id, path string, opts ...cni.NamespaceOpts) error
}

// Program attaches containers.
type Program struct{ net Network }

// New returns a program that attaches containers with net.
func New(net Network) *Program { return &Program{net} }

// Start attaches a container, and returns its address. If a plugin was killed, it tries
// once more.
func (p *Program) Start(ctx context.Context, id, path string) (netip.Addr, error) {
	result, err := p.net.Setup(ctx, id, path)
	if errors.Is(err, cni.ErrPluginKilled) {
		result, err = p.net.Setup(ctx, id, path)
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("start %s: %w", id, err)
	}
	return result.IPv4().IP(), nil
}

// Stop detaches a container.
func (p *Program) Stop(ctx context.Context, id string) error {
	if err := p.net.Remove(ctx, id, ""); err != nil {
		return fmt.Errorf("stop %s: %w", id, err)
	}
	return nil
}
