package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/inprocess"
	"github.com/embedcni/cni/internal/views"
)

// Compare compares the part of one plugin with the kernel. The built-in plugin of the
// type does that, also for an executable that has attached the container, because
// both take the same configuration. call is the plugin's CHECK or, for the IPAM plugin
// of another plugin, that plugin's CHECK with the IPAM plugin's type.
//
// ok is false if nobody can compare the part: there is no such built-in plugin, or the
// caller's own plugin has attached the container. An error means that the comparison
// was impossible.
func (r *Runner) Compare(ctx context.Context, call chain.Call, v *views.View) (found []compare.Difference, ok bool, err error) {
	p, by := r.comparer(call.Plugin)
	if by == nil {
		return nil, false, nil
	}
	defer func() {
		if panicked := recover(); panicked != nil {
			found, ok, err = nil, true, fmt.Errorf("plugin %q panicked: %v\n%s", call.Plugin, panicked, debug.Stack())
		}
	}()
	request, err := inprocess.Request(p.plugin, inprocess.Call{
		Verb: call.Verb, Type: call.Plugin, Env: call.Env, Stdin: call.Stdin,
		Host: r.Host, Container: r.Container, Delegate: comparedItself,
	})
	if err != nil {
		return nil, true, err
	}
	if request.Container != nil && request.Container != r.Container {
		defer func() { err = errors.Join(err, request.Container.Close()) }()
	}
	given := r.lent(p)
	filters := given.Filters
	filters.Notes = given.Record
	found, err = by.Compare(caller.With(ctx, given), request, v.For(filters))
	for i := range found {
		found[i].Plugin = call.Plugin
	}
	return found, true, err
}

// comparedItself delegates nothing: the part of an IPAM plugin is compared by itself.
func comparedItself(context.Context, string, string, json.RawMessage) (*types100.Result, error) {
	return nil, nil
}

// Lend returns the context for the Fix of a difference that Compare has found for a
// type.
func (r *Runner) Lend(ctx context.Context, typ string) context.Context {
	p, _ := r.comparer(typ)
	return caller.With(ctx, r.lent(p))
}

func (r *Runner) lent(p Provider) caller.Given {
	given := r.Given
	given.Bus, given.Durable = r.Bus, r.Durable
	given.Filters.AnyForm, given.Filters.Detected = p.standIn, p.backend
	return given
}

// comparer returns the built-in plugin that compares the part of a type, or nil.
func (r *Runner) comparer(typ string) (Provider, compare.Comparer) {
	by, ok := r.BuiltIn(typ).(compare.Comparer)
	c, recorded, known := r.Plugins.get(typ)
	switch {
	case !ok, recorded && Kind(c.Kind) == Registered, !known && r.IsRegistered(typ):
		return Provider{}, nil
	case recorded && Kind(c.Kind) == BuiltIn:
		return Provider{Kind: BuiltIn, plugin: r.BuiltIn(typ), backend: c.Backend}, by
	}
	return standIn(r.BuiltIn(typ)), by
}

// IsOurs reports whether a built-in plugin is known to have attached the container, so
// that its CHECK says nothing that Compare does not say.
func (r *Runner) IsOurs(typ string) bool {
	c, ok, _ := r.Plugins.get(typ)
	return ok && Kind(c.Kind) == BuiltIn
}

// Different returns the caller's error for a difference in the part of a type.
func (r *Runner) Different(typ string, err error) error {
	said := inprocess.Said(err)
	c, _, _ := r.Plugins.get(typ)
	return r.Fail(Failure{
		Verb: "CHECK", Plugin: typ, Kind: Kind(c.Kind), Code: said.Code, Msg: said.Msg, Details: said.Details, Err: err,
	})
}
