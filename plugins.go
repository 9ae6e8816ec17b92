package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// PluginKind says what runs for a plugin's type.
type PluginKind string

const (
	// PluginExecutable is an executable in one of the plugin directories.
	PluginExecutable PluginKind = record.KindExecutable
	// PluginBuiltIn is one of this module's own plugins, in process.
	PluginBuiltIn PluginKind = record.KindBuiltIn
	// PluginRegistered is what WithPlugin has registered, in process.
	PluginRegistered PluginKind = record.KindRegistered
)

// WithPlugin registers a plugin of the caller's own, which runs in process
// whenever a configuration names its type, whatever else there is of that name.
// The types bridge, portmap and so on may be replaced like this. A type can be
// registered once; a later Load may register another plugin for it.
//
// What it attached is checked and removed by the plugin that is registered for
// the type by then. If none is, that is ErrPluginNotFound and the record stays,
// also where there is an executable or a built-in plugin of that name: it would
// be another plugin.
//
// While it works, the container is locked. With the context that it was given it
// may run other plugins (plugin.Request.Delegate) and call Load, Status,
// Networks, GetConfig and Attachments. Setup, Remove, Check, CleanUp, Recover, GC,
// Release and a Pool's Setup on the same state directory return ErrInsidePlugin,
// since they could wait for the plugin for ever. Its Status may call anything.
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
// found goes first, and the built-in plugins are for the types that are missing.
//
// This is about new attachments. A container is checked and removed by the
// plugins that attached it, which are on record: by a built-in plugin even if
// there is an executable by now, and by an executable at the path that it had.
// Once that file is gone, an executable of the type in the plugin directories
// runs in its place, or else the built-in plugin, which knows the rules of the
// reference plugin too. A container without such a record, attached by an
// earlier version or by go-cni, passes a CHECK if either the executable or the
// built-in plugin passes it, and is removed by both.
//
// Built-in plugins are interchangeable with the reference plugins as long as the
// configuration names the backend of the packet filters. Where it names none,
// they use nftables in a way of their own.
func WithBuiltinPlugins(types ...string) Opt {
	return func(c *config) error {
		c.choosing.prefer = append(c.choosing.prefer, types...)
		c.choosing.preferAll = c.choosing.preferAll || len(types) == 0
		return nil
	}
}

// WithoutBuiltinPlugins has no plugin of this module's own attach anything, so
// that a type that is in none of the plugin directories is ErrPluginNotFound.
// What WithPlugin has registered runs all the same. A container that built-in
// plugins have attached before, as its record says, is still checked and removed
// by them.
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
	prefer     []string // types whose built-in plugin goes before an executable
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
	kind      PluginKind // empty: nothing
	path      string     // of the executable
	elsewhere bool       // path is in none of the plugin directories now
	plugin    plugin.Plugin
	backend   string // that a built-in plugin has detected; empty if it detects none
	standIn   bool   // a built-in plugin runs for what an executable may have attached
}

// detector is a built-in plugin that goes by what the host has where its
// configuration names no backend of the packet filters.
type detector interface {
	// Detect returns the backend for an ADD in the namespace host. It returns "" if the
	// configuration names a backend.
	Detect(ctx context.Context, host *netns.Handle, config json.RawMessage) (string, error)
}

// builtIn is a plugin of this module's own.
func builtIn(own plugin.Plugin) provider { return provider{kind: PluginBuiltIn, plugin: own} }

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
		return builtIn(own), nil
	}
	path, err := invoke.Find(typ, s.pluginDirs, s.allowInsecure)
	switch {
	case err == nil:
		return provider{kind: PluginExecutable, path: path}, nil
	case own == nil || !errors.Is(err, invoke.ErrNotFound):
		return provider{}, err
	case s.choice.without:
		return provider{}, withoutError(err)
	default:
		return builtIn(own), nil
	}
}
