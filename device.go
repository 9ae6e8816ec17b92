package cni

import (
	"context"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/internal/sweep"
)

// noteDevice notes the interface that an ADD has made, or moved into the
// container, before anything in the container can rename it. Without the note
// only its name identifies it.
func (a *attachment) noteDevice(ctx context.Context, call chain.Call, kind runner.Kind) {
	if call.Verb != "ADD" || call.Plugin != a.network.config.Plugins[0].Network.Type || !known.Of(call.Plugin).Makes.NeedsIdentity() ||
		kind == runner.Registered || a.inside() == nil || a.op.Host.Handle == nil {
		return
	}
	var d *footprint.Device
	var err error
	if call.Plugin == known.HostDevice {
		d, err = sweep.IdentifyLent(a.op.Host.Handle, a.inside(), a.IfName)
	} else {
		d, err = sweep.Identify(ctx, a.inside(), a.IfName)
	}
	if err == nil {
		err = a.Note(footprint.DeviceFact, d)
	}
	if err != nil {
		a.op.logger.Debug("the interface is known by its name alone", "container", a.op.ID, "interface", a.IfName, "error", err)
	}
}

// restoreDevice undoes a renaming by the container before plugins look for its
// interface by name. If that fails, the sweep finds the interface.
func (a *attachment) restoreDevice() {
	d := a.described().KnownDevice()
	if d == nil || d.Settled {
		return
	}
	a.lost = true
	if a.inside() == nil {
		return
	}
	found, err := sweep.Restore(d, a.inside(), a.IfName, d.HostName != "" && !a.inDoubt())
	if err != nil {
		a.op.logger.Warn("an interface that the container has renamed does not get its name back",
			"container", a.op.ID, "interface", a.IfName, "error", err)
	}
	a.lost = !found
	if a.lost && !a.inDoubt() {
		a.op.logger.Warn("the interface is not in the container", "container", a.op.ID, "interface", a.IfName)
	}
}

// settle notes that the interface is gone, or back on the host, while other
// leftovers of the attachment remain. A later interface like it then counts as
// another's.
func (a *attachment) settle(ctx context.Context) {
	t, done := a.target()
	defer done()
	if t.Interface.Device == nil {
		return
	}
	gone, err := sweep.Settled(ctx, t)
	if gone && err == nil {
		settled := *t.Interface.Device
		settled.Settled = true
		err = a.Note(footprint.DeviceFact, settled)
	}
	if err != nil {
		a.op.logger.Warn("note that an interface is gone", "container", a.op.ID, "interface", a.IfName, "error", err)
	}
}
