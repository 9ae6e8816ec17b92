package cni

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/embedcni/cni/internal/firewalld"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// Which plugin runs for a type is decided once, before the record is written,
// and CHECK and DEL go by the record. Executables may be installed or removed
// between two runs of a program, and options change; where a configuration
// names no backend of the packet filters, executables and built-in plugins do
// not find each other's rules, and a living container would look damaged.

// kinds are the plugins of one attachment, one for each type. Delegates may be
// added while plugins run.
type kinds struct {
	mu  sync.Mutex
	all []chosen
}

// chosen is the plugin of a type.
type chosen struct {
	record.Plugin          // Kind is empty if there was none, so that no ADD ran
	found         provider // for the ADD of this operation; zero if only the record is known
	err           error    // why there is none
}

func (k *kinds) set(recorded []record.Plugin) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = nil
	for _, p := range recorded {
		k.all = append(k.all, chosen{Plugin: p})
	}
}

// recorded are the plugins as the record has them.
func (k *kinds) recorded() []record.Plugin {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []record.Plugin
	for _, c := range k.all {
		all = append(all, c.Plugin)
	}
	return all
}

// get returns the plugin of a type. known reports whether the record has kinds at
// all.
func (k *kinds) get(typ string) (c chosen, ok, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := k.index(typ)
	if i < 0 {
		return c, false, len(k.all) > 0
	}
	return k.all[i], true, true
}

func (k *kinds) index(typ string) int {
	return slices.IndexFunc(k.all, func(c chosen) bool { return c.Type == typ })
}

// choose finds the plugin that an ADD is to run for a type.
func (s *snapshot) choose(typ string) chosen {
	found, err := s.provider(typ)
	c := chosen{Plugin: record.Plugin{Type: typ}, found: found, err: err}
	if err == nil {
		c.Kind, c.Path = string(found.kind), found.path
	}
	return c
}

// resolve chooses the plugins of the chain, and of those in process the IPAM
// plugins that they delegate to. What was chosen before stays: its ADD ran when
// the container was made ahead of time.
func (a *attachment) resolve(ctx context.Context) {
	a.kinds.mu.Lock()
	defer a.kinds.mu.Unlock()
	choose := func(typ string) chosen {
		i := a.kinds.index(typ)
		if i < 0 {
			i = len(a.kinds.all)
			a.kinds.all = append(a.kinds.all, a.op.choose(typ))
		}
		return a.kinds.all[i]
	}
	for _, p := range a.network.config.Plugins {
		c := choose(p.Network.Type)
		a.detect(ctx, p.Network.Type, p.Bytes)
		if ipam := p.Network.IPAM.Type; ipam != "" && (c.Kind == string(PluginBuiltIn) || c.Kind == string(PluginRegistered)) {
			choose(ipam)
		}
	}
}

// detect asks the chosen plugin which backend its ADD will use, and notes it. If that
// fails, the plugin does not run.
func (a *attachment) detect(ctx context.Context, typ string, config []byte) {
	c := &a.kinds.all[a.kinds.index(typ)]
	d, ok := c.found.plugin.(detector)
	if !ok || c.found.kind != PluginBuiltIn || c.Backend != "" || c.err != nil {
		return
	}
	var host *netns.Handle
	if a.op.host != nil {
		host = a.op.host.Handle
	}
	backend, err := d.Detect(firewalld.With(ctx, a.op.bus), host, config)
	if err != nil {
		*c = chosen{Plugin: record.Plugin{Type: typ}, err: err}
		return
	}
	c.Backend, c.found.backend = backend, backend
}

// chooseDelegate chooses what a plugin in process delegates its ADD to, and
// records it before it runs.
func (a *attachment) chooseDelegate(ctx context.Context, typ string) (provider, error) {
	a.kinds.mu.Lock()
	defer a.kinds.mu.Unlock()
	if i := a.kinds.index(typ); i >= 0 {
		return a.kinds.all[i].found, a.kinds.all[i].err // chosen meanwhile
	}
	before := a.kinds.all
	a.kinds.all = append(before, a.op.choose(typ))
	a.detect(ctx, typ, nil)
	c := &a.kinds.all[len(before)]
	err := c.err
	if err == nil {
		err = a.note(record.Entry{Plugin: &c.Plugin})
	}
	if err != nil {
		a.kinds.all = before
		return provider{}, err
	}
	return c.found, nil
}

// providers returns the plugins to run for a type. It is one, except that a CHECK
// or DEL without a recorded kind has each that may have run the ADD, and the DEL
// of a plugin whose ADD never ran has none.
func (a *attachment) providers(ctx context.Context, verb, typ string) ([]provider, error) {
	c, ok, known := a.kinds.get(typ)
	attached := verb == "DEL" || verb == "CHECK"
	switch {
	case verb == "ADD" && !ok:
		return one(a.chooseDelegate(ctx, typ))
	case verb == "ADD" && (c.err != nil || c.found.kind != ""):
		return one(c.found, c.err)
	case verb == "DEL" && ok && c.Kind == "":
		return nil, nil
	case ok && c.Kind != "":
		return one(a.op.recorded(c.Plugin))
	case attached && !known:
		return a.op.either(verb, typ)
	}
	return one(a.op.provider(typ))
}

func one(p provider, err error) ([]provider, error) {
	if err != nil {
		return nil, err
	}
	return []provider{p}, nil
}

// recorded finds the plugin that ran the ADD, whatever is preferred or
// installed now. A built-in plugin runs in place of an executable that is gone;
// it can undo the work of the reference plugin, and the sweep looks for the rules
// of both.
func (s *snapshot) recorded(p record.Plugin) (provider, error) {
	own := s.choice.builtIn(p.Type)
	switch PluginKind(p.Kind) {
	case PluginRegistered:
		if now, ok := s.choice.registered[p.Type]; ok {
			return provider{kind: PluginRegistered, plugin: now}, nil
		}
		return provider{}, &unregisteredError{p.Type}
	case PluginBuiltIn:
		if own != nil {
			return provider{kind: PluginBuiltIn, plugin: own, backend: p.Backend}, nil
		}
	}
	if p.Path != "" {
		err := invoke.Check(p.Type, p.Path, s.allowInsecure)
		if !errors.Is(err, invoke.ErrNotFound) {
			return provider{kind: PluginExecutable, path: p.Path, elsewhere: !s.isPluginDir(filepath.Dir(p.Path))}, err
		}
	}
	path, err := invoke.Find(p.Type, s.pluginDirs, s.allowInsecure)
	switch {
	case err == nil:
		return provider{kind: PluginExecutable, path: path}, nil
	case own == nil || !errors.Is(err, invoke.ErrNotFound):
		return provider{}, err
	case s.choice.without:
		return provider{}, withoutError(err)
	}
	return standIn(own), nil
}

func (s *snapshot) isPluginDir(dir string) bool {
	return slices.ContainsFunc(s.pluginDirs, func(d string) bool {
		abs, err := filepath.Abs(d)
		return d != "" && err == nil && abs == dir
	})
}

// either returns the plugins that may have attached a container whose record has
// no kinds, or which go-cni attached. A CHECK begins with the one that an ADD
// would run now, a DEL with the executable. Where the caller has registered the
// type, or forbids the built-in plugins, there is no choice.
func (s *snapshot) either(verb, typ string) ([]provider, error) {
	first, err := s.provider(typ)
	own := s.choice.builtIn(typ)
	if err != nil || first.kind == PluginRegistered || own == nil || s.choice.without {
		return one(first, err)
	}
	path, err := invoke.Find(typ, s.pluginDirs, s.allowInsecure)
	if err != nil { // then first is the built-in plugin
		return []provider{standIn(own)}, nil
	}
	both := []provider{{kind: PluginExecutable, path: path}, standIn(own)}
	if verb == "CHECK" && first.kind == PluginBuiltIn {
		slices.Reverse(both)
	}
	return both, nil
}

// standIn is a built-in plugin for what an executable may have attached.
func standIn(own plugin.Plugin) provider {
	return provider{kind: PluginBuiltIn, plugin: own, standIn: true}
}

// isCallers reports whether the caller registered the plugin of a type that
// attached the container. Nobody knows what such a plugin leaves, whatever it is
// called.
func (a *attachment) isCallers(typ string) bool {
	c, ok, known := a.kinds.get(typ)
	if known {
		return ok && c.Kind == string(PluginRegistered)
	}
	return a.op.isRegistered(typ)
}

// unregisteredError: a plugin that WithPlugin had registered is not registered
// now. Any other of that name is another plugin.
type unregisteredError struct{ typ string }

func (u *unregisteredError) Error() string {
	return fmt.Sprintf("plugin %q was one registered with WithPlugin when the container was attached, and none is now; register it again", u.typ)
}

func (u *unregisteredError) Is(target error) bool { return target == invoke.ErrNotFound }

func withoutError(err error) error {
	return fmt.Errorf("%w; it is built in, but WithoutBuiltinPlugins is set", err)
}
