package guard

import (
	"context"
	"io"
	"slices"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/kernel/nft"
	"github.com/embedcni/cni/netns"
)

// buffer is the size of each kernel buffer: more than the announcements of a bridge with
// a thousand ports that goes, and of a flush of ten thousand rules.
const buffer = 8 << 20

// host is the namespace in which a guard watches for changes.
type host struct {
	ns      *netns.Handle
	sources []source // have the guard hear of changes
	open    []io.Closer
}

// openHost watches for changes of the guarded classes, in the configured namespace or that
// of the calling thread. The caller closes the host.
func (g *guard) openHost() (_ *host, err error) {
	h := &host{}
	if path := g.config.HostNetNS; path == "" {
		h.ns, err = netns.Current()
	} else {
		h.ns, err = netns.Open(path)
	}
	if err != nil {
		return nil, err
	}
	h.open = append(h.open, h.ns)
	defer func() {
		if err != nil {
			err = joined.Errors(err, h.close())
		}
	}()
	classes := g.options.Classes
	if classes&(Links|Routes) != 0 {
		losses, err := links.WatchLosses(h.ns, classes&Links != 0, classes&Routes != 0, buffer)
		if err != nil {
			return nil, err
		}
		h.open = append(h.open, losses)
		h.sources = append(h.sources, func(ctx context.Context) error { return g.watchLinks(ctx, losses) })
	}
	if classes&Rules != 0 {
		rules, err := nft.Listen(h.ns, buffer)
		if err != nil {
			return nil, err
		}
		h.open = append(h.open, rules)
		h.sources = append(h.sources, func(ctx context.Context) error { return g.watchRules(ctx, rules) })
	}
	return h, nil
}

func (h *host) close() (err error) {
	for _, c := range slices.Backward(h.open) {
		err = joined.Errors(err, c.Close())
	}
	return err
}

// do calls fn in the namespace, on another thread.
func (h *host) do(fn func() error) error { return h.ns.Do(fn) }

// watchLinks has the guard hear of losses. A new interface may be the bridge that
// containers lack, so that their ports can be repaired now.
func (g *guard) watchLinks(ctx context.Context, losses *links.Losses) error {
	for {
		lost, added, err := losses.Next(ctx)
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

// watchRules has the guard hear of it when another program takes away rules, or replaces
// some.
func (g *guard) watchRules(ctx context.Context, rules *nft.Listener) error {
	for {
		lost, err := rules.Next(ctx, func(c nft.Change) {
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
