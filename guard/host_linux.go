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
	ns    *netns.Handle
	links *links.Losses // nil: not needed
	rules *nft.Listener // nil: not needed
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
	if classes&(Links|Routes) != 0 {
		if h.links, err = links.WatchLosses(h.ns, classes&Links != 0, classes&Routes != 0, buffer); err != nil {
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
	if h.links != nil {
		errs = append(errs, h.links.Close())
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
	if h.links != nil {
		all = append(all, func(ctx context.Context) error { return h.watchLinks(ctx, g) })
	}
	if h.rules != nil {
		all = append(all, func(ctx context.Context) error { return h.watchRules(ctx, g) })
	}
	return all
}

func (h *host) watchRules(ctx context.Context, g *guard) error {
	for {
		// Another program has taken away rules, or replaced some.
		lost, err := h.rules.Next(ctx, func(c nft.Change) {
			g.locked(func() { g.by = c.Name })
			g.hear()
		})
		if err != nil {
			return err
		}
		if lost {
			g.hear()
		}
	}
}

// watchLinks has the guard hear of losses. A new interface may be the bridge that
// containers lack, so that their ports can be repaired now.
func (h *host) watchLinks(ctx context.Context, g *guard) error {
	for {
		lost, added, err := h.links.Next(ctx)
		if err != nil {
			return err
		}
		if added && !lost {
			g.locked(func() { lost = g.suspects.areOpen() })
		}
		if lost {
			g.hear()
		}
	}
}
