// Package ipam is how a plugin that makes an interface gets addresses for it:
// it delegates to an IPAM plugin (CNI specification 1.1.0, section 4), and puts
// the addresses and routes on the interface. It is the frame of their ADD; see
// [Attach].
package ipam

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/plugin"
)

// releaseTime is how long an address may take to be given back after a
// failure. The context may have ended then, which must not leak the address.
const releaseTime = 10 * time.Second

// lease asks the IPAM plugin for addresses, and calls meanwhile, which needs none
// of them, at the same time: files are written while the kernel makes an
// interface. If either fails, or the result is none that could be put on an
// interface, the addresses are given back; undoing meanwhile is the caller's.
func lease(ctx context.Context, r *plugin.Request, typ string, meanwhile func() error) (*types100.Result, error) {
	if err := Named(r, typ); err != nil {
		return nil, err
	}
	// The other work takes longer, so it begins at once.
	var result *types100.Result
	done := make(chan error, 1)
	go func() {
		done <- guarded(func() (err error) {
			result, err = add(ctx, r, typ)
			return err
		})
	}()
	other := guarded(meanwhile)
	err := <-done
	if other != nil {
		if err == nil {
			other = errors.Join(other, release(ctx, r, typ))
		}
		return nil, errors.Join(other, err)
	}
	return result, err
}

// Named returns an error unless the configuration names an IPAM plugin. It is
// for plugins that need one.
func Named(r *plugin.Request, typ string) error {
	if typ == "" {
		return plugin.Errorf(types.ErrInvalidNetworkConfig, `"ipam": plugin %q needs an IPAM plugin: its "type" is missing`, r.Type)
	}
	return nil
}

// guarded turns a panic, which in a goroutine would end the program, into an
// error.
func guarded(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &types.Error{Code: types.ErrInternal, Msg: fmt.Sprintf("panic: %v", v), Details: string(debug.Stack())}
		}
	}()
	return fn()
}

func add(ctx context.Context, r *plugin.Request, typ string) (*types100.Result, error) {
	result, err := r.Delegate(ctx, "ADD", typ, r.Config)
	if err != nil {
		return nil, fmt.Errorf("IPAM plugin %q: %w", typ, err)
	}
	if _, err := plan(result); err != nil {
		return nil, errors.Join(fmt.Errorf("IPAM plugin %q: %w", typ, err), release(ctx, r, typ))
	}
	return result, nil
}

// release gives the addresses back after a failure.
func release(ctx context.Context, r *plugin.Request, typ string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	return Del(ctx, r, typ)
}

// Del gives the addresses back. Without a type there are none.
func Del(ctx context.Context, r *plugin.Request, typ string) error {
	return delegate(ctx, r, "DEL", typ)
}

// Check has the IPAM plugin check.
func Check(ctx context.Context, r *plugin.Request, typ string) error {
	return delegate(ctx, r, "CHECK", typ)
}

// Status has the IPAM plugin say whether it could give addresses.
func Status(ctx context.Context, r *plugin.Request, typ string) error {
	return delegate(ctx, r, "STATUS", typ)
}

// GC has the IPAM plugin release the addresses of no attachment. Which are
// valid is in the configuration.
func GC(ctx context.Context, r *plugin.Request, typ string) error {
	return delegate(ctx, r, "GC", typ)
}

func delegate(ctx context.Context, r *plugin.Request, verb, typ string) error {
	if typ == "" {
		return nil
	}
	if _, err := r.Delegate(ctx, verb, typ, r.Config); err != nil {
		return fmt.Errorf("IPAM plugin %q: %w", typ, err)
	}
	return nil
}
