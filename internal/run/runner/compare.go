package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/run/invoke"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/plugin"
)

// Compare compares the part of one plugin with the kernel. The built-in plugin of the
// type does that, also for an executable that has attached the container, because
// both take the same configuration. call is the plugin's CHECK or, for the IPAM plugin
// of another plugin, that plugin's CHECK with the IPAM plugin's type.
//
// ok is false if nobody can compare the part: there is no such built-in plugin, or the
// caller's own plugin has attached the container. An error means that the comparison
// was impossible.
func (r *Runner) Compare(ctx context.Context, call chain.Call, v *contract.View) (found []contract.Difference, ok bool, err error) {
	e, by := r.comparer(call)
	if by == nil {
		return nil, false, nil
	}
	err = e.comparing(ctx, v, func(ctx context.Context, request *plugin.Request, v *contract.View) (err error) {
		found, err = by.Compare(ctx, request, v)
		return err
	})
	for i := range found {
		found[i].Plugin = call.Plugin
	}
	return found, true, err
}

// Delegated returns the plugin to which the plugin of a call delegates with another
// configuration, as a call, and the type of its IPAM plugin. ok is false if it is no such
// plugin.
func (r *Runner) Delegated(call chain.Call) (its chain.Call, ipam string, ok bool, err error) {
	e, by := r.comparer(call)
	d, ok := by.(contract.Delegator)
	if !ok {
		return its, "", false, nil
	}
	err = thread.Try(func() error {
		return e.with(comparedItself, func(request *plugin.Request) error {
			p, err := d.Delegated(request)
			if err == nil {
				its, ipam = chain.Call{Verb: call.Verb, Plugin: p.Network.Type, Stdin: p.Bytes, Env: call.Env}, p.Network.IPAM.Type
			}
			return err
		})
	})
	return its, ipam, true, err
}

// comparing calls do with the request for a comparison.
func (e *execution) comparing(ctx context.Context, v *contract.View, do func(context.Context, *plugin.Request, *contract.View) error) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("plugin %q panicked: %v\n%s", e.call.Plugin, panicked, debug.Stack())
		}
	}()
	return e.with(comparedItself, func(request *plugin.Request) error {
		given := e.lent()
		filters := given.Filters
		filters.Notes = given.Record
		return do(contract.With(ctx, given), request, v.For(filters))
	})
}

// Excuse returns why the CHECK of an executable has failed although Compare finds no
// difference in its part, nor in that of its IPAM plugin; it is zero if only the plugin
// knows. A reference plugin knows nothing that Compare does not.
func (r *Runner) Excuse(ctx context.Context, call chain.Call, ipam string, v *contract.View) (excuse contract.Excuse, err error) {
	e, by := r.comparer(call)
	if by == nil || e.p.Kind == BuiltIn && !e.p.standIn {
		return excuse, nil
	}
	if x, ok := by.(contract.Excuser); ok {
		err = e.comparing(ctx, v, func(_ context.Context, request *plugin.Request, v *contract.View) (err error) {
			excuse, err = x.Excuse(request, v)
			return err
		})
		if err != nil || excuse != (contract.Excuse{}) {
			return excuse, err
		}
	}
	if r.AreReference(ctx, call.Plugin, ipam) {
		excuse = contract.Excuse{Why: "the comparison with the kernel, which covers all that this plugin's CHECK does, finds nothing wrong", Blind: true}
		switch conflist.Known(call.Plugin).Rules {
		case conflist.Forward, conflist.HostPorts:
			excuse.Blind = false // it misses its rules, and others do the same
		}
	}
	return excuse, nil
}

// AreReference reports whether the executables of a type and of its IPAM plugin, if it has
// one, are known to be the reference plugins.
func (r *Runner) AreReference(ctx context.Context, typ, ipam string) bool {
	its, _, _ := r.Plugins.Get(typ)
	ipams, _, _ := r.Plugins.Get(ipam)
	return r.Runtime.isReference(ctx, typ, its.Path) && (ipam == "" || r.Runtime.isReference(ctx, ipam, ipams.Path))
}

// comparedItself delegates nothing: the part of an IPAM plugin is compared by itself.
func comparedItself(context.Context, string, string, json.RawMessage) (*types100.Result, error) {
	return nil, nil
}

// Fix adds a missing part of the attachment, which a comparison has found, within the
// time of a plugin for a CHECK. With a batch, changes of packet filters are made when
// it is flushed.
func (r *Runner) Fix(ctx context.Context, d contract.Difference, b *thread.Batch) error {
	ctx, cancel := r.Runtime.Bound(ctx, "CHECK")
	defer cancel()
	e, _ := r.comparer(chain.Call{Verb: VerbRepair, Plugin: d.Plugin})
	e.given.Batch = b
	err := thread.Try(func() error { return d.Fix(contract.With(ctx, e.lent())) })
	_, err = e.failed(invoke.Output{}, stopped(ctx, err))
	return err
}

// comparer returns the built-in plugin that compares the part of a type, or nil, and its
// call.
func (r *Runner) comparer(call chain.Call) (*execution, contract.Comparer) {
	by, ok := r.Runtime.BuiltIn(call.Plugin).(contract.Comparer)
	c, recorded, known := r.Plugins.Get(call.Plugin)
	e := newExecution(r, call, r.Runtime.builtIn(call.Plugin))
	switch {
	case !ok, recorded && Kind(c.Kind) == Registered, !known && r.Runtime.IsRegistered(call.Plugin):
		return e, nil
	case recorded && Kind(c.Kind) == BuiltIn:
		e.p.backend = c.Backend
	default:
		e.p.standIn = true
	}
	return e, by
}

// Different returns the caller's error for a difference in the part of a type.
func (r *Runner) Different(typ string, err error) error {
	c, _, _ := r.Plugins.Get(typ)
	f := Failure{Verb: "CHECK", Plugin: typ, Kind: Kind(c.Kind), Err: err}
	f.say()
	return r.Attachment.Fail(f)
}
