package engine

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/leftovers"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
)

// chain returns the chain of the attachment's plugins, for one verb.
func (a *attachment) chain() *chain.Chain {
	c := &chain.Chain{List: a.Network.Config, Path: a.pluginDirs(), CacheDir: a.op.eng.opts.StateDir, OnResult: a.noteResult}
	if a.op.c == nil {
		return c // nothing runs
	}
	r := a.runner()
	r.Given.Batch = &batch.Batch{}
	if a.Network.IsLo && r.MakesOnlyLo() {
		c.Uncached, c.OnResult = true, a.holdResult
	}
	c.Run = func(ctx context.Context, call chain.Call) (chain.Output, error) {
		out, err := r.Run(ctx, call)
		if call.Verb == "DEL" {
			err = Join(err, a.makeAgain(ctx, a.described().LostWith(call.Plugin)))
		}
		return out, err
	}
	c.OnEnd = func(ctx context.Context, verb string) error {
		if err := r.End(ctx, verb); err != nil || verb != "ADD" {
			return err
		}
		if err := r.Durable(); err != nil {
			return a.error(verb, err)
		}
		return nil
	}
	return c
}

// cached returns the attachment in libcni's cache.
func (a *attachment) cached() chain.Cached {
	return chain.Cached{Dir: a.op.eng.opts.StateDir, List: a.Network.Config, Attachment: &a.Attachment}
}

// pluginDirs returns the plugin directories in the order of the attachment's Setup.
func (a *attachment) pluginDirs() []string { return Ordered(a.op.eng.opts.PluginDirs, a.Dirs) }

// runner returns the runner of the attachment's plugins.
func (a *attachment) runner() *runner.Runner {
	shared := a.op.eng.RunnerOf(a.Network)
	if len(a.Dirs) > 0 || a.standsIn {
		own := *shared
		own.Dirs = a.pluginDirs()
		if a.standsIn {
			own.PreferAll = true
		}
		shared = &own
	}
	r := &runner.Runner{
		Runtime: shared, Plugins: &a.plugins, Network: a.Network.Config,
		ContainerID: a.op.c.ID, IfName: a.IfName, Container: a.inside(), Given: a.given(), Attachment: hooks{a},
	}
	if a.op.c.Host != nil {
		r.Host = a.op.c.Host.Handle
	}
	if file := a.op.c.LockFile(); file != nil {
		r.Inherit = []*os.File{file}
	}
	return r
}

// given returns the values that the attachment's plugins and its sweep are lent.
// Processes that they start keep the container's lock, as plugins do.
func (a *attachment) given() caller.Given {
	g := caller.Given{
		Record:  hooks{a},
		Filters: netfilter.Options{Sockets: &sockets, Held: a.op.c.LockFile(), Siblings: a.Siblings, Records: a.op.eng.Store.Records.Dir()},

		Deletions: &deletions,
	}
	if a.op.c.Host != nil {
		g.Conns = &a.op.c.Host.Conns
	}
	return g
}

// hooks is an attachment while a [runner.Runner] runs its plugins. They keep a plugin
// from other attachments' interfaces, rules and addresses, and note its own.
type hooks struct{ *attachment }

var _ caller.Record = hooks{}

// Durable implements [runner.Attachment].
func (a hooks) Durable() error {
	if err := a.op.c.Pending().Wait(); err != nil {
		return fmt.Errorf("write the attachment record to the disk: %w", err)
	}
	return nil
}

// Before implements [runner.Attachment].
func (a hooks) Before(call chain.Call, kind runner.Kind) (chain.Call, bool, error) {
	if kind == runner.Executable && call.Verb == "ADD" && call.Plugin == known.Loopback {
		// The executable's DEL sets lo down, even if it was up before. Then something
		// else uses it, so After sets it up again. The built-in plugin leaves it alone.
		up, err := a.op.c.LoIsUp(a.NetNS)
		if up && err == nil {
			err = caller.NoteLoWasUp(a)
		}
		if err != nil {
			return call, false, err
		}
	}
	if err := a.sharesAddresses(call, kind); err != nil {
		return call, false, invoke.NotStarted(err)
	}
	return a.sparing(call, kind)
}

// sharesAddresses returns an error if an executed host-local would write its reservations
// where this process does not see them, because it has another root directory. They could
// not be released if its DEL fails.
func (a hooks) sharesAddresses(call chain.Call, kind runner.Kind) error {
	if a.op.eng.opts.PluginRoot == "" || call.Verb != "ADD" {
		return nil
	}
	ipam, _, _ := a.plugins.Get(known.HostLocal)
	if kind != runner.Executable && runner.Kind(ipam.Kind) != runner.Executable {
		return nil
	}
	for _, dir := range leftovers.IPAMDirs(a.Network.Config) {
		if err := a.op.eng.opts.PluginRoot.Shares(dir); err != nil {
			return fmt.Errorf("data directory of %s: %w", known.HostLocal, err)
		}
	}
	return nil
}

// After implements [runner.Attachment].
func (a hooks) After(call chain.Call, kind runner.Kind, err error) error {
	if kind == runner.Executable && call.Verb == "DEL" && call.Plugin == known.Loopback && caller.LoWasUp(a) {
		err = Join(err, a.op.c.SetLoUp(a.NetNS))
	}
	if err == nil {
		a.noteDevice(call, kind)
	}
	return err
}

// Fail implements [runner.Attachment].
func (a hooks) Fail(f runner.Failure) error {
	e := a.error(f.Verb, WithSentinel(f.Err))
	e.Plugin, e.PluginKind = f.Plugin, string(f.Kind)
	e.Code, e.Msg, e.Details, e.Stderr = f.Code, f.Msg, f.Details, f.Stderr
	return e
}

// Others implements [caller.Record].
func (a hooks) Others(key string) ([]caller.Noted, error) { return a.op.others(a.IfName).Notes(key) }

// InUse implements [caller.Record].
func (a hooks) InUse() ([]netip.Addr, error) {
	others, err := a.op.others(a.IfName).InUse()
	if err != nil || a.op.c.Record == nil {
		return others, err
	}
	return append(others, leftovers.AddressesOf(a.op.c.Record.Attachments, map[string]bool{a.IfName: true})...), nil
}

// Claim implements [caller.Record]. It is called with host-local's lock
// held.
func (a hooks) Claim(addr netip.Addr) {
	a.claims.Add(addr)
}

// Released implements [caller.Record]. While the plugin goes on, the kernel mostly, the
// release gets to the disk.
func (a hooks) Released(dir string) {
	a.op.removal.releases.Begin(dir, a.op.eng.Store.Records.SyncDir)
}

// first returns the type of the first plugin, which may make the interface.
func (n *Network) first() string { return n.Config.Plugins[0].Network.Type }

// makesInterface reports whether the first plugin makes the interface. Others
// accept an existing one.
func (n *Network) makesInterface() bool { return known.Of(n.first()).Makes.IsNew() }

// refuseInside refuses a call from inside a registered plugin. The call would
// wait for itself if it is for the same container, or for a GC that waits for
// the plugin.
func (eng *Engine) RefuseInside(ctx context.Context) error {
	call := runner.Inside(ctx, eng.Store.Locks.Path())
	if call == nil {
		return nil
	}
	of := ""
	if call.ContainerID != "" {
		of = " of container " + string(call.ContainerID)
	}
	return fmt.Errorf("%w: %q, at %s%s, would wait for itself; have it delegate, or call when it has returned",
		ErrInsidePlugin, call.Plugin, call.Verb, of)
}

// inDoubt reports whether another container may have the attachment's addresses
// by now: an earlier DEL may have released them, or the machine was rebooted. At
// the first DEL of an attachment, they are still reserved.
func (a *attachment) inDoubt() bool {
	if a.attempted {
		return false // added by this call
	}
	n := a.entry()
	return a.op.c.Rebooted || a.op.c.Damaged || a.state != record.Added || n == nil || n.Failures > 0
}

// sparing returns a DEL's call as it may run, and reports whether it may run at
// all. A plugin may delete by a name or an address that another attachment has
// by now. The sweep, which knows the owners, then deletes the rest.
func (a hooks) sparing(call chain.Call, kind runner.Kind) (chain.Call, bool, error) {
	switch {
	case call.Verb != "DEL" || kind == runner.Registered:
	case call.Plugin == known.Firewall && (a.inDoubt() || a.described().IsZoned()):
		err := a.withoutClaimed(&call)
		return call, err == nil, err
	case call.Plugin == known.Bandwidth && (kind == runner.Executable || a.partial == nil):
		run, err := a.mayUnshape()
		return call, run, err
	}
	return call, true, nil
}

// mayUnshape reports whether the DEL of the plugin bandwidth may run. It deletes
// a device by a name that other interfaces of the container share, and some of
// other containers.
func (a hooks) mayUnshape() (bool, error) {
	t, done := a.target()
	defer done()
	if t.Host == nil {
		return true, nil
	}
	others, err := t.NotItsShaper()
	if others {
		a.op.eng.opts.Logger.Debug("DEL of bandwidth is left to the sweep: the device may be another attachment's",
			"container", a.op.c.ID, "interface", a.IfName)
	}
	return err == nil && !others, err
}

// withoutClaimed removes the addresses of other attachments from the previous
// result: the plugin firewall deletes the rules of all addresses in it.
func (a hooks) withoutClaimed(call *chain.Call) error {
	t, done := a.target()
	defer done()
	taken, err := t.Addresses, error(nil) // after a reboot only restored rules exist, and the sweep finds those
	switch {
	case a.op.c.Rebooted:
	case a.described().IsZoned():
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
func (a hooks) noteDevice(call chain.Call, kind runner.Kind) {
	if call.Verb != "ADD" || call.Plugin != a.Network.first() || !known.Of(call.Plugin).Makes.NeedsIdentity() ||
		kind == runner.Registered || a.inside() == nil || a.op.c.Host.Handle == nil {
		return
	}
	d, err := leftovers.Identify(&a.op.c.Host.Conns, a.op.c.Host.Handle, a.inside(), a.IfName, call.Plugin == known.HostDevice)
	if err == nil {
		err = a.Note(leftovers.DeviceFact, d)
	}
	if err != nil {
		a.op.eng.opts.Logger.Debug("the interface is known by its name alone", "container", a.op.c.ID, "interface", a.IfName, "error", err)
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
	found, err := d.Restore(a.inside(), a.IfName, d.HostName != "" && !a.inDoubt())
	if err != nil {
		a.op.eng.opts.Logger.Warn("an interface that the container has renamed does not get its name back",
			"container", a.op.c.ID, "interface", a.IfName, "error", err)
	}
	a.lost = !found
	if a.lost && !a.inDoubt() {
		a.op.eng.opts.Logger.Warn("the interface is not in the container", "container", a.op.c.ID, "interface", a.IfName)
	}
}

// settle notes that the interface is gone, or back on the host, while other
// leftovers of the attachment remain. A later interface like it then counts as
// another's.
func (a *attachment) settle() {
	t, done := a.target()
	defer done()
	if t.Interface.Device == nil {
		return
	}
	gone, err := t.Settled()
	if gone && err == nil {
		settled := *t.Interface.Device
		settled.Settled = true
		err = a.Note(leftovers.DeviceFact, settled)
	}
	if err != nil {
		a.op.eng.opts.Logger.Warn("note that an interface is gone", "container", a.op.c.ID, "interface", a.IfName, "error", err)
	}
}
