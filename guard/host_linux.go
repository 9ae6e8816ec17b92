package guard

import (
	"context"
	"errors"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/nft"
	"github.com/embedcni/cni/netns"
)

// buffer is the size of each kernel buffer: more than the announcements of a bridge with
// a thousand ports that goes, and of a flush of ten thousand rules.
const buffer = 8 << 20

// host is the namespace in which a guard watches for changes.
type host struct {
	ns      *netns.Handle
	changes *links.Listener // nil: not needed
	rules   *nft.Listener   // nil: not needed
	all     interfaces      // when the watch began
}

// openHost watches for changes of these classes in the namespace at a path, or without
// one in that of the calling thread. The caller closes the host.
func openHost(path string, classes Class) (_ *host, err error) {
	h := &host{}
	if path == "" {
		h.ns, err = netns.Current()
	} else {
		h.ns, err = netns.Open(path)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	// The state of the interfaces is needed for addresses and routes too.
	if classes&(Links|Routes) != 0 {
		h.changes, err = links.Listen(h.ns, links.Changes{
			Links: true, Addresses: classes&Links != 0, Queues: classes&Links != 0, Routes: classes&Routes != 0, Buffer: buffer,
		})
		if err != nil {
			return nil, err
		}
		if h.all, err = h.list(); err != nil {
			return nil, err
		}
	}
	if classes&Rules != 0 {
		if h.rules, err = nft.Listen(h.ns, buffer); err != nil {
			return nil, err
		}
	}
	return h, nil
}

func (h *host) close() error {
	var errs []error
	if h.changes != nil {
		errs = append(errs, h.changes.Close())
	}
	if h.rules != nil {
		errs = append(errs, h.rules.Close())
	}
	return errors.Join(append(errs, h.ns.Close())...)
}

// do calls fn in the namespace, on another thread.
func (h *host) do(fn func() error) error { return h.ns.Do(fn) }

// sources have the guard hear of changes.
func (h *host) sources(g *guard) (all []source) {
	if h.changes != nil {
		all = append(all, func(ctx context.Context) error { return h.watchLinks(ctx, g) })
	}
	if h.rules != nil {
		all = append(all, func(ctx context.Context) error { return h.watchRules(ctx, g) })
	}
	return all
}

func (h *host) watchRules(ctx context.Context, g *guard) error {
	for {
		lost, err := h.rules.Next(ctx, func(c nft.Change) { g.hearRules(c.Name) })
		if err != nil {
			return err
		}
		if lost {
			g.hear()
		}
	}
}

// hearRules takes in that another program has taken away rules, or replaced some.
func (g *guard) hearRules(by string) {
	g.mu.Lock()
	g.by = by
	g.mu.Unlock()
	g.hear()
}

// port is an interface, and what matters of it as the port of a bridge.
type port struct {
	links.Link
	vlans links.VLANs
}

// interfaces are those of the host, by index, as last announced.
type interfaces map[int]port

// list reads the state of all interfaces.
func (h *host) list() (all interfaces, err error) {
	c, err := links.Dial(h.ns)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	found, err := c.Links()
	if err != nil {
		return nil, err
	}
	vlans, err := c.PortVLANs()
	if err != nil {
		return nil, err
	}
	all = make(interfaces, len(found))
	for _, l := range found {
		all[l.Index] = port{l, vlans[l.Index]}
	}
	return all, nil
}

func (h *host) watchLinks(ctx context.Context, g *guard) error {
	all := h.all
	for {
		lost, err := h.changes.Next(ctx, func(a links.Announcement) {
			if all.take(a, g.lacks) {
				g.hear()
			}
		})
		if err != nil {
			return err
		}
		if !lost {
			continue
		}
		if all, err = h.list(); err != nil {
			return err
		}
		g.hear()
	}
}

// take takes an announcement in, and reports whether an interface has lost something. An
// addition is no loss; but a new interface may be the bridge that containers lack, so that
// their ports can be repaired now.
func (all interfaces) take(a links.Announcement, lacks func() bool) (lost bool) {
	switch {
	case a.Link != nil && a.Gone:
		delete(all, a.Link.Index)
		return true
	case a.Link != nil:
		now := port{Link: *a.Link}
		before, known := all[now.Index]
		if before.Port.Master == now.Port.Master {
			now.vlans = before.vlans
		}
		all[now.Index] = now
		if !known {
			return lacks()
		}
		return all.hasLost(before, now)
	case a.BridgePort != nil:
		before, known := all[a.BridgePort.Interface]
		now := before
		if now.vlans = a.BridgePort.VLANs; a.BridgePort.Mode != nil {
			now.Port.PortMode = *a.BridgePort.Mode
		}
		if !known || now.Port.Master == 0 {
			return false // it has left the bridge, or is the bridge itself
		}
		all[now.Index] = now
		return all.hasLost(before, now)
	}
	return a.Gone && (a.Queue == nil || isPlugins(a.Queue))
}

// lacks reports whether something is lost now.
func (g *guard) lacks() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.items.areOpen()
}

// hasLost reports whether an interface has lost something since before.
func (all interfaces) hasLost(before, now port) bool {
	switch was, is := before.Port, now.Port; {
	case before.Name != now.Name, before.Up() && !now.Up():
		return true
	case was.Master == 0:
		return false
	case was.Master != is.Master, was.Hairpin && !is.Hairpin, was.Isolated && !is.Isolated:
		return true
	}
	return hasLostVLAN(before.vlans, now.vlans, all[now.Port.Master].DefaultVLAN)
}

// hasLostVLAN reports whether a port has lost a VLAN that a plugin may have given to it.
// The loss of the VLAN that the bridge gives to new ports does not count, since an ADD for
// other VLANs takes it away.
func hasLostVLAN(before, now links.VLANs, standard uint16) bool {
	for _, r := range before {
		for id := int(r.First); id <= int(r.Last); id++ {
			v, ok := now.Find(uint16(id))
			if uint16(id) != standard && (!ok || r.Access && !v.Access) {
				return true
			}
		}
	}
	return false
}

// isPlugins reports whether a queue or a filter is of a kind that plugins make. What they
// replace, such as the queue that the kernel gives to a new interface, is deleted too.
func isPlugins(q *links.HeardQueue) bool {
	if q.Filter {
		return q.Kind == "u32"
	}
	return q.Kind == "tbf" || q.Kind == "ingress"
}
