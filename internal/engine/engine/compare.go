package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/outcome"
)

// compareAll compares attachments of a container whose recorded namespaces are open.
func (op *operation) compareAll(ctx context.Context, looks *contract.Looks, all attachments) (parts []*comparison, err error) {
	v, err := looks.Open(&op.c.Place.Host.Conns, op.c.Place.Host.Handle, op.c.Place.NetNS)
	if err != nil {
		return nil, err
	}
	defer func() { err = Join(err, v.Close()) }()
	for _, a := range all {
		if unfinished := a.unfinished(); unfinished != nil {
			parts = append(parts, &comparison{network: a.plan.Network.Config.Name, ifName: a.plan.IfName, err: unfinished})
			continue
		}
		parts = append(parts, a.compare(ctx, v))
	}
	return parts, nil
}

// compare compares the parts of the attachment's plugins with the kernel, by those
// built-in plugins that can. It changes nothing.
func (a *attachment) compare(ctx context.Context, v *contract.View) *comparison {
	c := &comparing{
		params: &a.plan.Attachment, chain: &chain.Chain{List: a.plan.Network.Config, Path: a.pluginDirs()},
		result: a.progress.partial, runner: a.runner(), madeInterface: a.described().MadeInterface(), view: v,
	}
	if c.result == nil {
		c.result = a.cached().Result()
	}
	p, err := c.run(ctx)
	if err != nil {
		p.err = a.errors("CHECK", err)
	}
	return p
}

// comparing is a comparison in progress.
type comparing struct {
	params        *chain.Attachment // of its plugins
	chain         *chain.Chain      // of its plugins, of which none runs
	result        chain.Partial     // of the ADD; nil if it is not known
	runner        *runner.Runner
	madeInterface bool // the ADD has made an interface in the container
	view          *contract.View
}

// run compares. The error is the reason why nothing could be compared; the comparison then
// has the names alone.
func (c *comparing) run(ctx context.Context) (*comparison, error) {
	p := &comparison{network: c.chain.List.Name, ifName: c.params.IfName}
	gone, err := c.missing()
	if err != nil {
		return p, err
	}
	if gone != nil {
		p.differences = append(p.differences, *gone)
	}
	p.asks = make(map[int]bool)
	c.runner.Given.Record = readOnly{c.runner.Given.Record}
	calls := c.chain.CheckCalls(c.params, c.result)
	for i, plugin := range c.chain.List.Plugins {
		call, unknown := calls(i)
		parts, unknown := c.parts(plugin, call, unknown)
		for n, part := range parts {
			p.asks[i] = p.asks[i] || gone == nil && !c.runner.Plugins.IsOurs(part.Plugin)
			if !c.one(ctx, p, part, unknown) {
				// The configuration that a plugin of another program passes to its IPAM
				// plugin is not known either.
				if p.asks[i] = gone == nil; gone == nil {
					for _, part := range parts[n:] {
						p.uncompared = append(p.uncompared, part.Plugin)
					}
				}
				break
			}
		}
	}
	return p, nil
}

// needsAnADD is why an interface in a container is not repaired.
const needsAnADD = "only an ADD makes it, and the specification requires a DEL before that: Remove and Setup attach the container again"

// missing returns the difference if the container lacks the attachment's interface.
func (c *comparing) missing() (*contract.Difference, error) {
	if !c.madeInterface { // an interface that was never made cannot be missing
		return nil, nil
	}
	there, err := c.view.HasLink(c.params.IfName)
	if there || err != nil {
		return nil, err
	}
	return &contract.Difference{
		Plugin: c.chain.List.Plugins[0].Network.Type, Kind: contract.Interface, Inside: true, Object: c.params.IfName, Why: needsAnADD,
		Err: fmt.Errorf("interface %s of network %q is gone: %w", c.params.IfName, c.chain.List.Name, outcome.ErrNotAttached),
	}, nil
}

// isInterface reports whether a difference is that the container lacks an interface.
func isInterface(d contract.Difference, ifName string) bool {
	return d.Kind == contract.Interface && d.Inside && d.Object == ifName && d.Found == ""
}

// parts returns the calls for CHECK of a plugin of the chain and of those to which it
// delegates: of each its own part is compared.
func (c *comparing) parts(plugin *libcni.PluginConfig, call chain.Call, unknown error) ([]chain.Call, error) {
	call.Plugin = plugin.Network.Type
	all, its, ipam := []chain.Call{call}, call, plugin.Network.IPAM.Type
	if unknown == nil && c.chain.ListsInterfaces() {
		delegate, of, ok, err := c.runner.Delegated(call)
		if err != nil {
			return all, err
		}
		if ok {
			all, its, ipam = append(all, delegate), delegate, of
		}
	}
	if ipam != "" {
		its.Plugin = ipam
		all = append(all, its)
	}
	return all, unknown
}

// one compares the part of one plugin by its call for CHECK, unless err is why there is
// none. It reports whether a built-in plugin could.
func (c *comparing) one(ctx context.Context, p *comparison, call chain.Call, err error) bool {
	if !c.chain.ListsInterfaces() {
		return false // the result does not say what to compare
	}
	var found []contract.Difference
	ok := true
	if err == nil {
		found, ok, err = c.runner.Compare(ctx, call, c.view)
	}
	if err != nil {
		p.err = Join(p.err, c.runner.Different(call.Plugin, fmt.Errorf("not compared: %w", err)))
	}
	for _, d := range found {
		if isInterface(d, p.ifName) && len(p.differences) > 0 && isInterface(p.differences[0], p.ifName) {
			continue // missing has found it
		}
		if d.Err == nil { // CHECK passes over it
			d.Err = errors.New(differenceOf(p.network, p.ifName, d).String())
		}
		d.Err = c.runner.Different(call.Plugin, d.Err)
		p.differences = append(p.differences, d)
	}
	return ok
}

// errReadOnly: a comparison changes nothing.
var errReadOnly = errors.New("a comparison notes nothing")

// readOnly is a record for a comparison, which must not change it.
type readOnly struct{ contract.Record }

// Note refuses a note.
func (readOnly) Note(string, any) error { return errReadOnly }

// comparison is an attachment compared with its record.
type comparison struct {
	network, ifName string

	differences []contract.Difference // in the order in which they have to be made again
	asks        map[int]bool          // positions of the plugins whose CHECK can say more
	uncompared  []string              // types whose part nothing compares
	err         error                 // why a part could not be compared
	asked       answers
}

// answers is the outcome of the CHECKs of an attachment's plugins.
type answers struct {
	done    bool
	failed  error // of the plugin that said that something is wrong
	unknown error // why no plugin said anything
	blind   error // of the plugins whose CHECK fails for healthy containers too
	noted   error // of the plugins whose CHECK fails over something that does not matter
}

// covers reports whether the comparison covers the parts of these types.
func (p *comparison) covers(types ...string) bool {
	return !slices.ContainsFunc(types, func(typ string) bool { return slices.Contains(p.uncompared, typ) })
}

// isWhole reports whether the comparison has found nothing wrong.
func (p *comparison) isWhole() bool { return len(p.differences) == 0 && p.err == nil }

// wantsCheck reports whether a CHECK of a plugin of the attachment can say more than the
// comparison.
func (p *comparison) wantsCheck() bool {
	return slices.Contains(slices.Collect(maps.Values(p.asks)), true)
}

// unjudged returns the types of plugins whose part nobody has judged, because CHECK is
// not wanted.
func (p *comparison) unjudged() []string {
	if p.asked != (answers{}) {
		return nil
	}
	return p.uncompared
}
