package cni

import (
	"fmt"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// avoidOthers has the operation go on as if no path were given where the one it
// was given leads to another container's namespace: that one's interfaces are not
// to go, and the own ones went with their namespace. It is for removals without a
// record, which have nothing but the path to go by.
func (op *operation) avoidOthers() {
	if op.container == nil || op.isUntouched(op.container) && !op.kept.holds(op.container) || !op.isOthers(op.container, op.path, true) {
		return
	}
	op.leave()
	op.path = ""
}

// isUntouched reports whether no DEL can take anything from anybody in a namespace:
// it has no interface but lo, and that is down. Programs that remove a container
// before each Setup come with such a one, and need not wait until all records are
// read if none of them keeps it.
func (op *operation) isUntouched(ns *netns.Handle) bool {
	found, err := op.host.Links(ns)
	return err == nil && !slices.ContainsFunc(found, func(l links.Link) bool {
		return l.Up() || l.Flags&unix.IFF_LOOPBACK == 0 && !l.IsFallback()
	})
}

// isOthers reports whether a namespace is, or may be, another container's. It
// reads all records, so that nobody asks who has a record to go by.
// With doubts it is one as well as long as that is not certain.
func (op *operation) isOthers(ns *netns.Handle, path string, doubts bool) bool {
	other, err := op.otherIn(ns, doubts)
	if other == "" && (err == nil || !doubts) {
		return false
	}
	op.logger.Warn("the network namespace is not entered, since it is or may be another container's by now",
		"container", op.id, "path", path, "other", other, "error", err)
	return true
}

// otherIn returns another container that is attached in the namespace, as far as
// records or libcni's cache say; empty if there is none.
func (op *operation) otherIn(ns *netns.Handle, doubts bool) (string, error) {
	now, err := op.bootID()
	if err != nil {
		return "", err
	}
	found, err := op.records.List()
	if err != nil {
		return "", err
	}
	recorded := map[record.PluginID]bool{record.PluginID(op.id): true, op.pluginID(): true}
	for _, f := range found {
		rec := f.Record
		switch {
		case rec != nil && (rec.ContainerID == op.id || record.PluginID(rec.ContainerID) == op.pluginID()):
		case rec == nil || f.Err != nil:
			if doubts && op.kept.mayKeep(f.File, ns.ID()) {
				return "that of the record in file " + f.File, f.Err
			}
		default:
			recorded[rec.Plugins()] = true
			if rec.Boot == now && (netns.ID{Dev: rec.NetNS.Dev, Ino: rec.NetNS.Ino}) == ns.ID() {
				return string(rec.ContainerID), nil
			}
		}
	}
	return op.cachedIn(ns, recorded)
}

// cachedIn is otherIn for containers that only libcni's cache knows, as go-cni
// attaches them. A cached path can be out of date too, so that the interface must
// be there as well.
func (op *operation) cachedIn(ns *netns.Handle, recorded map[record.PluginID]bool) (string, error) {
	cached, err := libcni.NewCNIConfigWithCacheDir(nil, op.stateDir, nil).GetCachedAttachments("")
	if err != nil {
		return "", fmt.Errorf("cached attachments: %w", err)
	}
	for _, c := range cached {
		if recorded[record.PluginID(c.ContainerID)] || !nsfind.LeadsTo(c.NetNS, ns) {
			continue
		}
		if there, err := op.host.HasLink(ns, c.IfName); there || err != nil {
			return c.ContainerID, err
		}
	}
	return "", nil
}

// avoidOthers empties the attachment's path if it leads to another container's
// namespace for certain: Setup takes an attachment without a path for dead.
func (a *attachment) avoidOthers() {
	if a.NetNS == "" {
		return
	}
	ns, err := netns.Open(a.NetNS)
	if err != nil {
		return // it leads nowhere
	}
	if a.op.isOthers(ns, a.NetNS, false) {
		a.NetNS = ""
	}
	_ = ns.Close() // was only looked at
}

// mayKeep reports whether the namespace may be that of a record of which only the
// file's name is known.
func (k *keeper) mayKeep(file string, ns netns.ID) bool {
	pinned, err := nsfind.Identify(k.file(file))
	return err != nil || pinned == ns
}
