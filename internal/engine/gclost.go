package engine

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/leftovers"
	"github.com/embedcni/cni/internal/record"
)

// attached are all attachments that a host shows: those on record, of every owner, and
// those in libcni's cache.
type attached struct {
	found  []record.Found
	cached []*libcni.NetworkAttachment
}

func (g *collection) list() error {
	found, err := g.eng.Store.Records.List()
	if err != nil {
		return err
	}
	g.left = &attached{found: found}
	g.left.cached, err = chain.AllCached(g.eng.opts.StateDir, "")
	return err
}

// unrecorded are the attachments in libcni's cache, for a GC that judges those without a
// record. Either their records were lost, or another program has attached them.
type unrecorded struct {
	eng  *Engine
	host *hostns.NetNS
	all  []*libcni.NetworkAttachment
}

// stays reports whether an attachment that is in an earlier version's ledger and on no
// record must stay, because libcni's cache has it. left is the report's text for it. An
// attachment that once left nothing behind is gone: the cache has another program's.
func (u *unrecorded) stays(key leftovers.Key, known leftovers.Known) (left []string, stays bool) {
	i := slices.IndexFunc(u.all, func(c *libcni.NetworkAttachment) bool { return leftovers.KeyOf(c) == key })
	if i < 0 {
		return nil, false
	}
	if known.Gone {
		return nil, true
	}
	lives, ended, err := u.judge(u.all[i])
	if ended && err == nil {
		return nil, false
	}
	return []string{isLeft(key, lives, false, err)}, true
}

// ended returns a line for each attachment that only libcni's cache has, unless it lives. Nobody
// but the cache says whose it was, so it stays.
func (u *unrecorded) ended(isKnown func(leftovers.Key) bool) (left []string) {
	for _, c := range u.all {
		if key := leftovers.KeyOf(c); !isKnown(key) {
			if lives, ended, err := u.judge(c); !lives || err != nil {
				left = append(left, isLeft(key, lives, ended, err))
			}
		}
	}
	return left
}

// isLeft returns the report's line about an attachment that stays.
func isLeft(key leftovers.Key, lives, ended bool, err error) string {
	why := "nothing shows whether it lives"
	switch {
	case err != nil:
		why = fmt.Sprintf("it is not known whether it lives: %v", err)
	case lives:
		why = "it lives"
	case ended:
		why = "its interfaces are gone"
	}
	return fmt.Sprintf("%s %s on network %q: it is on no record, but in libcni's cache, perhaps by another program, and %s; "+
		"call Remove if the container is gone", key.ContainerID, key.IfName, key.Network, why)
}

// judge looks for a cached attachment in its namespace and on the host.
func (u *unrecorded) judge(c *libcni.NetworkAttachment) (lives, ended bool, err error) {
	list, err := conflist.Parse(c.Config)
	if err != nil {
		return false, false, fmt.Errorf("its cached configuration: %w", err)
	}
	cached := chain.CachedAs(u.eng.opts.StateDir, c.Network, c.ContainerID, c.IfName)
	cached.List = list
	return container.Remains(u.host, c.NetNS, record.Attachment{
		Network: c.Network, IfName: c.IfName, Result: json.RawMessage(cached.Result()),
	})
}
