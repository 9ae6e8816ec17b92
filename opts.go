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
	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/runner"
)

const (
	// CNIPluginName is the name under which runtimes register their network
	// plugin.
	CNIPluginName = "cni"
	// DefaultMaxConfNum is the number of configurations that WithDefaultConf
	// loads.
	DefaultMaxConfNum = 1
	// DefaultPrefix is the prefix of interface names.
	DefaultPrefix = "eth"

	// DefaultNetDir is the directory of configurations: /etc/cni/net.d, or on Windows
	// C:\Program Files\containerd\cni\conf.
	DefaultNetDir = conflist.NetDir
	// DefaultCNIDir is the directory of plugins: /opt/cni/bin, or on Windows
	// C:\Program Files\containerd\cni\bin.
	DefaultCNIDir = conflist.CNIDir
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
	pluginDirs       []string
	pluginRoot       invoke.Root
	pluginConfDir    string
	pluginMaxConfNum int
	prefix           string
	minNetworks      int
	stateDir         string
	recordDir        string // empty: below stateDir
	owner            string
	ownerNamed       bool // by WithOwner
	teardownErrors   bool
	retry            Retry
	hostNetNS        string
	timeouts         Timeouts
	statusTTL        time.Duration
	envAllow         []string
	allowInsecure    bool
	strictCaps       bool
	strictPorts      bool
	portRange        ports.Range
	withoutReaping   bool
	choice           runner.Choice
	logger           *slog.Logger
	loggerSet        bool
	observe          func(context.Context, Event)
}

func defaultSettings() settings {
	return settings{
		pluginDirs:       []string{DefaultCNIDir},
		pluginConfDir:    DefaultNetDir,
		pluginMaxConfNum: DefaultMaxConfNum,
		prefix:           DefaultPrefix,
		minNetworks:      1,
		stateDir:         conflist.StateDir,
		owner:            filepath.Base(os.Args[0]),
		timeouts:         Timeouts{Add: 3 * time.Minute, Del: time.Minute, Check: time.Minute, Status: 10 * time.Second},
		statusTTL:        time.Second,
		portRange:        ports.Range{First: 20000, Last: 29999},
		choice:           runner.Choice{BuiltIn: builtin.Loopback},
		envAllow:         invoke.DefaultAllow(),
		logger:           slog.New(slog.DiscardHandler),
	}
}

// Timeouts limit the duration of one plugin's call for each verb. Zero keeps a
// verb's default, a negative value removes the limit.
//
// They apply to each plugin, not to the whole call, so that a hanging plugin does
// not use up the time of the others in a teardown.
type Timeouts struct {
	Add    time.Duration // default 3 minutes: DHCP and cloud providers take long
	Del    time.Duration // default 1 minute; GC has the same
	Check  time.Duration // default 1 minute
	Status time.Duration // default 10 seconds
}

func (t Timeouts) of(verb string) time.Duration {
	switch verb {
	case "ADD":
		return t.Add
	case "DEL", "GC":
		return t.Del
	case "CHECK":
		return t.Check
	default:
		return t.Status
	}
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
		if err := validateIfName(ifName(prefix, 0)); err != nil {
			return fmt.Errorf("interface prefix %q: %w", prefix, err)
		}
		c.prefix = prefix
		return nil
	}
}

// WithPluginDir sets the directories that are searched for plugins, in order.
// They need not exist yet.
func WithPluginDir(dirs []string) Opt {
	return set(func(c *config) { c.pluginDirs = slices.Clone(dirs) })
}

// WithPluginConfDir sets the directory of the network configurations.
func WithPluginConfDir(dir string) Opt {
	return set(func(c *config) { c.pluginConfDir = dir })
}

// WithPluginMaxConfNum sets how many configurations WithDefaultConf loads; zero
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
		c.stateDir = dir
		return nil
	}
}

// WithRecordDir sets the directory of the attachment records and of the pinned
// namespaces; by default it is in the state directory. It must survive a reboot;
// otherwise files of attachments from before the reboot cannot be cleaned up.
func WithRecordDir(dir string) Opt {
	return set(func(c *config) { c.recordDir = dir })
}

// WithOwner sets the owner of new attachments. Recover and GC touch only their own
// owner's attachments, so that programs that share a host or a container do not
// remove each other's. The default is the name of the program's executable: after its
// executable was renamed, a program no longer finds its own. So with the default, Recover
// and GC log the other owners of attachments and list them in Report.OtherOwners.
func WithOwner(name string) Opt {
	return set(func(c *config) { c.owner, c.ownerNamed = name, true })
}

// WithTeardownErrors makes Remove return the error of a failed DEL even if the sweep
// has removed everything. By default the error is logged and Remove succeeds.
func WithTeardownErrors() Opt {
	return set(func(c *config) { c.teardownErrors = true })
}

// WithHostNetNS sets the network namespace in which plugins run, by path. The
// default is the calling thread's.
func WithHostNetNS(path string) Opt {
	return set(func(c *config) { c.hostNetNS = path })
}

// WithTimeouts limits the duration of plugin calls; see Timeouts.
func WithTimeouts(t Timeouts) Opt {
	return set(func(c *config) { c.timeouts = t.over(c.timeouts) })
}

// WithStatusCache sets how long a successful Status is cached, one second by
// default; zero disables the cache. Errors are not cached.
func WithStatusCache(ttl time.Duration) Opt {
	return set(func(c *config) { c.statusTTL = ttl })
}

// WithPluginEnv passes more variables of the runtime's environment to plugins, by
// name or by a prefix that ends in '*'. Without it plugins get the CNI_* variables,
// PATH, and those that iptables and firewalld read. Other variables, which may hold
// secrets, are not passed.
func WithPluginEnv(names ...string) Opt {
	return set(func(c *config) { c.envAllow = append(slices.Clone(c.envAllow), names...) })
}

// WithInsecureFiles accepts plugins and configurations that users other than root
// and this process's user can write or replace. They are refused by default, because
// their writers execute code with the runtime's privileges. A file is insecure
// if every user may write it, or a directory or symbolic link on the way to it (the
// sticky bit makes a directory safe), or if the owner of one of these is neither root
// nor this process's user. Write permission of a group is accepted.
func WithInsecureFiles() Opt {
	return set(func(c *config) { c.allowInsecure = true })
}

// WithStrictCapabilities makes a capability that no plugin declares an error, for
// example port mappings without portmap in the configuration. By default it is an error
// only for some options; see WithCapability.
func WithStrictCapabilities() Opt {
	return set(func(c *config) { c.strictCaps = true })
}

// WithStrictPorts makes Setup refuse to forward a port of the host that another process
// uses (ErrPortInUse), that a container of another program has which may be gone, or that
// is at an address that the host does not have (ErrNotHostAddress). By default these are
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
	return set(func(c *config) { c.strictPorts = true })
}

// WithPortRange sets the ports of the host from which Setup chooses those that WithPorts
// leaves open: first to last. By default these are 20000 to 29999.
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
		c.portRange = ports.Range{First: uint16(first), Last: uint16(last), Named: true}
		return nil
	}
}

// WithLogger sets the logger for events that no error reports: each plugin call at
// debug level, or at info level if the plugin wrote to stderr; skipped files and
// other oddities at warning level. By default nothing is logged, but for capabilities
// without effect (see WithCapability): slog's default logger gets the first warning about
// each. Nil logs nothing at all.
func WithLogger(logger *slog.Logger) Opt {
	return set(func(c *config) {
		if logger == nil {
			logger = slog.New(slog.DiscardHandler)
		}
		c.logger, c.loggerSet = logger, true
	})
}

// WithoutReaping turns off the background removal of abandoned containers. Only
// Remove, Recover and GC then remove them.
//
// By default a Runtime removes containers of its owner that nobody else removes:
// some programs forget a container whose process is gone, and expect its network
// namespace to end with the process. A container is abandoned when the path that
// was given to Setup no longer leads to its namespace: the path does not exist, or
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
// pauses between them. No call waits for a scan, except a call for a container
// that is being removed at that moment, and a Setup that wants a host port of an
// abandoned container, which it removes itself; it waits for a second at most. If the
// process ends during a removal, a later process continues it.
func WithoutReaping() Opt {
	return set(func(c *config) { c.withoutReaping = true })
}
