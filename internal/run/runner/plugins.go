package runner

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/record"
)

// Plugins are the plugins of one attachment: which one runs for each type, and which
// of them have run. The zero value is ready to use, by several goroutines at once.
//
// Which plugin runs is decided once, before the record is written; CHECK and DEL
// follow the record. Executables may be installed or removed between two runs of a
// program, and options change. If a configuration names no backend of the packet
// filters, executables and built-in plugins do not find each other's rules, and a
// living container would look damaged.
type Plugins struct {
	mu      sync.Mutex
	chosen  []Chosen     // one for each type; empty if no record has any
	started []string     // types whose ADD was started
	never   []string     // types whose ADD could not be started
	failed  []chain.Call // DELs that failed
	hung    []string     // types to which a DEL was delegated that did not end within its time

}

// Chosen is the plugin of a type.
type Chosen struct {
	record.Plugin          // Kind is empty if there was none, so that no ADD ran
	found         Provider // for the ADD under way; zero if only the record is known
	err           error    // why there is none
}

// Reset replaces the state by that of a record: the plugins, and the types whose
// ADD did not run.
func (p *Plugins) Reset(recorded []record.Plugin, never []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.chosen, p.started, p.never, p.failed, p.hung = nil, nil, never, nil, nil
	for _, r := range recorded {
		p.chosen = append(p.chosen, Chosen{Plugin: r})
	}
}

// Recorded returns the plugins for the record.
func (p *Plugins) Recorded() []record.Plugin {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []record.Plugin
	for _, c := range p.chosen {
		all = append(all, c.Plugin)
	}
	return all
}

// Get returns the plugin of a type. known reports whether any plugin is known:
// the record of an earlier version has none.
func (p *Plugins) Get(typ string) (_ Chosen, ok, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.index(typ); i >= 0 {
		return p.chosen[i], true, true
	}
	return Chosen{}, false, len(p.chosen) > 0
}

func (p *Plugins) index(typ string) int {
	return slices.IndexFunc(p.chosen, func(c Chosen) bool { return c.Type == typ })
}

// IsOurs reports whether a built-in plugin is known to have attached the container, so
// that its CHECK says nothing that [Runner.Compare] does not say.
func (p *Plugins) IsOurs(typ string) bool {
	c, ok, _ := p.Get(typ)
	return ok && Kind(c.Kind) == BuiltIn
}

// NotRun reports whether the ADD of a type is known not to have run. There is
// nothing to undo then. Its DEL would fail for the same reason, for example a
// mistyped type or a file that cannot be executed, and must not keep a container
// for ever.
func (p *Plugins) NotRun(typ string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.never, typ) && !slices.Contains(p.started, typ)
}

// notStarted notes a plugin that could not be started for a verb.
func (p *Plugins) notStarted(verb, typ string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if verb == "ADD" && !slices.Contains(p.never, typ) {
		p.never = append(p.never, typ)
	}
}

// ended notes the end of a call.
func (p *Plugins) ended(call chain.Call, started, failed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case call.Verb == "ADD" && started:
		p.started = append(p.started, call.Plugin)
	case call.Verb == "DEL" && failed:
		p.failed = append(p.failed, call)
	}
}

// delegated notes the end of a delegated call.
func (p *Plugins) delegated(verb, typ string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if verb == "DEL" && errors.Is(err, context.DeadlineExceeded) {
		p.hung = append(p.hung, typ)
	}
}

// hangs reports whether a delegated DEL of a type did not end within its time.
func (p *Plugins) hangs(typ string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.hung, typ)
}

// failedDel returns the call of a DEL that failed.
func (p *Plugins) failedDel(typ string) (chain.Call, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.failed, func(c chain.Call) bool { return c.Plugin == typ })
	if i < 0 {
		return chain.Call{}, false
	}
	return p.failed[i], true
}

// NoteNotRun notes in the record, for the DEL of another process, which plugins a failed
// ADD did not start: those of the chain, and those to which no delegation was possible.
func (r *Runner) NoteNotRun() error {
	p := r.Plugins
	p.mu.Lock()
	var never []string
	for _, typ := range slices.Concat(p.never, r.Types()) {
		if !slices.Contains(p.started, typ) && !slices.Contains(never, typ) {
			never = append(never, typ)
		}
	}
	p.never = never
	p.mu.Unlock()
	if len(never) == 0 {
		return nil
	}
	return r.Attachment.Append(record.Entry{NeverRan: never})
}

// Types returns the types of the chain's plugins.
func (r *Runner) Types() []string {
	var all []string
	for _, p := range r.Network.Plugins {
		all = append(all, p.Network.Type)
	}
	return all
}

// Choose chooses the plugins of the chain for an ADD, and the IPAM plugins that those
// in process delegate to. It keeps earlier choices: their ADD ran when the container
// was made ahead of time.
func (r *Runner) Choose(ctx context.Context) {
	r.Plugins.mu.Lock()
	defer r.Plugins.mu.Unlock()
	for _, p := range r.Network.Plugins {
		c := r.choose(ctx, p.Network.Type, p.Bytes)
		if ipam := p.Network.IPAM.Type; ipam != "" && (c.Kind == string(BuiltIn) || c.Kind == string(Registered)) {
			r.choose(ctx, ipam, nil)
		}
	}
}

// choose returns the choice for a type, and makes it if there is none. A built-in plugin
// that does not carry out the configuration is replaced. Otherwise it says which backend
// its ADD will use; if it cannot, it does not run.
func (r *Runner) choose(ctx context.Context, typ string, config []byte) *Chosen {
	i := r.Plugins.index(typ)
	if i < 0 {
		found, err := r.Runtime.Find(typ)
		i = len(r.Plugins.chosen)
		r.Plugins.chosen = append(r.Plugins.chosen, Chosen{Plugin: record.Plugin{Type: typ}, found: found, err: err})
	}
	c := &r.Plugins.chosen[i]
	if c.err == nil && c.found.Kind == "" {
		return c // on record
	}
	if c.err == nil && config != nil {
		c.found, c.err = r.Runtime.suited(c.found, typ, config)
	}
	d, detects := c.found.plugin.(detector)
	if c.err == nil && detects && c.found.Kind == BuiltIn && c.found.backend == "" {
		c.found.backend, c.err = d.Detect(contract.With(ctx, contract.Given{Bus: r.Runtime.Bus}), r.Host, config)
	}
	if c.err != nil {
		c.found = Provider{}
	}
	c.Kind, c.Path, c.Backend = string(c.found.Kind), c.found.Path, c.found.backend
	return c
}

// chooseDelegate chooses the plugin that an in-process plugin delegates its ADD to,
// and records it before it runs.
func (r *Runner) chooseDelegate(ctx context.Context, typ string) (Provider, error) {
	r.Plugins.mu.Lock()
	defer r.Plugins.mu.Unlock()
	if i := r.Plugins.index(typ); i >= 0 {
		return r.Plugins.chosen[i].found, r.Plugins.chosen[i].err // chosen meanwhile
	}
	before := r.Plugins.chosen
	c := r.choose(ctx, typ, nil)
	err := c.err
	if err == nil {
		err = r.Attachment.Append(record.Entry{Plugin: &c.Plugin})
	}
	if err != nil {
		r.Plugins.chosen = before
		return Provider{}, err
	}
	return c.found, nil
}

// providers returns the plugins to run for a type. It is one, except that a CHECK
// or DEL without a recorded kind has each that may have run the ADD, and the DEL of
// a plugin whose ADD never ran has none.
func (r *Runner) providers(ctx context.Context, verb, typ string, config []byte) ([]Provider, error) {
	c, ok, known := r.Plugins.Get(typ)
	attached := verb == "DEL" || verb == "CHECK"
	switch {
	case verb == "ADD" && !ok:
		return one(r.chooseDelegate(ctx, typ))
	case verb == "ADD" && (c.err != nil || c.found.Kind != ""):
		return one(c.found, c.err)
	case verb == "DEL" && ok && c.Kind == "":
		return nil, nil
	case ok && c.Kind != "":
		p, err := r.Runtime.recorded(c.Plugin)
		if own := r.Runtime.BuiltIn(typ); verb == "CHECK" && p.Kind == Executable && own != nil && contract.Restored(r.Given.Record, typ) {
			p, err = r.Runtime.standIn(typ), nil // the executable could only miss its own rules
		}
		return one(p, err)
	case attached && !known:
		return r.Runtime.either(verb, typ)
	}
	p, err := r.Runtime.Find(typ)
	if err == nil {
		p, err = r.Runtime.suited(p, typ, config)
	}
	return one(p, err)
}
