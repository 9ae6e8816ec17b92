package cni

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/invoke"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/ports"
	"github.com/embedcni/cni/plugin"
)

const (
	// CNIPluginName is the name under which runtimes register their network
	// plugin.
	CNIPluginName = "cni"
	// DefaultNetDir is the system's directory of network configurations.
	DefaultNetDir = plugin.DefaultConfDir
	// DefaultCNIDir is the system's directory of plugins.
	DefaultCNIDir = plugin.DefaultDir
	// DefaultMaxConfNum is the number of configurations that [WithDefaultConf]
	// loads.
	DefaultMaxConfNum = 1
	// DefaultPrefix is the prefix of interface names.
	DefaultPrefix = "eth"
	// VendorCNIDirTemplate is for fmt.Sprintf with a root directory and a vendor's
	// name. It is for Unix.
	VendorCNIDirTemplate = "%s/opt/%s/bin"
)

// Opt configures a Runtime, in New or in Load. An option is a setting, which
// applies wherever it stands among the options, or a network. Networks are loaded
// in the order of their options, after all settings have been applied.
type Opt func(c *config) error

// CNIOpt is Opt.
//
// Deprecated: use Opt.
type CNIOpt = Opt

// RWMutex is sync.RWMutex. go-cni exports it by accident.
//
// Deprecated: use sync.RWMutex.
type RWMutex = sync.RWMutex

// config collects the options of one New or Load. Reading its networks twice may give
// different ones.
type config struct {
	settings
	loaders  []loader
	choosing runner.Choice // changes to settings.choice
}

// settings are the options that stay from one Load to the next.
type settings struct {
	engine.Options
	pluginConfDir    string
	pluginMaxConfNum int
	prefix           string
	minNetworks      int
	strictCaps       bool
	loggerSet        bool
}

func defaultSettings() settings {
	return settings{
		Options: engine.Options{
			PluginDirs: []string{DefaultCNIDir},
			StateDir:   conflist.StateDir,
			Owner:      filepath.Base(os.Args[0]),
			Timeouts:   engine.Timeouts{Add: 3 * time.Minute, Del: 50 * time.Second, Check: time.Minute, Status: 10 * time.Second},
			PortRange:  ports.Range{First: 20000, Last: 29999},
			Choice:     runner.Choice{BuiltIn: builtin.Loopback},
			EnvAllow:   invoke.DefaultAllow(),
			Logger:     slog.New(slog.DiscardHandler),
		},
		pluginConfDir:    DefaultNetDir,
		pluginMaxConfNum: DefaultMaxConfNum,
		prefix:           DefaultPrefix,
		minNetworks:      1,
	}
}

// Timeouts limit the duration of one plugin's call for each verb. Zero keeps a
// verb's default, a negative value removes the limit.
//
// They apply to each plugin, not to the whole call, so that a hanging plugin does
// not use up the time of the others in a teardown.
type Timeouts struct {
	Add time.Duration // default 3 minutes: DHCP and cloud providers take long
	// Del is for GC too. The default is 50 seconds: some plugins, such as whereabouts, try
	// for a minute, and then report success although they have freed nothing.
	Del    time.Duration
	Check  time.Duration // default 1 minute
	Status time.Duration // default 10 seconds
}

func (t Timeouts) over(defaults Timeouts) Timeouts {
	return Timeouts{
		Add:    cmp.Or(t.Add, defaults.Add),
		Del:    cmp.Or(t.Del, defaults.Del),
		Check:  cmp.Or(t.Check, defaults.Check),
		Status: cmp.Or(t.Status, defaults.Status),
	}
}

// set returns an option that cannot fail.
func set(change func(c *config)) Opt {
	return func(c *config) error {
		change(c)
		return nil
	}
}

// WithInterfacePrefix sets the prefix of interface names, "eth" by default.
// The prefix with a digit must be a valid interface name.
func WithInterfacePrefix(prefix string) Opt {
	return func(c *config) error {
		if err := engine.ValidateIfName(ifName(prefix, 0)); err != nil {
			return fmt.Errorf("interface prefix %q: %w", prefix, err)
		}
		c.prefix = prefix
		return nil
	}
}

// WithPluginDir sets the directories that are searched for plugins, in order.
// They need not exist yet.
func WithPluginDir(dirs []string) Opt {
	return set(func(c *config) { c.PluginDirs = slices.Clone(dirs) })
}

// WithPluginConfDir sets the directory of the network configurations.
func WithPluginConfDir(dir string) Opt {
	return set(func(c *config) { c.pluginConfDir = dir })
}

// WithPluginMaxConfNum sets how many configurations [WithDefaultConf] loads; zero
// or less means all.
func WithPluginMaxConfNum(maxConfigs int) Opt {
	return set(func(c *config) { c.pluginMaxConfNum = maxConfigs })
}

// WithMinNetworkCount sets how many networks must be loaded before the Runtime
// counts as initialized; 1 by default.
func WithMinNetworkCount(count int) Opt {
	return set(func(c *config) { c.minNetworks = count })
}

// WithStateDir sets the directory for results and locks, /var/lib/cni by default.
// libcni's cache is in its results/, everything else in its embedcni/. Processes
// that manage the same containers must share it. It is created on first use.
func WithStateDir(dir string) Opt {
	return func(c *config) error {
		if dir == "" {
			return fmt.Errorf("the state directory is empty: %w", ErrInvalidArgument)
		}
		c.StateDir = dir
		return nil
	}
}

// WithRecordDir sets the directory of the attachment records and of the pinned
// namespaces; by default it is in the state directory. It must survive a reboot;
// otherwise files of attachments from before the reboot cannot be cleaned up.
func WithRecordDir(dir string) Opt {
	return set(func(c *config) { c.RecordDir = dir })
}

// WithOwner sets the owner of new attachments. [Runtime.Recover] and GC touch only their own
// owner's attachments, so that programs that share a host or a container do not
// remove each other's. The default is the name of the program's executable: after its
// executable was renamed, a program no longer finds its own. So with the default, Recover
// and GC log the other owners of attachments and list them in Report.OtherOwners.
func WithOwner(name string) Opt {
	return set(func(c *config) { c.Owner, c.OwnerNamed = name, true })
}

// WithHostNetNS sets the network namespace in which plugins run, by path. The
// default is the calling thread's.
func WithHostNetNS(path string) Opt {
	return set(func(c *config) { c.HostNetNS = path })
}

// WithTimeouts limits the duration of plugin calls; see Timeouts.
func WithTimeouts(t Timeouts) Opt {
	return set(func(c *config) { c.Timeouts = engine.Timeouts(t.over(Timeouts(c.Timeouts))) })
}

// WithPluginEnv passes more variables of the runtime's environment to plugins, by
// name or by a prefix that ends in '*'. Without it plugins get the CNI_* variables,
// PATH, and those that iptables and firewalld read. Other variables, which may hold
// secrets, are not passed.
func WithPluginEnv(names ...string) Opt {
	return set(func(c *config) { c.EnvAllow = append(slices.Clone(c.EnvAllow), names...) })
}

// WithInsecureFiles accepts plugins and configurations that users other than root
// and this process's user can write or replace: those in these directories, or, without
// any, wherever they are. They are refused by default, because
// their writers execute code with the runtime's privileges. A file is insecure
// if every user may write it, or a directory or symbolic link on the way to it (the
// sticky bit makes a directory safe), or if the owner of one of these is neither root
// nor this process's user. Write permission of a group is accepted.
//
// A program in a container names the directory of a mounted ConfigMap, which the kubelet
// makes writable for everybody in the container.
func WithInsecureFiles(dirs ...string) Opt {
	return func(c *config) error {
		for _, dir := range dirs {
			if !filepath.IsAbs(dir) {
				return fmt.Errorf("directory %q of insecure files is not an absolute path: %w", dir, ErrInvalidArgument)
			}
		}
		if c.Insecure = slices.Clone(dirs); len(dirs) == 0 {
			c.Insecure = []string{"/"}
		}
		return nil
	}
}

// WithStrictCapabilities makes a capability that no plugin declares an error, for
// example port mappings without portmap in the configuration. By default it is an error
// only for some options; see [WithCapability].
func WithStrictCapabilities() Opt {
	return set(func(c *config) { c.strictCaps = true })
}

// WithStrictPorts makes [Runtime.Setup] refuse to forward a port of the host that another process
// uses ([ErrPortInUse]), that a container of another program has which may be gone, or that
// is at an address that the host does not have ([ErrNotHostAddress]). By default these are
// warnings, in the log and in Result.PortWarnings. From then on the container gets the
// packets instead of the process; at an address that the host lacks, nobody gets any until
// the host has it.
//
// A process uses a port if no socket can be bound to it. This process's own sockets do not
// count, so that a program can reserve a port by listening on it; nor does UDP in the
// ephemeral range of the host (net.ipv4.ip_local_port_range), where most sockets ask and do
// not serve. For TCP a connection that the host has opened from a port in that range counts.
// A port of another container is always refused.
func WithStrictPorts() Opt {
	return set(func(c *config) { c.StrictPorts = true })
}

// WithPortRange sets the ports of the host from which [Runtime.Setup] chooses those that
// [WithPorts] leaves open: first to last. By default these are 20000 to 29999.
//
// Of the range, Setup never chooses a port that the kernel gives to sockets which ask for
// none (net.ipv4.ip_local_port_range of the host), unless that is reserved in
// net.ipv4.ip_local_reserved_ports, so that the kernel does not. Of the default range,
// reserved ports are left to those for whom they are reserved.
//
// It begins anywhere in the range and goes on from there, so that a port is not used
// again at once, when peers of its former container may still send to it.
func WithPortRange(first, last int) Opt {
	return func(c *config) error {
		if first < 1 || last < first || last > 65535 {
			return fmt.Errorf("host ports %d to %d: %w", first, last, ErrInvalidArgument)
		}
		c.PortRange = ports.Range{First: uint16(first), Last: uint16(last), Named: true}
		return nil
	}
}

// WithLogger sets the logger for events that no error reports: each plugin call at
// debug level, or at info level if the plugin wrote to stderr; skipped files and
// other oddities at warning level. By default nothing is logged, but for capabilities
// without effect (see [WithCapability]): slog's default logger gets the first warning about
// each. Nil logs nothing at all.
func WithLogger(logger *slog.Logger) Opt {
	return set(func(c *config) {
		if logger == nil {
			logger = slog.New(slog.DiscardHandler)
		}
		c.Logger, c.loggerSet = logger, true
	})
}

// WithoutReaping turns off the background removal of abandoned containers. Only
// [Runtime.Remove], [Runtime.Recover] and GC then remove them.
//
// By default a Runtime removes containers of its owner that nobody else removes:
// some programs forget a container whose process is gone, and expect its network
// namespace to end with the process. A container is abandoned when the path that
// was given to [Runtime.Setup] no longer leads to its namespace: the path does not exist, or
// is an empty file or another namespace. The Runtime then stops keeping the
// namespace alive. The kernel ends the namespace unless a process, a mount or a
// descriptor still holds it. When the namespace ends, the host's end of the
// container's veth pair vanishes. The container is then removed as by Remove with
// an empty path.
//
// This applies to bridge and ptp, alone or followed by reference plugins that
// undo their work on the host. Other containers are logged once, at warning
// level, and stay: with other plugins the host does not show whether the namespace
// has ended, and a device that host-device moved into it would not come back.
// Containers that cannot be judged stay too: the path was recorded in another
// mount or PID namespace, by an earlier version, or relative to a process
// (/proc/self); the path cannot be read; another call has locked the container; or
// another owner has attached it too.
//
// The work runs in the background. From the first Setup on, each call of Setup,
// Remove or Check requests a scan of all records, which reads in parts with
// pauses between them. A replacement of package reconcile requests none. No call waits for a scan, except a call for a container
// that is being removed at that moment, and a Setup that wants a host port of an
// abandoned container, which it removes itself; it waits for a second at most. If the
// process ends during a removal, a later process continues it.
func WithoutReaping() Opt {
	return set(func(c *config) { c.WithoutReaping = true })
}

// WithPlugin registers a plugin of the caller's own. It runs in process whenever
// a configuration names its type, and takes precedence over every other plugin
// of that type. The types bridge, portmap and so on may be replaced like this. A
// type can be registered once; a later Load may register another plugin for it.
//
// The plugin that is registered for the type at that time checks and removes its
// attachments. If none is registered, the error is [ErrPluginNotFound] and the
// record stays, even if there is an executable or a built-in plugin of that
// name, which would be a different plugin.
//
// The container is locked while the plugin works. With its context the plugin may run other
// plugins (plugin.Request.Delegate) and call Load, Status, Networks, [Runtime.GetConfig]
// and Attachments. [Runtime.Setup], [Runtime.Remove], Check, [Runtime.CleanUp],
// [Runtime.Recover] and GC on the same state directory return [ErrInsidePlugin], because
// they could wait for the plugin for ever. Its Status may call anything.
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
		c.choosing.Registered = engine.Merge(c.choosing.Registered, map[string]plugin.Plugin{typ: p})
		return nil
	}
}

// WithBuiltinPlugins runs this module's own plugins, in process, even if there are
// executables in the plugin directories: all of them, or those of these types,
// each of which must be built in. For the other types it is [WithBuiltinFallback].
//
// A program that names neither option does not link the built-in plugins, but for
// loopback, and a type that is in none of the plugin directories is [ErrPluginNotFound].
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
// none, [Runtime.Setup] returns an error that says what to do.
func WithBuiltinPlugins(types ...string) Opt {
	return set(func(c *config) {
		linkBuiltins(c)
		c.choosing.Prefer = append(c.choosing.Prefer, types...)
		c.choosing.PreferAll = c.choosing.PreferAll || len(types) == 0
	})
}

// WithBuiltinFallback runs this module's own plugins for the types that are in none of the
// plugin directories. [WithBuiltinPlugins] says more.
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
//     library looks for addresses that are left. Else [Runtime.Setup] does not run the plugin;
//   - /run/xtables.lock, and the state directory, where this library pins namespaces.
//
// A dir that is missing or cannot be entered, or that other users can replace, is an error
// of Setup, [Runtime.Remove] and Check. A built-in plugin never runs because of it. Records do not
// have dir: a daemon that moves into a container, or to another dir, finds the
// executables of its containers if their paths in dir are the former ones.
func WithPluginRoot(dir string) Opt {
	return func(c *config) error {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("plugin root %q is not an absolute path: %w", dir, ErrInvalidArgument)
		}
		c.PluginRoot = invoke.Root(filepath.Clean(dir))
		if c.PluginRoot == "/" {
			c.PluginRoot = ""
		}
		return nil
	}
}

// precedence returns those of the directories that first has before the others, in its
// order. It returns nil if first changes nothing.
func precedence(dirs, first []string) (found []string) {
	all := engine.Ordered(dirs, first)
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

// checkPluginRoot refuses what WithPluginRoot cannot be combined with.
func (c *config) checkPluginRoot() error {
	if c.PluginRoot == "" {
		return nil
	}
	if !thread.CanChangeRoot {
		return fmt.Errorf("plugin root %s: %w", c.PluginRoot, ErrNotSupported)
	}
	for _, dir := range c.PluginDirs {
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
	after.Registered = engine.Merge(before.Registered, options.Registered)
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

// Retry configures how often [Runtime.Setup] repeats an attempt that failed with a
// transient error: code 11, "try again later", or the error of a plugin that has lost
// a race with another one for a bridge, a chain or the lock of iptables.
type Retry struct {
	Attempts int           // in total; 1 or less does not retry
	Delay    time.Duration // before the second attempt, doubling from then on; 100 ms if zero
	MaxDelay time.Duration // 5 s if zero; limits every delay, the first too
}

// WithRetry makes [Runtime.Setup] retry. Each attempt starts from a clean state: Setup
// first detaches everything from the attempt before, and stops if that fails.
// Between attempts it waits for a random part of the delay, at most until the
// context ends.
func WithRetry(r Retry) Opt {
	return func(c *config) error {
		if r.Attempts < 0 || r.Delay < 0 || r.MaxDelay < 0 {
			return fmt.Errorf("retry %+v: negative: %w", r, ErrInvalidArgument)
		}
		c.Retry = engine.Retry(r)
		return nil
	}
}

// WithObserver sets a function that is called after each plugin call, for metrics
// and traces. It is called by several goroutines at once, and the operation waits
// for it. ctx is the operation's.
func WithObserver(observe func(ctx context.Context, e Event)) Opt {
	return set(func(c *config) {
		if c.Observe = nil; observe != nil {
			c.Observe = func(ctx context.Context, e runner.Event) { observe(ctx, Event(e)) }
		}
	})
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
