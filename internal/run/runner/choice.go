package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/embedcni/cni/internal/run/invoke"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// Kind is the kind of plugin that runs for a type.
type Kind string

const (
	Executable Kind = record.KindExecutable // in one of the plugin directories
	BuiltIn    Kind = record.KindBuiltIn    // one of this module's plugins, in process
	Registered Kind = record.KindRegistered // the caller's, in process
)

// Choice decides which plugin runs for a type.
type Choice struct {
	BuiltIn    func(typ string) plugin.Plugin // nil for a type that is not built in
	Registered map[string]plugin.Plugin
	Prefer     []string // types whose built-in plugin takes precedence over an executable
	PreferAll  bool
	Root       invoke.Root // of executables
	Dirs       []string    // of executables, in Root
	Insecure   []string    // directories in which executables are accepted that other users can replace
}

// Key is equal for choices that run the same plugins. Of registered plugins only their
// types matter.
func (c Choice) Key() string {
	return fmt.Sprintf("%q %t %q %q %q %q %t", c.Prefer, c.PreferAll, c.Root, c.Dirs, c.Insecure,
		slices.Sorted(maps.Keys(c.Registered)), c.BuiltIn(conflist.Bridge) != nil)
}

// IsRegistered reports whether the caller has registered a plugin of the type.
func (c Choice) IsRegistered(typ string) bool {
	_, ok := c.Registered[typ]
	return ok
}

// Provider is the plugin that runs for a type.
type Provider struct {
	Kind      Kind   // empty if nothing runs
	Path      string // of the executable
	elsewhere bool   // Path is in none of the plugin directories now
	plugin    plugin.Plugin
	backend   string // that a built-in plugin has detected; empty if it detects none
	standIn   bool   // a built-in plugin runs in place of the executable that may have attached the container
}

// Find returns the plugin that an ADD would run for a type now. If there is none,
// the error is that of the executable.
func (c Choice) Find(typ string) (Provider, error) {
	if p, ok := c.Registered[typ]; ok {
		return Provider{Kind: Registered, plugin: p}, nil
	}
	own := c.builtIn(typ)
	if own.plugin != nil && (c.PreferAll || slices.Contains(c.Prefer, typ)) {
		return own, nil
	}
	return c.executableOr(typ, own, nil)
}

// FindDelegate returns an error unless a plugin finds the one to which it delegates its
// ADD. An executable finds only executables.
func (c Choice) FindDelegate(p Provider, typ string) (err error) {
	if p.Kind == Executable {
		_, err = c.executable(typ)
	} else {
		_, err = c.Find(typ)
	}
	return err
}

func (c Choice) builtIn(typ string) Provider {
	return Provider{Kind: BuiltIn, plugin: c.BuiltIn(typ)}
}

// standIn returns a built-in plugin to run in place of an executable that may
// have attached the container.
func (c Choice) standIn(typ string) Provider {
	p := c.builtIn(typ)
	p.standIn = true
	return p
}

// executable finds an executable in the plugin directories.
func (c Choice) executable(typ string) (Provider, error) {
	path, err := c.Root.Find(typ, c.Dirs, c.Insecure)
	if err != nil {
		return Provider{}, err
	}
	return Provider{Kind: Executable, Path: path}, nil
}

// executableOr finds an executable, or else returns the built-in plugin, if there is one.
// Otherwise the error is missing, or that of the executable.
func (c Choice) executableOr(typ string, own Provider, missing error) (Provider, error) {
	p, err := c.executable(typ)
	if !errors.Is(err, invoke.ErrNotFound) {
		return p, err
	}
	if own.plugin != nil {
		return own, nil
	}
	return p, cmp.Or(missing, err)
}

// recorded finds the plugin that ran the ADD, whatever is preferred or installed
// now. A built-in plugin runs in place of an executable that is gone: it can undo
// the work of the reference plugin, and the sweep looks for the rules of both.
func (c Choice) recorded(p record.Plugin) (Provider, error) {
	switch Kind(p.Kind) {
	case Registered:
		if now, ok := c.Registered[p.Type]; ok {
			return Provider{Kind: Registered, plugin: now}, nil
		}
		return Provider{}, &MissingError{p.Type, "one registered with WithPlugin", "register it again"}
	case BuiltIn:
		if own := c.builtIn(p.Type); own.plugin != nil {
			own.backend = p.Backend
			return own, nil
		}
		return Provider{}, &MissingError{p.Type, "the one built in", "name WithBuiltinPlugins or WithBuiltinFallback"}
	}
	if p.Path != "" {
		err := c.Root.Check(p.Type, p.Path, c.Insecure)
		if !errors.Is(err, invoke.ErrNotFound) {
			return Provider{Kind: Executable, Path: p.Path, elsewhere: !c.isDir(filepath.Dir(p.Path))}, err
		}
	}
	return c.executableOr(p.Type, c.standIn(p.Type), nil)
}

func (c Choice) isDir(dir string) bool {
	return slices.ContainsFunc(c.Dirs, func(d string) bool {
		abs, err := filepath.Abs(d)
		return d != "" && err == nil && abs == dir
	})
}

// either returns the plugins that may have attached a container whose record has no
// kinds, or which go-cni attached. A CHECK begins with the one that an ADD would
// run now, a DEL with the executable. There is one if the caller has registered the
// type, or names no built-in plugins.
func (c Choice) either(verb, typ string) ([]Provider, error) {
	first, err := c.Find(typ)
	own := c.standIn(typ)
	if err != nil || first.Kind == Registered || own.plugin == nil {
		return one(first, err)
	}
	its, err := c.executable(typ)
	if err != nil { // then first is the built-in plugin
		return []Provider{own}, nil
	}
	if verb == "CHECK" && first.Kind == BuiltIn {
		return []Provider{own, its}, nil
	}
	return []Provider{its, own}, nil
}

func one(p Provider, err error) ([]Provider, error) {
	if err != nil {
		return nil, err
	}
	return []Provider{p}, nil
}

// detector is a built-in plugin that chooses a backend by the state of the host if
// its configuration names none.
type detector interface {
	// Detect returns the backend for an ADD in the namespace host. It returns "" if the
	// configuration names a backend.
	Detect(ctx context.Context, host *netns.Handle, config json.RawMessage) (string, error)
}

// executableOnly is a built-in plugin that does not carry out every configuration of its
// type.
type executableOnly interface {
	// OnlyExecutable returns an error if only the plugin's executable carries out a
	// configuration.
	OnlyExecutable(config json.RawMessage) error
}

// suited returns the provider for a configuration: the executable instead of a built-in
// plugin that does not carry it out.
func (c Choice) suited(p Provider, typ string, config []byte) (Provider, error) {
	own, ok := p.plugin.(executableOnly)
	if !ok || p.Kind != BuiltIn {
		return p, nil
	}
	reason := own.OnlyExecutable(config)
	if reason == nil {
		return p, nil
	}
	return c.executableOr(typ, Provider{}, reason)
}

// MissingError: the plugin that attached the container is not in this program. Any other
// of that name is another plugin.
type MissingError struct{ typ, was, do string }

func (m *MissingError) Error() string {
	return fmt.Sprintf("plugin %q was %s when the container was attached, and none is now; %s", m.typ, m.was, m.do)
}

// Is makes it an invoke.ErrNotFound.
func (m *MissingError) Is(target error) bool { return target == invoke.ErrNotFound }
