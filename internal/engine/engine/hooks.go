package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/run/invoke"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
)

// hooks is what a [runner.Runner] and built-in plugins may ask of an attachment. They keep a
// plugin from other attachments' interfaces, rules and addresses, and note its own.
type hooks struct{ a *attachment }

// Append implements [runner.Attachment].
func (h hooks) Append(e record.Entry) error { return h.a.append(e) }

// Fact implements [contract.Record].
func (h hooks) Fact(key string) json.RawMessage { return h.a.facts.Get(key) }

// Note implements [contract.Record].
func (h hooks) Note(key string, value any) error { return h.a.note(key, value) }

// Durable implements [runner.Attachment].
func (h hooks) Durable() error {
	if err := h.a.op.c.Recorded.Pending().Wait(); err != nil {
		return fmt.Errorf("write the attachment record to the disk: %w", err)
	}
	return nil
}

// Before implements [runner.Attachment].
func (h hooks) Before(call chain.Call, kind runner.Kind) (chain.Call, bool, error) {
	if kind == runner.Executable && call.Verb == "ADD" && call.Plugin == conflist.Loopback {
		// The executable's DEL sets lo down, even if it was up before. Then something
		// else uses it, so After sets it up again. The built-in plugin leaves it alone.
		up, err := h.a.op.c.Place.Lo(h.a.plan.NetNS, false)
		if up && err == nil {
			err = contract.NoteLoWasUp(h)
		}
		if err != nil {
			return call, false, err
		}
	}
	if err := h.sharesAddresses(call, kind); err != nil {
		return call, false, invoke.NotStarted(err)
	}
	return h.sparing(call, kind)
}

// sharesAddresses returns an error if an executed host-local would write its reservations
// where this process does not see them, because it has another root directory. They could
// not be released if its DEL fails.
func (h hooks) sharesAddresses(call chain.Call, kind runner.Kind) error {
	if h.a.op.eng.opts.PluginRoot == "" || call.Verb != "ADD" {
		return nil
	}
	ipam, _, _ := h.a.plugins.Get(conflist.HostLocal)
	if kind != runner.Executable && runner.Kind(ipam.Kind) != runner.Executable {
		return nil
	}
	for _, dir := range leftovers.IPAMDirs(h.a.plan.Network.Config) {
		if err := h.a.op.eng.opts.PluginRoot.Shares(dir); err != nil {
			return fmt.Errorf("data directory of %s: %w", conflist.HostLocal, err)
		}
	}
	return nil
}

// After implements [runner.Attachment].
func (h hooks) After(call chain.Call, kind runner.Kind, err error) error {
	if kind == runner.Executable && call.Verb == "DEL" && call.Plugin == conflist.Loopback && contract.LoWasUp(h) {
		_, lerr := h.a.op.c.Place.Lo(h.a.plan.NetNS, true)
		err = Join(err, lerr)
	}
	if err == nil {
		h.noteDevice(call, kind)
	}
	return err
}

// Fail implements [runner.Attachment].
func (h hooks) Fail(f runner.Failure) error {
	e := h.a.error(f.Verb, WithSentinel(f.Err))
	e.Plugin, e.PluginKind = f.Plugin, string(f.Kind)
	e.Code, e.Msg, e.Details, e.Stderr = f.Code, f.Msg, f.Details, f.Stderr
	return e
}

// Others implements [contract.Record].
func (h hooks) Others(key string) ([]contract.Noted, error) {
	return h.a.op.others(h.a.plan.IfName).Notes(key)
}

// InUse implements [contract.Record].
func (h hooks) InUse() ([]netip.Addr, error) {
	others, err := h.a.op.others(h.a.plan.IfName).InUse()
	if err != nil || h.a.op.c.Recorded.Record == nil {
		return others, err
	}
	return append(others, leftovers.AddressesOf(h.a.op.c.Recorded.Record.Attachments, map[string]bool{h.a.plan.IfName: true})...), nil
}

// Released implements [contract.Record]. While the plugin goes on, the kernel mostly, the
// release gets to the disk.
func (h hooks) Released(dir string) {
	h.a.op.removal.releases.Begin(dir, h.a.op.eng.Store.Records.SyncDir)
}

// sparing returns a DEL's call as it may run, and reports whether it may run at
// all. A plugin may delete by a name or an address that another attachment has
// by now. The sweep, which knows the owners, then deletes the rest.
func (h hooks) sparing(call chain.Call, kind runner.Kind) (chain.Call, bool, error) {
	switch {
	case call.Verb != "DEL" || kind == runner.Registered:
	case call.Plugin == conflist.Firewall && (h.a.inDoubt() || h.a.described().IsZoned()):
		err := h.withoutClaimed(&call)
		return call, err == nil, err
	case call.Plugin == conflist.Bandwidth && (kind == runner.Executable || h.a.progress.partial == nil):
		run, err := h.mayUnshape()
		return call, run, err
	}
	return call, true, nil
}

// mayUnshape reports whether the DEL of the plugin bandwidth may run. It deletes
// a device by a name that other interfaces of the container share, and some of
// other containers.
func (h hooks) mayUnshape() (bool, error) {
	t, done := h.a.target()
	defer done()
	if t.Host == nil {
		return true, nil
	}
	others, err := t.NotItsShaper()
	if others {
		h.a.op.log().Debug("DEL of bandwidth is left to the sweep: the device may be another attachment's", "interface", h.a.plan.IfName)
	}
	return err == nil && !others, err
}

// withoutClaimed removes the addresses of other attachments from the previous
// result: the plugin firewall deletes the rules of all addresses in it.
func (h hooks) withoutClaimed(call *chain.Call) error {
	t, done := h.a.target()
	defer done()
	taken, err := t.Footprint.Addresses, error(nil) // after a reboot only restored rules exist, and the sweep finds those
	switch {
	case h.a.op.c.Place.Rebooted:
	case h.a.described().IsZoned():
		taken, err = t.InZones()
	default:
		taken, err = t.InUse()
	}
	if err != nil {
		return fmt.Errorf("find the present owners of the addresses: %w", err)
	}
	*call, err = call.WithoutAddresses(taken)
	return err
}

// noteDevice notes the interface that an ADD has made, or moved into the
// container, before anything in the container can rename it. Without the note
// only its name identifies it.
func (h hooks) noteDevice(call chain.Call, kind runner.Kind) {
	first := h.a.plan.Network.first()
	if call.Verb != "ADD" || call.Plugin != h.a.plan.Network.Config.Plugins[0].Network.Type || !conflist.Known(first).Makes.NeedsIdentity() ||
		kind == runner.Registered || h.a.inside() == nil || h.a.op.c.Place.Host.Handle == nil {
		return
	}
	d, err := leftovers.Identify(&h.a.op.c.Place.Host.Conns, h.a.op.c.Place.Host.Handle, h.a.inside(), h.a.plan.IfName, first == conflist.HostDevice)
	if err == nil {
		err = h.a.note(leftovers.DeviceFact, d)
	}
	if err != nil {
		h.a.op.log().Debug("the interface is known by its name alone", "interface", h.a.plan.IfName, "error", err)
	}
}

// noteResult adds the result so far, unless the last plugin did not change it.
func (h hooks) noteResult(result json.RawMessage) error {
	if bytes.Equal(h.a.progress.noted, result) {
		return nil
	}
	err := h.a.append(record.Entry{Result: result})
	if err == nil {
		h.a.progress.noted = result
	}
	return err
}

// holdResult is noteResult for a result that no DEL needs: the entry of the ADD's end
// notes it.
func (h hooks) holdResult(result json.RawMessage) error {
	h.a.progress.held = result
	return nil
}
