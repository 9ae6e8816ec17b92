package cni

import (
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
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
		switch _, twice := c.choosing.Registered[typ]; {
		case invoke.CheckType(typ) != nil:
			return fmt.Errorf("WithPlugin: %w: %w", invoke.CheckType(typ), ErrInvalidArgument)
		case p == nil:
			return fmt.Errorf("WithPlugin: plugin %q is nil: %w", typ, ErrInvalidArgument)
		case twice:
			return fmt.Errorf("WithPlugin: plugin %q is registered twice: %w", typ, ErrInvalidArgument)
		}
		if c.choosing.Registered == nil {
			c.choosing.Registered = map[string]plugin.Plugin{}
		}
		c.choosing.Registered[typ] = p
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
		c.choosing.Prefer = append(c.choosing.Prefer, types...)
		c.choosing.PreferAll = c.choosing.PreferAll || len(types) == 0
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
		c.choosing.Without = true
		return nil
	}
}

// chosen returns the choice after the options of one New or Load, which replace
// earlier ones about the same thing.
func chosen(before, options runner.Choice) (runner.Choice, error) {
	prefers := len(options.Prefer) > 0 || options.PreferAll
	if prefers && options.Without {
		return before, fmt.Errorf("WithBuiltinPlugins and WithoutBuiltinPlugins contradict each other: %w", ErrInvalidArgument)
	}
	after := before
	after.Registered = merge(before.Registered, options.Registered)
	if prefers || options.Without {
		after.Prefer, after.PreferAll, after.Without = slices.Clone(options.Prefer), options.PreferAll, options.Without
	}
	for _, typ := range after.Prefer {
		if before.BuiltIn(typ) == nil {
			return before, fmt.Errorf("WithBuiltinPlugins: plugin %q is not built in: %w", typ, ErrInvalidArgument)
		}
		if after.Registered[typ] != nil {
			return before, fmt.Errorf("plugin %q is to be the one built in, with WithBuiltinPlugins, and registered, with WithPlugin: %w",
				typ, ErrInvalidArgument)
		}
	}
	return after, nil
}
