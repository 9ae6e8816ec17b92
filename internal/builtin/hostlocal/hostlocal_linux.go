package hostlocal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/plainfile"
	"github.com/embedcni/cni/internal/shared"
	"github.com/embedcni/cni/plugin"
)

// Plugin is the plugin "host-local". A Plugin that is kept need not read a
// network's files again. It does not depend on that memory for correctness.
type Plugin struct {
	memory *shared.Values[string, directory]

	mu   sync.Mutex
	dirs map[string]*directory
}

// New returns a plugin with empty memory.
func New() *Plugin { return &Plugin{memory: &shared.Values[string, directory]{}} }

// directories have the memory of the process.
var directories shared.Values[string, directory]

// Shared returns a plugin with the memory of all shared ones: a program may have one for
// each container.
func Shared() *Plugin { return &Plugin{memory: &directories} }

// Add reserves an address of each range set: the requested one if there is one,
// else the next free one. It reserves all or none.
func (p *Plugin) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	c, err := parse(r)
	if err != nil {
		return nil, err
	}
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, Routes: c.routes}
	if c.resolvConf != "" {
		text, err := plainfile.ReadUpTo(c.resolvConf, maxResolvConf)
		if err != nil {
			return nil, fmt.Errorf("network %q: ipam.resolvConf: %w", r.Name, err)
		}
		result.DNS = parseResolvConf(string(text))
	}
	// Outside the lock, for which all containers of the network wait.
	g := caller.From(ctx)
	prepared := plainfile.Prepare(c.dir, 0o600) // without a name, it does not survive a power cut
	defer prepared.Discard()
	if err := g.Durable(); err != nil {
		return nil, err
	}
	err = p.locked(ctx, r, c, true, func(h *held) error {
		if err := h.memo.refresh(h.path); err != nil {
			return err
		}
		h.prepared = prepared
		h.claim = func(addr netip.Addr) { g.Record.Claim(addr) }
		result.IPs, err = h.allocate(c, r.ContainerID, r.IfName)
		return err
	})
	if err != nil {
		return nil, err
	}
	return result, nil
}

// Del releases the addresses of the attachment. It first looks at those in the
// result, and reads every file only if they are not all.
func (p *Plugin) Del(ctx context.Context, r *plugin.Request) error {
	c, err := parse(r)
	if err != nil {
		return err
	}
	// Also if an earlier DEL, which was killed, has released them.
	defer caller.From(ctx).Record.Released(c.dir)
	return p.locked(ctx, r, c, false, func(h *held) error {
		if h == nil {
			return nil
		}
		holder := holderOf(r.ContainerID, r.IfName)
		released, err := h.releaseAll(compare.AddressesOf(r.PrevResult), holder)
		// An ADD takes exactly one address of each set.
		if err != nil || released == len(c.sets) && !h.memo.known() {
			return err
		}
		if released < len(c.sets) {
			if err := h.memo.reread(h.path); err != nil {
				return err
			}
		}
		return h.releaseHeld(released, r.ContainerID, holder)
	})
}

// Status fails with the code 50 if an Add would find no free address. The
// reference plugin has no STATUS.
func (p *Plugin) Status(ctx context.Context, r *plugin.Request) error {
	c, err := parse(r)
	if err != nil {
		return err
	}
	err = p.locked(ctx, r, c, false, func(h *held) error {
		if h == nil {
			return nil // the first Add creates it
		}
		if err := h.memo.refresh(h.path); err != nil {
			return err
		}
		for _, set := range c.sets {
			if !h.memo.hasFree(set) {
				return fmt.Errorf("all addresses of the range set %s are in use", set)
			}
		}
		return nil
	})
	if err != nil {
		return plugin.Errorf(errNotAvailable, "%w", err)
	}
	return nil
}

// Sample returns a result as Add does, but with the first address of every range. It
// reserves nothing.
func (*Plugin) Sample(r *plugin.Request) (*types100.Result, error) {
	c, err := parse(r)
	if err != nil {
		return nil, err
	}
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, Routes: c.routes}
	for _, set := range c.sets {
		for _, of := range set {
			result.IPs = append(result.IPs, ipConfig(of.first, of))
		}
	}
	return result, nil
}

// maxResolvConf is more than any resolver reads.
const maxResolvConf = 1 << 20

// errNotAvailable is "plugin not available", CNI specification 1.1.0, section 5.
const errNotAvailable = 50

// locked calls f while the configured directory is locked. With create it
// creates the directory; otherwise f gets nil if the directory is missing.
func (p *Plugin) locked(ctx context.Context, r *plugin.Request, c *config, create bool, f func(*held) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	h, err := p.directory(c.dir).acquire(ctx, create)
	switch {
	case err == nil:
		err = errors.Join(f(h), h.release())
	case !create && errors.Is(err, fs.ErrNotExist):
		err = f(nil)
	}
	if err != nil {
		return fmt.Errorf("network %q: %w", r.Name, err)
	}
	return nil
}

// directory returns the directory of a path, always the same one.
func (p *Plugin) directory(path string) *directory {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.dirs[path]
	if d == nil {
		if p.dirs == nil {
			p.dirs = make(map[string]*directory)
		}
		d = p.memory.Get(path, func() *directory { return newDirectory(path) })
		p.dirs[path] = d
	}
	return d
}

// ipConfig returns an address in the form of a result.
func ipConfig(addr netip.Addr, r addressRange) *types100.IPConfig {
	return &types100.IPConfig{
		Address: net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(r.subnet.Bits(), addr.BitLen())},
		Gateway: r.gateway.AsSlice(),
	}
}
