package engine

import (
	"errors"
	"fmt"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// deleteIllegible deletes records whose owners cannot be read, unless a namespace is
// kept for one, in which a container may be alive. It logs that nothing finds the other
// leftovers of the containers. All are deleted at once, because a power cut can leave
// many: records of lo alone are not synced.
func (c *recovery) deleteIllegible(found []record.Found) (all []fate) {
	var free []record.Found
	for _, f := range found {
		if path := c.eng.Store.Pins.At(f.File); path != "" {
			all = append(all, fate{id: nameOf(f), skipped: fmt.Errorf("it names no owner, and %s keeps a namespace that may be a live container's; "+
				"if it is not, unmount that and delete %s: %w", path, c.eng.Store.Records.Path(f.File), f.Err)})
			continue
		}
		free = append(free, f)
	}
	if len(free) == 0 {
		return all
	}
	held, err := c.eng.Store.Locks.TryLockAll([]lock.Key{{Name: container.Barrier}}) // a Setup may be about to replace one
	if held == nil {
		for _, f := range free {
			all = append(all, fate{id: nameOf(f), skipped: Join(outcome.ErrBusy, err)})
		}
		return all
	}
	defer func() {
		if err := held.Release(); err != nil {
			c.eng.opts.Logger.Error("release lock", "error", err)
		}
	}()
	return append(all, c.deleteIllegibleAlone(free)...)
}

// deleteIllegibleAlone is deleteIllegible while no ADD or DEL is in progress.
func (c *recovery) deleteIllegibleAlone(found []record.Found) (all []fate) {
	files := make(map[string]error)
	for _, f := range found {
		now, err := c.eng.Store.Records.LoadFile(f.File)
		if now != nil && now.ContainerID == "" && errors.Is(err, record.ErrBad) { // else it is another by now, or gone
			files[f.File] = c.eng.Store.Pins.Discard(f.File)
		}
	}
	if len(files) == 0 {
		return nil
	}
	forgotten := c.forgetUndone(files)
	deleted := []string{}
	for _, f := range found {
		err, illegible := files[f.File]
		if !illegible {
			continue
		}
		if forgotten != nil { // perhaps another's
			err = Join(err, c.forgetUndone(map[string]error{f.File: nil}))
		}
		if err == nil {
			err = c.eng.Store.Records.Discard(f.File)
		}
		o := fate{id: nameOf(f), err: err}
		if err == nil {
			deleted = append(deleted, f.File)
			o.left = o.id + " says nothing and was deleted; if its container is known, Remove or CleanUp finds the leftovers"
		}
		all = append(all, o)
	}
	if len(deleted) > 0 {
		c.eng.opts.Logger.Error("attachment records are unreadable and were deleted; leftovers of their attachments are possible",
			"files", deleted, "error", found[0].Err)
	}
	return all
}

// forgetUndone deletes from libcni's cache the attachments of illegible records with these
// file names that a power cut has undone. The record of an ADD whose plugins write no file
// is not synced, so a power cut can tear it and leave the cache whole. An attachment that
// may live keeps its cached result, which is all that its DEL has.
func (c *recovery) forgetUndone(files map[string]error) error {
	u := &unrecorded{eng: c.eng, host: c.look.host}
	isOne := func(id string) bool { _, found := files[record.Name(record.ID(id))]; return found }
	return chain.ForgetUnneeded(c.eng.opts.StateDir, isOne, func(cached *libcni.NetworkAttachment) bool {
		list, err := conflist.Parse(cached.Config)
		if err != nil || !conflist.KernelOnly(list.Plugins, func(string) bool { return true }) {
			return false
		}
		_, ended, err := u.judge(cached)
		return isLoAlone(list.Plugins) || ended && err == nil
	})
}

// isTornLo reports whether the earlier attachments of a damaged record are lo alone, of
// which a power cut has torn the record: it is not synced. Nothing of lo survives a power
// cut, so it is dead. Any sign of something else is believed: an attachment that the log,
// the cache or an earlier version's ledger names, another interface, or a namespace that is kept, as it is
// for every container that lives.
func (s *setup) isTornLo(earlier attachments) bool {
	if !s.op.c.Recorded.Damaged || len(earlier) != 1 || len(s.op.c.Recorded.Record.Attachments) > 0 || s.op.eng.Store.Pins.Keeps(s.op.c.Recorded.ID) || s.op.eng.Store.Pins.At(record.Name(s.op.c.Recorded.ID)) != "" {
		return false
	}
	a := earlier[0]
	if !isLoAlone(a.plan.Network.Config.Plugins) || !s.op.c.Place.HasNoDevice(a.plan.NetNS, a.plan.IfName) {
		return false
	}
	entered, err := ledgerOf(s.op.eng).Read()
	if err != nil {
		s.op.log().Warn("read the ledger", "error", err)
		return false
	}
	for key, known := range entered {
		if key.ContainerID == s.op.c.Recorded.PluginID() && key != a.key() && !known.Gone {
			return false
		}
	}
	return true
}

// isLoAlone reports whether a chain is the plugin loopback alone.
func isLoAlone(plugins []*libcni.PluginConfig) bool {
	return len(plugins) == 1 && plugins[0].Network.Type == conflist.Loopback && plugins[0].Network.IPAM.Type == ""
}
