package cni

import (
	"context"
	"encoding/json"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/sweep"
)

// deviceFact is the key of the note that says which interface is the
// attachment's, a [sweep.Device].
const deviceFact = "interface"

// noteDevice notes which interface an ADD has made, or moved into the container,
// before anything in there can rename it. Without the note it is found by name.
func (a *attachment) noteDevice(ctx context.Context, call chain.Call, kind PluginKind) {
	makes := known.Of(call.Plugin).Makes
	if call.Verb != "ADD" || call.Plugin != a.network.config.Plugins[0].Network.Type || !makes.NeedsIdentity() ||
		kind == PluginRegistered || a.inside() == nil || a.op.host.Handle == nil {
		return
	}
	var d *sweep.Device
	var err error
	if makes == known.Moved {
		d, err = sweep.IdentifyLent(a.op.host.Handle, a.inside(), a.IfName)
	} else {
		d, err = sweep.Identify(ctx, a.inside(), a.IfName)
	}
	if err == nil {
		err = a.Note(deviceFact, d)
	}
	if err != nil {
		a.op.logger.Debug("the interface is known by its name alone", "container", a.op.id, "interface", a.IfName, "error", err)
	}
}

// device is the attachment's interface, nil if that was not noted, or if there is
// none any more: after a reboot the host has its devices back, and with the host's
// namespace they are gone.
func (a *attachment) device() *sweep.Device {
	if a.op.rebooted || a.op.hostGone {
		return nil
	}
	return deviceIn(a.Fact(deviceFact))
}

func deviceIn(fact json.RawMessage) *sweep.Device {
	d := &sweep.Device{}
	if fact == nil || json.Unmarshal(fact, d) != nil {
		return nil
	}
	return d
}

// restoreDevice undoes a renaming by the container before plugins look for its
// interface by name. What cannot be undone is left to the sweep.
func (a *attachment) restoreDevice() {
	d := a.device()
	if d == nil || d.Settled {
		return
	}
	a.lost = true
	if a.inside() == nil {
		return
	}
	found, err := d.Restore(a.inside(), a.IfName, d.HostName != "" && !a.inDoubt())
	if err != nil {
		a.op.logger.Warn("an interface that the container has renamed does not get its name back",
			"container", a.op.id, "interface", a.IfName, "error", err)
	}
	a.lost = !found
	if a.lost && !a.inDoubt() {
		a.op.logger.Warn("the interface is not in the container", "container", a.op.id, "interface", a.IfName)
	}
}

// aim tells the sweep which interface is the attachment's.
func (a *attachment) aim(t *sweep.Target) {
	d := a.device()
	switch {
	case d == nil:
	case d.Settled:
		t.OwnsIf = false
	default:
		t.Device = d
		// Once a DEL was begun, it may be back on the host, and lent to another
		// container, or another one may have what it had.
		t.Lost = a.lost && !a.inDoubt()
		t.LentAgain = func() (bool, error) { return a.lentAgain(d) }
	}
}

// lentAgain reports whether another attachment on record has a device.
func (a *attachment) lentAgain(d *sweep.Device) (bool, error) {
	found, err := a.op.records.List()
	if err != nil {
		return false, err
	}
	for _, f := range found {
		if id := f.Record.ContainerID; id != a.op.id && record.PluginID(id) == a.op.pluginID() {
			continue // this container, made ahead of time
		}
		for _, n := range f.Record.Networks {
			other := deviceIn(n.Facts[deviceFact])
			own := f.Record.ContainerID == a.op.id && n.IfName == a.IfName
			if !own && n.State != record.Deleted && other != nil && !other.Settled && other.Same(d) {
				return true, nil
			}
		}
	}
	return false, nil
}

// settle notes that the interface is gone, or back on the host, where the rest of
// the attachment is not: nothing that is like it is to be taken for it again.
func (a *attachment) settle() {
	f, err := a.footprint()
	if err != nil {
		return
	}
	defer f.close()
	if f.Device == nil {
		return
	}
	done, err := sweep.Settled(f.Target)
	if done && err == nil {
		settled := *f.Device
		settled.Settled = true
		err = a.Note(deviceFact, settled)
	}
	if err != nil {
		a.op.logger.Warn("note that an interface is gone", "container", a.op.id, "interface", a.IfName, "error", err)
	}
}
