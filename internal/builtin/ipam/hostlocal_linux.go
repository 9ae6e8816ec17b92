package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// HostLocal is the plugin "host-local". It assigns addresses from configured ranges, and
// keeps them in files, so that an address belongs to one attachment until DEL.
//
// The files are those of the reference plugin (v1.9.1), and so is the
// lock, so that both can work on one directory at the same time:
//
//	/var/lib/cni/networks/podnet/lock                 locked with flock(2)
//	/var/lib/cni/networks/podnet/10.1.0.7             "<container ID>\r\n<interface>"
//	/var/lib/cni/networks/podnet/last_reserved_ip.0   "10.1.0.7", for the first range set
//
// The reference plugin reads every file in each ADD and DEL. A HostLocal that is kept
// remembers the files, and asks the kernel only whether the directory has changed. It does
// not depend on that memory for correctness.
type HostLocal struct {
	memory *thread.Shared[string, directory]

	mu   sync.Mutex
	dirs map[string]*directory
}

// NewHostLocal returns a plugin with empty memory.
func NewHostLocal() *HostLocal { return &HostLocal{memory: &thread.Shared[string, directory]{}} }

// directories have the memory of the process.
var directories thread.Shared[string, directory]

// SharedHostLocal returns a plugin with the memory of all shared ones: a program may have one for
// each container.
func SharedHostLocal() *HostLocal { return &HostLocal{memory: &directories} }

// Add reserves an address of each range set: the requested one if there is one,
// else the next free one. It reserves all or none.
func (p *HostLocal) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	c, err := parseHostLocal(r)
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
	prepared := plainfile.Prepare(c.dir, 0o600) // without a name, it does not survive a power cut
	defer prepared.Discard()
	if err := contract.From(ctx).Durable(); err != nil {
		return nil, err
	}
	err = p.locked(ctx, r, c, true, func(h *held) error {
		if err := h.memo.refresh(h.path); err != nil {
			return err
		}
		h.prepared = prepared
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
func (p *HostLocal) Del(ctx context.Context, r *plugin.Request) error {
	c, err := parseHostLocal(r)
	if err != nil {
		return err
	}
	// Also if an earlier DEL, which was killed, has released them.
	defer contract.From(ctx).Record.Released(c.dir)
	return p.locked(ctx, r, c, false, func(h *held) error {
		if h == nil {
			return nil
		}
		own, _ := holders(r.ContainerID, r.IfName)
		released, err := h.releaseAll(contract.AddressesOf(r.PrevResult), own)
		// An ADD takes exactly one address of each set.
		if err != nil || released == len(c.sets) && !h.memo.known() {
			return err
		}
		if released < len(c.sets) {
			if err := h.memo.reread(h.path); err != nil {
				return err
			}
		}
		return h.releaseHeld(released, r.ContainerID, r.IfName)
	})
}

// Status fails with the code 50 if an Add would find no free address. The
// reference plugin has no STATUS.
func (p *HostLocal) Status(ctx context.Context, r *plugin.Request) error {
	c, err := parseHostLocal(r)
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
		return plugin.Errorf(ErrNotAvailable, "%w", err)
	}
	return nil
}

// Sample returns a result as Add does, but with the first address of every range. It
// reserves nothing.
func (*HostLocal) Sample(r *plugin.Request) (*types100.Result, error) {
	c, err := parseHostLocal(r)
	if err != nil {
		return nil, err
	}
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, Routes: c.routes}
	for _, set := range c.sets {
		for _, of := range set {
			result.IPs = append(result.IPs, of.ipConfig(of.first))
		}
	}
	return result, nil
}

// maxResolvConf is more than any resolver reads.
const maxResolvConf = 1 << 20

// ErrNotAvailable is "plugin not available", CNI specification 1.1.0, section 5.
const ErrNotAvailable = 50

// locked calls f while the configured directory is locked. With create it
// creates the directory; otherwise f gets nil if the directory is missing.
func (p *HostLocal) locked(ctx context.Context, r *plugin.Request, c *hostLocalConfig, create bool, f func(*held) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	h, err := p.directory(c.dir).acquire(ctx, create)
	switch {
	case err == nil:
		err = joined.Errors(f(h), h.release())
	case !create && errors.Is(err, fs.ErrNotExist):
		err = f(nil)
	}
	if err != nil {
		return fmt.Errorf("network %q: %w", r.Name, err)
	}
	return nil
}

// directory returns the directory of a path, always the same one.
func (p *HostLocal) directory(path string) *directory {
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
func ipConfig(p netip.Prefix, gateway net.IP) *types100.IPConfig {
	return &types100.IPConfig{
		Address: net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
		Gateway: gateway,
	}
}

// ipConfig returns an address of the range in the form of a result.
func (r addressRange) ipConfig(addr netip.Addr) *types100.IPConfig {
	return ipConfig(netip.PrefixFrom(addr, r.subnet.Bits()), r.gateway.AsSlice())
}

// Check returns an error unless the attachment holds an address of every range
// set, and all addresses of its result that are in one.
func (p *HostLocal) Check(ctx context.Context, r *plugin.Request) error {
	return contract.Check(ctx, r, p)
}

// Compare compares the files of the reserved addresses with the attachment's
// result. It looks at nothing else: whether the interface has the addresses is
// the matter of the plugin that delegates.
//
// A reservation that is gone is made again if nobody else has reserved the
// address since. The container uses the address, so that otherwise the next one
// would get it too.
//
// It does not take the directory's lock: the holder may hang, and nobody else changes the
// files of an attachment that is not being attached or detached.
func (p *HostLocal) Compare(_ context.Context, r *plugin.Request, _ *contract.View) (all []contract.Difference, err error) {
	c, err := parseHostLocal(r)
	if err != nil {
		return nil, err
	}
	of := &comparison{plugin: p, conf: c, r: r}
	of.own, of.old = holders(r.ContainerID, r.IfName)
	claimed := contract.AddressesOf(r.PrevResult)
	_, err = os.Stat(c.dir)
	if err == nil && claimed == nil {
		var now index
		now.holders, err = readHolders(c.dir)
		claimed = append(now.of(of.own), now.of(of.old)...)
	}
	if errors.Is(err, fs.ErrNotExist) {
		of.nothing = fmt.Errorf("no address is reserved for container %q: open %s: %w", r.ContainerID, c.dir, fs.ErrNotExist)
	} else if err != nil {
		return nil, fmt.Errorf("network %q: %w", r.Name, err)
	}
	all = of.compare(claimed)
	for i := range all {
		all[i].Err = fmt.Errorf("network %q: %w", r.Name, all[i].Err)
	}
	return all, nil
}

// comparison compares the reservations of one attachment.
type comparison struct {
	plugin *HostLocal
	conf   *hostLocalConfig
	r      *plugin.Request

	own, old string // see holders
	nothing  error  // there is no directory
}

// compare returns the sets of which the attachment holds none of the claimed
// addresses. A further one in a set may come from a later plugin.
func (c *comparison) compare(claimed []netip.Addr) (all []contract.Difference) {
	for i, set := range c.conf.sets {
		var inSet []contract.Difference
		found := false
		for _, addr := range claimed {
			if _, ok := set.find(addr); !ok {
				continue
			}
			d, held := c.reservation(addr)
			found = found || held
			inSet = append(inSet, d)
		}
		if found {
			continue
		}
		d := contract.Difference{
			Kind: contract.Reservation, Object: fmt.Sprintf("range set %d, %s", i, set), Wanted: c.own,
			Err: c.nothing, Why: "it is not known which address is the attachment's",
		}
		if d.Err == nil {
			d.Err = fmt.Errorf("container %q has no address of the range set %d, %s", c.r.ContainerID, i, set)
		}
		if n := len(inSet); n > 0 {
			d.Err = inSet[n-1].Err
			if n == 1 {
				d = inSet[0]
			}
		}
		all = append(all, d)
	}
	return all
}

// reservation reports whether the attachment holds an address, or else the
// difference.
func (c *comparison) reservation(addr netip.Addr) (d contract.Difference, held bool) {
	d = contract.Difference{Kind: contract.Reservation, Object: addr.String(), Wanted: c.own, Err: c.nothing}
	d.Fix = func(ctx context.Context) error { return c.reserveAgain(ctx, addr) }
	if c.nothing != nil {
		return d, false
	}
	content, err := readFile(c.conf.dir + "/" + addr.String())
	text := strings.TrimSpace(content)
	switch {
	case err != nil:
		d.Err = fmt.Errorf("the address %s of container %q is not reserved: %w", addr, c.r.ContainerID, pathError("read", c.conf.dir+"/"+addr.String(), err))
		if !errors.Is(err, unix.ENOENT) {
			d.Fix, d.Why = nil, "the file cannot be read"
		}
	case text == c.own, text == c.old:
		return contract.Difference{}, true
	default:
		d.Found, d.Fix, d.Why = cmp.Or(text, "an empty file"), nil, "somebody else has it"
		d.Err = fmt.Errorf("the address %s of container %q is reserved for %q", addr, c.r.ContainerID, text)
	}
	return d, false
}

// reserveAgain reserves the address, unless somebody else has it by now.
func (c *comparison) reserveAgain(ctx context.Context, addr netip.Addr) error {
	return c.plugin.locked(ctx, c.r, c.conf, true, func(h *held) error {
		ok, err := h.reserve(addr, holderOf(c.r.ContainerID, c.r.IfName))
		if ok || err != nil {
			return err
		}
		content, err := readFile(h.file(addr.String()))
		if err == nil && strings.TrimSpace(content) != c.own {
			err = fmt.Errorf("the address %s is reserved for %q by now", addr, strings.TrimSpace(content))
		}
		return err
	})
}
