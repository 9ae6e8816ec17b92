package cni

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/internal/thread"
	"github.com/embedcni/cni/plugin"
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
// Networks, GetConfig and Attachments. Setup, Remove, Check, CleanUp, Recover
// and GC on the same state directory return ErrInsidePlugin, because they could wait
// for the plugin for ever. Its Status may call anything.
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
		c.choosing.Registered = merge(c.choosing.Registered, map[string]plugin.Plugin{typ: p})
		return nil
	}
}

// WithBuiltinPlugins runs this module's own plugins, in process, even if there are
// executables in the plugin directories: all of them, or those of these types,
// each of which must be built in. For the other types it is WithBuiltinFallback.
//
// A program that names neither option does not link the built-in plugins, but for
// loopback, and a type that is in none of the plugin directories is ErrPluginNotFound.
//
// This applies to new attachments. A container is checked and removed by the
// plugins that attached it, which are on record: by a built-in plugin even if an
// executable is installed by now, and by an executable at its former path. Once
// that file is gone, an executable of the type in the plugin directories runs in
// its place, or else the built-in plugin, which knows the rules of the reference
// plugin too. For a container without such a record, attached by an earlier
// version or by go-cni, a CHECK succeeds if either the executable or the
// built-in plugin succeeds, and a removal runs both. Health compares the containers of
// executables with what the built-in plugin of the type wants, and Repair puts that back.
// In a program without built-in plugins, Health asks the executables alone, Repair has
// nothing to repair with, and a container of built-in plugins is an error that says so.
//
// Built-in plugins have their rules in a table of nftables of their own, whatever
// backend the configuration names, and firewall's accept in iptables for each network.
// The reference plugins do not find these rules. What only the reference plugins do, such
// as rules in iptables for ipMasqBackend or portmap's backend "iptables", goes to the
// executable of the type, although the built-in plugin is preferred; if there is
// none, Setup returns an error that says what to do.
func WithBuiltinPlugins(types ...string) Opt {
	return set(func(c *config) {
		linkBuiltins(c)
		c.choosing.Prefer = append(c.choosing.Prefer, types...)
		c.choosing.PreferAll = c.choosing.PreferAll || len(types) == 0
	})
}

// WithBuiltinFallback runs this module's own plugins for the types that are in none of the
// plugin directories. WithBuiltinPlugins says more.
func WithBuiltinFallback() Opt {
	return set(linkBuiltins)
}

// linkBuiltins is all that leads to the built-in plugins, so that a program that names no
// option of theirs does not have them.
func linkBuiltins(c *config) {
	if c.choosing.BuiltIn == nil {
		c.choosing.BuiltIn = builtin.New()
	}
}

// WithPluginRoot runs executed plugins with another root directory (chroot(2)), for a
// daemon in a container that has the root of the host at dir. dir is an absolute path; "/"
// undoes an earlier WithPluginRoot. It needs Linux and CAP_SYS_CHROOT.
//
// Executed plugins see dir alone, and start in it. So these are paths in dir, where
// symbolic links lead as they do on the host: the plugin directories, which must be
// absolute; the programs that plugins start, such as iptables; the files that
// configurations name, such as the dataDir of host-local.
//
// This library, and plugins in process, keep the root of the process. So these are paths
// of the daemon's container: the directories of configurations and of the state. What both
// use must be at the same path in both, by mounts with propagation from the host:
//
//   - the directories of network namespaces, such as /run/netns and /proc. If CNI_NETNS
//     does not lead to the container's namespace in dir, the plugin is not run.
//   - the data directory of host-local (/var/lib/cni/networks by default), where this
//     library looks for addresses that are left. Else Setup does not run the plugin;
//   - /run/xtables.lock, and the state directory, where this library pins namespaces.
//
// A dir that is missing or cannot be entered, or that other users can replace, is an error
// of Setup, Remove and Check. A built-in plugin never runs because of it. Records do not
// have dir: a daemon that moves into a container, or to another dir, finds the
// executables of its containers if their paths in dir are the former ones.
func WithPluginRoot(dir string) Opt {
	return func(c *config) error {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("plugin root %q is not an absolute path: %w", dir, ErrInvalidArgument)
		}
		c.pluginRoot = invoke.Root(filepath.Clean(dir))
		if c.pluginRoot == "/" {
			c.pluginRoot = ""
		}
		return nil
	}
}

// WithPluginDirOrder has a Setup search these of the Runtime's plugin directories first, in
// this order, and then the others: for a program that carries out the CNI calls of another
// one, in whose CNI_PATH they are. Directories that the Runtime does not have are ignored,
// and so is an order that is the Runtime's own. The record keeps any other: Check, Remove
// and all others run the plugins that the Setup has run, and give them its order in
// CNI_PATH, for those to which they delegate.
//
// It has no effect on plugins in process, nor is it valid inside WithNetwork.
func WithPluginDirOrder(dirs ...string) NamespaceOpts {
	dirs = slices.Clone(dirs)
	return func(ns *Namespace) error {
		if ns.nested {
			return fmt.Errorf("an order of plugin directories inside WithNetwork: %w", ErrInvalidArgument)
		}
		ns.dirs = dirs
		return nil
	}
}

// precedence returns those of the directories that first has before the others, in its
// order. It returns nil if first changes nothing.
func precedence(dirs, first []string) (found []string) {
	all := ordered(dirs, first)
	if slices.Equal(all, dirs) {
		return nil
	}
	for _, dir := range all {
		if slices.ContainsFunc(first, func(f string) bool { return filepath.Clean(f) == filepath.Clean(dir) }) {
			found = append(found, dir)
		}
	}
	return found
}

// ordered returns directories, with those that are among first before the others.
func ordered(dirs, first []string) []string {
	if len(first) == 0 {
		return dirs
	}
	place := func(dir string) int {
		i := slices.IndexFunc(first, func(f string) bool { return filepath.Clean(f) == filepath.Clean(dir) })
		if i < 0 {
			return len(first)
		}
		return i
	}
	dirs = slices.Clone(dirs)
	slices.SortStableFunc(dirs, func(a, b string) int { return place(a) - place(b) })
	return dirs
}

// checkPluginRoot refuses what WithPluginRoot cannot be combined with.
func (c *config) checkPluginRoot() error {
	if c.pluginRoot == "" {
		return nil
	}
	if !thread.CanChangeRoot {
		return fmt.Errorf("plugin root %s: %w", c.pluginRoot, ErrNotSupported)
	}
	for _, dir := range c.pluginDirs {
		if dir != "" && !filepath.IsAbs(dir) {
			return fmt.Errorf("plugin directory %q is not an absolute path, and with a plugin root it must be: %w", dir, ErrInvalidArgument)
		}
	}
	return nil
}

// chosen returns the choice after the options of one New or Load, which replace
// earlier ones of the same kind.
func chosen(before, options runner.Choice) (runner.Choice, error) {
	after := before
	after.Registered = merge(before.Registered, options.Registered)
	if options.BuiltIn != nil {
		after.BuiltIn, after.Prefer, after.PreferAll = options.BuiltIn, slices.Clone(options.Prefer), options.PreferAll
	}
	for _, typ := range after.Prefer {
		if after.BuiltIn(typ) == nil {
			return before, fmt.Errorf("WithBuiltinPlugins: plugin %q is not built in: %w", typ, ErrInvalidArgument)
		}
		if after.Registered[typ] != nil {
			return before, fmt.Errorf("plugin %q is to be the one built in, with WithBuiltinPlugins, and registered, with WithPlugin: %w",
				typ, ErrInvalidArgument)
		}
	}
	return after, nil
}

// Retry configures how often Setup repeats an attempt that failed with a
// transient error: code 11, "try again later", or the error of a plugin that has lost
// a race with another one for a bridge, a chain or the lock of iptables.
type Retry struct {
	Attempts int           // in total; 1 or less does not retry
	Delay    time.Duration // before the second attempt, doubling from then on; 100 ms if zero
	MaxDelay time.Duration // 5 s if zero; limits every delay, the first too
}

// WithRetry makes Setup retry. Each attempt starts from a clean state: Setup
// first detaches everything from the attempt before, and stops if that fails.
// Between attempts it waits for a random part of the delay, at most until the
// context ends.
func WithRetry(r Retry) Opt {
	return func(c *config) error {
		if r.Attempts < 0 || r.Delay < 0 || r.MaxDelay < 0 {
			return fmt.Errorf("retry %+v: negative: %w", r, ErrInvalidArgument)
		}
		c.retry = r
		return nil
	}
}

// transientWords returns words in errors that plugins return without a code of their
// own for transient failures: two containers that create a bridge or a chain at the
// same moment, and the lock of iptables. To take another error for transient costs one
// attempt.
func transientWords() []string {
	return []string{
		"file exists",
		"resource temporarily unavailable",
		"device or resource busy",
		"could not set bridge's mac", // after a first ADD that failed before the bridge had an address
		"another app is currently holding the xtables lock",
	}
}

// isTransient reports whether every failure is transient, and was undone.
func isTransient(err error) bool {
	var undone *rollbackError
	if errors.As(err, &undone) || errors.Is(err, ErrPortInUse) {
		return false
	}
	all := pluginErrors(err)
	for _, one := range all {
		var e *Error
		if !errors.As(one, &e) || !e.isTransient() {
			return false
		}
	}
	return len(all) > 0
}

func (e *Error) isTransient() bool {
	text := strings.ToLower(e.Msg + " " + e.Details)
	return e.Code == types.ErrTryAgainLater ||
		slices.ContainsFunc(transientWords(), func(words string) bool { return strings.Contains(text, words) })
}

// pause returns the delay before attempt n (2, 3, …). It is random, so that
// calls that collided do not collide again.
func (r Retry) pause(n int) time.Duration {
	delay, most := r.Delay, r.MaxDelay
	if delay == 0 {
		delay = 100 * time.Millisecond
	}
	if most == 0 {
		most = 5 * time.Second
	}
	for range n - 2 {
		delay = min(2*delay, most)
	}
	delay = min(delay, most)
	return delay/2 + rand.N(delay/2+1)
}

// WithObserver sets a function that is called after each plugin call, for metrics
// and traces. It is called by several goroutines at once, and the operation waits
// for it. ctx is the operation's.
func WithObserver(observe func(ctx context.Context, e Event)) Opt {
	return set(func(c *config) { c.observe = observe })
}

// Event describes one plugin call. Calls that an in-process plugin delegates, for
// example to an IPAM plugin, are part of its own call. Built-in plugins leave some
// changes for the end of the chain, to be made together; if those of a plugin fail,
// there is another Event of the plugin, with the error.
type Event struct {
	Operation   string // CNI_COMMAND: ADD, DEL, CHECK, STATUS; or REPAIR, for a part that Repair made again
	Network     string
	Plugin      string // its type
	PluginKind  string // as NetworkConf.Kind; empty if no plugin ran
	ContainerID string // empty for STATUS
	IfName      string // empty for STATUS, unless several loaded networks have the name
	Duration    time.Duration
	Err         error // nil if the call succeeded
}

// waitFor waits for a time, or until the context ends.
func waitFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
