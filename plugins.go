package cni

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/embedcni/cni/internal/builtin"
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
// They are interchangeable with the reference plugins: what the one ADDs, the
// other can CHECK and DEL.
func WithBuiltinPlugins(types ...string) Opt {
	return func(c *config) error {
		for _, typ := range types {
			if builtin.Lookup(typ) == nil {
				return fmt.Errorf("WithBuiltinPlugins: plugin %q is not built in: %w", typ, ErrInvalidArgument)
			}
		}
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
	merged := choice{registered: merge(c.registered, later.registered), prefer: c.prefer, preferAll: c.preferAll, without: c.without}
	if prefers || later.without {
		merged.prefer, merged.preferAll, merged.without = slices.Clone(later.prefer), later.preferAll, later.without
	}
	for _, typ := range slices.Sorted(maps.Keys(merged.registered)) {
		if slices.Contains(merged.prefer, typ) {
			return c, fmt.Errorf("plugin %q is both registered, with WithPlugin, and to be the one built in, with WithBuiltinPlugins: %w",
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
	own := builtin.Lookup(typ)
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
