// Package ipam runs the ADD of plugins that make an interface; see [Attach]. It
// delegates the choice of addresses to an IPAM plugin (CNI specification 1.1.0,
// section 4), and assigns the addresses and routes to the interface. It has two such
// plugins: host-local and static.
package ipam

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// Config is the part of the configuration that all interface plugins share.
type Config struct {
	IPAM struct {
		Type string `json:"type"` // empty: the interface gets no address
	} `json:"ipam"`
	DNS types.DNS `json:"dns"`
}

// Maker makes the interface of one attachment; see [Attach].
type Maker interface {
	// Make makes the interface. It needs no address.
	Make(ctx context.Context) error
	// Configure assigns the addresses of the result, if there are any, to the
	// interface, and completes the result.
	Configure(ctx context.Context, result *types100.Result) error
	// Undo undoes Make and Configure as far as they got, even if the context has
	// ended.
	Undo(ctx context.Context) error
}

// Attach runs an ADD. It makes the interface while the IPAM plugin, if typ names
// one, reserves addresses. If anything fails, it removes the interface and
// releases the addresses.
func Attach(ctx context.Context, r *plugin.Request, typ string, m Maker) (*types100.Result, error) {
	leased, err := &types100.Result{}, error(nil)
	if typ == "" {
		err = m.Make(ctx)
	} else {
		leased, err = lease(ctx, r, typ, func() error { return m.Make(ctx) })
	}
	if err != nil {
		return nil, joined.Errors(err, m.Undo(ctx))
	}
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, IPs: leased.IPs, Routes: leased.Routes, DNS: leased.DNS}
	if err := m.Configure(ctx, result); err != nil {
		return nil, joined.Errors(err, m.Undo(ctx), release(ctx, r, typ))
	}
	return result, nil
}

// releaseTime limits the release of an address after a failure. The context may
// have ended by then, which must not leak the address.
const releaseTime = 10 * time.Second

// lease asks the IPAM plugin for addresses, and at the same time calls
// meanwhile, which needs none: files are written while the kernel makes an
// interface. If either fails, or the result does not suit an interface, lease
// releases the addresses; the caller undoes meanwhile.
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
			other = joined.Errors(other, release(ctx, r, typ))
		}
		return nil, joined.Errors(other, err)
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
		return nil, joined.Errors(fmt.Errorf("IPAM plugin %q: %w", typ, err), release(ctx, r, typ))
	}
	return result, nil
}

// release releases the addresses after a failure.
func release(ctx context.Context, r *plugin.Request, typ string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	return Del(ctx, r, typ)
}

// Del releases the addresses. Without a type there are none.
func Del(ctx context.Context, r *plugin.Request, typ string) error {
	return delegate(ctx, r, "DEL", typ)
}

// Status asks the IPAM plugin whether it could assign addresses.
func Status(ctx context.Context, r *plugin.Request, typ string) error {
	return delegate(ctx, r, "STATUS", typ)
}

// CheckWith runs the IPAM plugin's CHECK, and then that of the plugin itself.
func CheckWith(ctx context.Context, r *plugin.Request, p contract.Comparer) error {
	var c Config
	if err := r.Decode(&c); err != nil {
		return err
	}
	if err := delegate(ctx, r, "CHECK", c.IPAM.Type); err != nil {
		return err
	}
	return contract.Check(ctx, r, p)
}

// Collector is the GC of a plugin that has nothing to collect itself.
type Collector struct{}

// GC lets the IPAM plugin release the addresses of attachments that are gone. The
// configuration lists the valid ones; interfaces end with their namespaces.
func (Collector) GC(ctx context.Context, r *plugin.Request, _ []types.GCAttachment) error {
	var c Config
	if err := r.Decode(&c); err != nil {
		return err
	}
	return delegate(ctx, r, "GC", c.IPAM.Type)
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
