package cni

import (
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/plugin"
)

// PluginKind is the kind of plugin that runs for a type.
type PluginKind string

const (
	// PluginExecutable is an executable in one of the plugin directories.
	PluginExecutable PluginKind = record.KindExecutable
	// PluginBuiltIn is one of this module's own plugins, in process.
	PluginBuiltIn PluginKind = record.KindBuiltIn
	// PluginRegistered is a plugin that WithPlugin has registered, in process.
	PluginRegistered PluginKind = record.KindRegistered
)

// WithPlugin registers a plugin of the caller's own. It runs in process whenever
// a configuration names its type, and takes precedence over every other plugin
// of that type. The types bridge, portmap and so on may be replaced like this. A
// type can be registered once; a later Load may register another plugin for it.
//
// The plugin that is registered for the type at that time checks and removes its
// attachments. If none is registered, the error is ErrPluginNotFound and the
// record stays, even if there is an executable or a built-in plugin of that
// name, which would be a different plugin.
//
// The container is locked while the plugin works. With its context the plugin
// may run other plugins (plugin.Request.Delegate) and call Load, Status,
// Networks, GetConfig and Attachments. Setup, Remove, Check, CleanUp, Recover,
// GC, Release and a Pool's Setup on the same state directory return
// ErrInsidePlugin, because they could wait for the plugin for ever. Its Status
// may call anything.
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

// WithBuiltinPlugins runs this module's own plugins, in process, even if there are
// executables in the plugin directories: all of them, or those of these types,
// each of which must be built in. Without it executables are preferred, and the
// built-in plugins are for the missing types.
//
// This applies to new attachments. A container is checked and removed by the
// plugins that attached it, which are on record: by a built-in plugin even if an
// executable is installed by now, and by an executable at its former path. Once
// that file is gone, an executable of the type in the plugin directories runs in
// its place, or else the built-in plugin, which knows the rules of the reference
// plugin too. For a container without such a record, attached by an earlier
// version or by go-cni, a CHECK succeeds if either the executable or the
// built-in plugin succeeds, and a removal runs both.
//
// Built-in plugins are interchangeable with the reference plugins if the
// configuration names the backend of the packet filter. Otherwise they use
// nftables in their own way.
func WithBuiltinPlugins(types ...string) Opt {
	return func(c *config) error {
		c.choosing.Prefer = append(c.choosing.Prefer, types...)
		c.choosing.PreferAll = c.choosing.PreferAll || len(types) == 0
		return nil
	}
}

// WithoutBuiltinPlugins prevents this module's own plugins from attaching
// anything, so that a type that is in none of the plugin directories is
// ErrPluginNotFound. Plugins that WithPlugin has registered still run.
// Containers that built-in plugins have attached before, according to their
// record, are still checked and removed by them.
func WithoutBuiltinPlugins() Opt {
	return func(c *config) error {
		c.choosing.Without = true
		return nil
	}
}

// chosen returns the choice after the options of one New or Load, which replace
// earlier ones of the same kind.
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
