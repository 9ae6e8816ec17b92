package cni

import (
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/plugin"
)

// PluginKind says what runs for a plugin's type.
type PluginKind string

const (
	// PluginExecutable is an executable in one of the plugin directories.
	PluginExecutable PluginKind = "executable"
	// PluginBuiltIn is one of this module's own plugins, in process.
	PluginBuiltIn PluginKind = "built in"
	// PluginRegistered is what WithPlugin has registered, in process.
	PluginRegistered PluginKind = "registered"
)

// WithPlugin registers a plugin of the caller's own, which runs in process
// whenever a configuration names its type, whatever else there is of that name.
// The types bridge, portmap and so on may be replaced like this. A type can be
// registered once; a later Load may register another plugin for it.
func WithPlugin(typ string, p plugin.Plugin) Opt {
	return func(c *config) error {
		switch _, twice := c.choosing.registered[typ]; {
		case invoke.CheckType(typ) != nil:
			return fmt.Errorf("WithPlugin: %w: %w", invoke.CheckType(typ), ErrInvalidArgument)
		case p == nil:
			return fmt.Errorf("WithPlugin: plugin %q is nil: %w", typ, ErrInvalidArgument)
		case twice:
			return fmt.Errorf("WithPlugin: plugin %q is registered twice: %w", typ, ErrInvalidArgument)
		}
		if c.choosing.registered == nil {
			c.choosing.registered = map[string]plugin.Plugin{}
		}
		c.choosing.registered[typ] = p
		return nil
	}
}

// WithBuiltinPlugins has this module's own plugins run in process even where
// there is an executable in the plugin directories: all of them, or those of
// these types, each of which must be built in. Without it an executable that is
// found goes first, and the plugins built in are for the types that are missing.
//
// They are interchangeable with the reference plugins, as long as the
// configuration names the backend of the packet filters: what the one ADDs, the
// other can CHECK and DEL. Where it names none, those built in use nftables in a
// way of their own, of which only Remove's sweep knows if an executable does the
// DEL.
func WithBuiltinPlugins(types ...string) Opt {
	return func(c *config) error {
		c.choosing.prefer = append(c.choosing.prefer, types...)
		c.choosing.preferAll = c.choosing.preferAll || len(types) == 0
		return nil
	}
}

// WithoutBuiltinPlugins has no plugin of this module's own run, so that a type
// that is in none of the plugin directories is ErrPluginNotFound. What WithPlugin
// has registered runs all the same.
func WithoutBuiltinPlugins() Opt {
	return func(c *config) error {
		c.choosing.without = true
		return nil
	}
}

// choice is which plugin runs for which type.
type choice struct {
	builtIn    func(typ string) plugin.Plugin // nil: not built in
	registered map[string]plugin.Plugin
	prefer     []string // types whose plugin built in goes before an executable
	preferAll  bool
	without    bool // nothing that is built in runs
}

// with is the choice after the options of one New or Load: what they say
// replaces what was said before about the same thing.
func (c choice) with(later choice) (choice, error) {
	prefers := len(later.prefer) > 0 || later.preferAll
	if prefers && later.without {
		return c, fmt.Errorf("WithBuiltinPlugins and WithoutBuiltinPlugins contradict each other: %w", ErrInvalidArgument)
	}
	merged := c
	merged.registered = merge(c.registered, later.registered)
	if prefers || later.without {
		merged.prefer, merged.preferAll, merged.without = slices.Clone(later.prefer), later.preferAll, later.without
	}
	for _, typ := range merged.prefer {
		if c.builtIn(typ) == nil {
			return c, fmt.Errorf("WithBuiltinPlugins: plugin %q is not built in: %w", typ, ErrInvalidArgument)
		}
		if merged.registered[typ] != nil {
			return c, fmt.Errorf("plugin %q is to be the one built in, with WithBuiltinPlugins, and registered, with WithPlugin: %w",
				typ, ErrInvalidArgument)
		}
	}
	return merged, nil
}

// provider is what runs for a plugin's type.
type provider struct {
	kind   PluginKind // empty: nothing
	path   string     // of the executable
	plugin plugin.Plugin
}

func (s *snapshot) isRegistered(typ string) bool {
	_, ok := s.choice.registered[typ]
	return ok
}

// provider finds it. Where there is none, the error is invoke's.
func (s *snapshot) provider(typ string) (provider, error) {
	if p, ok := s.choice.registered[typ]; ok {
		return provider{kind: PluginRegistered, plugin: p}, nil
	}
	own := s.choice.builtIn(typ)
	if own != nil && (s.choice.preferAll || slices.Contains(s.choice.prefer, typ)) {
		return provider{kind: PluginBuiltIn, plugin: own}, nil
	}
	path, err := invoke.Find(typ, s.pluginDirs, s.allowInsecure)
	switch {
	case err == nil:
		return provider{kind: PluginExecutable, path: path}, nil
	case own == nil || !errors.Is(err, invoke.ErrNotFound):
		return provider{}, err
	case s.choice.without:
		return provider{}, fmt.Errorf("%w; it is built in, but WithoutBuiltinPlugins is set", err)
	default:
		return provider{kind: PluginBuiltIn, plugin: own}, nil
	}
}
