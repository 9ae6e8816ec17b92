package hostlocal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/plugin"
)

// Check returns an error unless the attachment holds an address of every range
// set, and all addresses of its result that are in one.
func (p *Plugin) Check(ctx context.Context, r *plugin.Request) error { return compare.Check(ctx, r, p) }

// Compare compares the files of the reserved addresses with the attachment's
// result. It looks at nothing else: whether the interface has the addresses is
// the matter of the plugin that delegates.
//
// A reservation that is gone is made again if nobody else has reserved the
// address since. The container uses the address, so that otherwise the next one
// would get it too.
func (p *Plugin) Compare(ctx context.Context, r *plugin.Request, _ *compare.View) (all []compare.Difference, err error) {
	c, err := parse(r)
	if err != nil {
		return nil, err
	}
	err = p.locked(ctx, r, c, false, func(h *held) (err error) {
		claimed := compare.AddressesOf(r.PrevResult)
		if claimed == nil && h != nil {
			if err := h.memo.reread(h.path); err != nil {
				return err
			}
			claimed = h.memo.heldBy(r.ContainerID, holderOf(r.ContainerID, r.IfName))
		}
		all = (&comparison{Plugin: p, config: c, r: r, held: h}).compare(claimed)
		return nil
	})
	for i := range all {
		all[i].Err = fmt.Errorf("network %q: %w", r.Name, all[i].Err)
	}
	return all, err
}

// comparison compares the reservations of one attachment.
type comparison struct {
	*Plugin
	*config
	r    *plugin.Request
	held *held // nil: there is no directory
}

// compare returns the sets of which the attachment holds none of the claimed
// addresses. A further one in a set may come from a later plugin.
func (c *comparison) compare(claimed []netip.Addr) (all []compare.Difference) {
	for i, set := range c.sets {
		var inSet []compare.Difference
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
		d := compare.Difference{
			Kind: compare.Reservation, Object: fmt.Sprintf("range set %d, %s", i, set), Wanted: c.holder(),
			Err: c.noDirectory(), Why: "it is not known which address is the attachment's",
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

func (c *comparison) holder() string { return strings.TrimSpace(holderOf(c.r.ContainerID, c.r.IfName)) }

// noDirectory returns an error if there is no directory.
func (c *comparison) noDirectory() error {
	if c.held != nil {
		return nil
	}
	return fmt.Errorf("no address is reserved for container %q: open %s: %w", c.r.ContainerID, c.dir, fs.ErrNotExist)
}

// reservation reports whether the attachment holds an address, or else the
// difference.
func (c *comparison) reservation(addr netip.Addr) (d compare.Difference, held bool) {
	d = compare.Difference{Kind: compare.Reservation, Object: addr.String(), Wanted: c.holder(), Err: c.noDirectory()}
	d.Fix = func(ctx context.Context) error { return c.reserveAgain(ctx, addr) }
	if c.held == nil {
		return d, false
	}
	content, err := readFile(c.held.file(addr.String()))
	text := strings.TrimSpace(content)
	switch {
	case err != nil:
		d.Err = fmt.Errorf("the address %s of container %q is not reserved: %w", addr, c.r.ContainerID, pathError("read", c.dir+"/"+addr.String(), err))
		if !errors.Is(err, unix.ENOENT) {
			d.Fix, d.Why = nil, "the file cannot be read"
		}
	case text == c.holder(), text == strings.TrimSpace(c.r.ContainerID):
		return compare.Difference{}, true
	default:
		d.Found, d.Fix, d.Why = cmp.Or(text, "an empty file"), nil, "somebody else has it"
		d.Err = fmt.Errorf("the address %s of container %q is reserved for %q", addr, c.r.ContainerID, text)
	}
	return d, false
}

// reserveAgain reserves the address, unless somebody else has it by now.
func (c *comparison) reserveAgain(ctx context.Context, addr netip.Addr) error {
	g := caller.From(ctx)
	return c.locked(ctx, c.r, c.config, true, func(h *held) error {
		h.claim = func(addr netip.Addr) { g.Record.Claim(addr) }
		ok, err := h.reserve(addr, holderOf(c.r.ContainerID, c.r.IfName))
		if ok || err != nil {
			return err
		}
		content, err := readFile(h.file(addr.String()))
		if err == nil && strings.TrimSpace(content) != c.holder() {
			err = fmt.Errorf("the address %s is reserved for %q by now", addr, strings.TrimSpace(content))
		}
		return err
	})
}
