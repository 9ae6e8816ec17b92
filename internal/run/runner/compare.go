package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
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
	p, by := r.comparer(call.Plugin)
	if by == nil {
		return nil, false, nil
	}
	err = r.comparing(ctx, p, call, v, func(ctx context.Context, request *plugin.Request, v *contract.View) (err error) {
		found, err = by.Compare(ctx, request, v)
		return err
	})
	for i := range found {
		found[i].Plugin = call.Plugin
	}
	return found, true, err
}

// comparing calls do with the request for a comparison.
func (r *Runner) comparing(ctx context.Context, p Provider, call chain.Call, v *contract.View,
	do func(context.Context, *plugin.Request, *contract.View) error) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("plugin %q panicked: %v\n%s", call.Plugin, panicked, debug.Stack())
		}
	}()
	e := &execution{Runner: r, call: call, p: p}
	return e.with(comparedItself, func(request *plugin.Request) error {
		given := r.lent(r.Given, p)
		filters := given.Filters
		filters.Notes = given.Record
		return do(contract.With(ctx, given), request, v.For(filters))
	})
}

// Excuse returns why the CHECK of an executable has failed although Compare finds no
// difference in its part, nor in that of its IPAM plugin; it is zero if only the plugin
// knows. A reference plugin knows nothing that Compare does not.
func (r *Runner) Excuse(ctx context.Context, call chain.Call, ipam string, v *contract.View) (e contract.Excuse, err error) {
	p, by := r.comparer(call.Plugin)
	if by == nil || p.Kind == BuiltIn && !p.standIn {
		return e, nil
	}
	if x, ok := by.(contract.Excuser); ok {
		err = r.comparing(ctx, p, call, v, func(_ context.Context, request *plugin.Request, v *contract.View) (err error) {
			e, err = x.Excuse(request, v)
			return err
		})
		if err != nil || e != (contract.Excuse{}) {
			return e, err
		}
	}
	if r.AreReference(ctx, call.Plugin, ipam) {
		e = contract.Excuse{Why: "the comparison with the kernel, which covers all that this plugin's CHECK does, finds nothing wrong", Blind: true}
		switch conflist.Known(call.Plugin).Rules {
		case conflist.Forward, conflist.HostPorts:
			e.Blind = false // it misses its rules, and others do the same
		}
	}
	return e, nil
}

// AreReference reports whether the executables of a type and of its IPAM plugin, if it has
// one, are known to be the reference plugins.
func (r *Runner) AreReference(ctx context.Context, typ, ipam string) bool {
	return r.IsReference(ctx, typ) && (ipam == "" || r.IsReference(ctx, ipam))
}

// IsReference reports whether the executable of a type is known to be the reference
// plugin.
func (r *Runner) IsReference(ctx context.Context, typ string) bool {
	c, _, _ := r.Plugins.Get(typ)
	path := c.Path
	if path == "" { // an executable runs the IPAM plugin that it finds
		found, err := r.Runtime.Root.Find(typ, r.Runtime.Dirs, r.Runtime.AllowInsecure)
		if err != nil {
			return false
		}
		path = found
	}
	return r.Runtime.References.has(ctx, r.Runtime.Root, typ, path)
}

// comparedItself delegates nothing: the part of an IPAM plugin is compared by itself.
func comparedItself(context.Context, string, string, json.RawMessage) (*types100.Result, error) {
	return nil, nil
}

// Lend returns the context for the Fix of a difference that Compare has found for a
// type.
func (r *Runner) Lend(ctx context.Context, typ string) context.Context {
	p, _ := r.comparer(typ)
	return contract.With(ctx, r.lent(r.Given, p))
}

// lent returns what a built-in plugin is given, with what it depends on which plugin runs.
func (r *Runner) lent(given contract.Given, p Provider) contract.Given {
	given.Bus, given.Durable = r.Runtime.Bus, r.Attachment.Durable
	if p.standIn || p.backend != "" {
		given.Filters.Executable, given.Filters.Detected = p.standIn, p.backend
	}
	return given
}

// comparer returns the built-in plugin that compares the part of a type, or nil.
func (r *Runner) comparer(typ string) (Provider, contract.Comparer) {
	by, ok := r.Runtime.BuiltIn(typ).(contract.Comparer)
	c, recorded, known := r.Plugins.Get(typ)
	switch {
	case !ok, recorded && Kind(c.Kind) == Registered, !known && r.Runtime.IsRegistered(typ):
		return Provider{}, nil
	case recorded && Kind(c.Kind) == BuiltIn:
		own := r.Runtime.builtIn(typ)
		own.backend = c.Backend
		return own, by
	}
	return r.Runtime.standIn(typ), by
}

// IsOurs reports whether a built-in plugin is known to have attached the container, so
// that its CHECK says nothing that Compare does not say.
func (r *Runner) IsOurs(typ string) bool {
	c, ok, _ := r.Plugins.Get(typ)
	return ok && Kind(c.Kind) == BuiltIn
}

// Different returns the caller's error for a difference in the part of a type.
func (r *Runner) Different(typ string, err error) error {
	c, _, _ := r.Plugins.Get(typ)
	f := Failure{Verb: "CHECK", Plugin: typ, Kind: Kind(c.Kind), Err: err}
	f.say()
	return r.Attachment.Fail(f)
}
