package cni

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/invoke"
)

const (
	// CNIPluginName is the name runtimes register their network plugin under.
	CNIPluginName = "cni"
	// DefaultMaxConfNum is how many configurations WithDefaultConf loads.
	DefaultMaxConfNum = 1
	// DefaultPrefix is what interface names begin with.
	DefaultPrefix = "eth"
)

// Opt configures a Runtime, in New or in Load: settings, which apply wherever
// they stand among the options, and networks, which are loaded in the order of
// the options once all settings are known.
type Opt func(c *config) error

// config is what options write to.
type config struct {
	settings
	loaders  []loader
	choosing choice // what these options say of it
}

// settings are what a Runtime is told; they stay from one Load to the next.
type settings struct {
	pluginDirs       []string
	pluginConfDir    string
	pluginMaxConfNum int
	prefix           string
	minNetworks      int
	stateDir         string
	recordDir        string // empty: below stateDir
	owner            string
	teardownErrors   bool
	retry            Retry
	hostNetNS        string
	timeouts         Timeouts
	statusTTL        time.Duration
	envAllow         []string
	allowInsecure    bool
	strictCaps       bool
	withoutReaping   bool
	choice           choice
	logger           *slog.Logger
	observe          func(context.Context, Event)
}

func defaultSettings() settings {
	return settings{
		pluginDirs:       []string{DefaultCNIDir},
		pluginConfDir:    DefaultNetDir,
		pluginMaxConfNum: DefaultMaxConfNum,
		prefix:           DefaultPrefix,
		minNetworks:      1,
		stateDir:         defaultStateDir,
		owner:            filepath.Base(os.Args[0]),
		timeouts:         defaultTimeouts(),
		statusTTL:        time.Second,
		choice:           choice{builtIn: builtin.New()},
		envAllow:         invoke.DefaultAllow(),
		logger:           slog.New(discard{}),
	}
}

// Timeouts bound how long one plugin may take for one verb. Zero leaves a
// verb's default, a negative value takes the bound away.
//
// They are per plugin, not per call, so that in a teardown a plugin that hangs
// does not use up the time of those behind it.
type Timeouts struct {
	Add    time.Duration // default 3 minutes: DHCP and cloud providers take long
	Del    time.Duration // default 1 minute; GC has the same
	Check  time.Duration // default 1 minute
	Status time.Duration // default 10 seconds
}

func defaultTimeouts() Timeouts {
	return Timeouts{
		Add:    3 * time.Minute,
		Del:    time.Minute,
		Check:  time.Minute,
		Status: 10 * time.Second,
	}
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
	or := func(d, otherwise time.Duration) time.Duration {
		if d == 0 {
			return otherwise
		}
		return d
	}
	return Timeouts{
		Add:    or(t.Add, defaults.Add),
		Del:    or(t.Del, defaults.Del),
		Check:  or(t.Check, defaults.Check),
		Status: or(t.Status, defaults.Status),
	}
}

// WithInterfacePrefix sets what interface names begin with, "eth" by default.
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

// WithPluginDir sets the directories in which plugins are looked for, in order.
// They need not exist yet.
func WithPluginDir(dirs []string) Opt {
	return func(c *config) error {
		c.pluginDirs = slices.Clone(dirs)
		return nil
	}
}

// WithPluginPath sets the directories in which plugins are looked for from a
// list as CNI_PATH has it: separated by ':' (';' on Windows), empty elements
// ignored.
func WithPluginPath(list string) Opt {
	return func(c *config) error {
		dirs := slices.DeleteFunc(filepath.SplitList(list), func(dir string) bool { return dir == "" })
		if len(dirs) == 0 {
			return fmt.Errorf("plugin path %q names no directory: %w", list, ErrInvalidArgument)
		}
		c.pluginDirs = dirs
		return nil
	}
}

// WithPluginConfDir sets the directory of the network configurations.
func WithPluginConfDir(dir string) Opt {
	return func(c *config) error {
		c.pluginConfDir = dir
		return nil
	}
}

// WithPluginMaxConfNum sets how many configurations WithDefaultConf loads; zero
// or less means all.
func WithPluginMaxConfNum(maxConfigs int) Opt {
	return func(c *config) error {
		c.pluginMaxConfNum = maxConfigs
		return nil
	}
}

// WithMinNetworkCount sets how many networks must be loaded before the Runtime
// counts as initialized; 1 by default.
func WithMinNetworkCount(count int) Opt {
	return func(c *config) error {
		c.minNetworks = count
		return nil
	}
}

// WithStateDir sets the directory in which results and locks are kept,
// /var/lib/cni by default: libcni's cache in results/, the rest in embedcni/.
// Processes that manage the same containers must share it. It is created when
// it is first needed.
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
// namespaces; by default it lies in the state directory. It must survive a
// reboot, or what the reboot left cannot be cleaned up.
func WithRecordDir(dir string) Opt {
	return func(c *config) error {
		c.recordDir = dir
		return nil
	}
}

// WithOwner names who attaches. Recover and GC touch only attachments of their
// own owner, so that programs that share a host, or a container, do not tear down
// each other's. The default is the name of the program's executable.
func WithOwner(name string) Opt {
	return func(c *config) error {
		c.owner = name
		return nil
	}
}

// WithTeardownErrors makes Remove return what DEL failed with even if the sweep
// behind it has left nothing. By default that is logged and Remove succeeds.
func WithTeardownErrors() Opt {
	return func(c *config) error {
		c.teardownErrors = true
		return nil
	}
}

// WithHostNetNS sets the network namespace in which plugins run, by path. By
// default it is that of the thread that calls.
func WithHostNetNS(path string) Opt {
	return func(c *config) error {
		c.hostNetNS = path
		return nil
	}
}

// WithTimeouts bounds how long a plugin may take; see Timeouts.
func WithTimeouts(t Timeouts) Opt {
	return func(c *config) error {
		c.timeouts = t.over(c.timeouts)
		return nil
	}
}

// WithStatusCache sets for how long a good Status is not asked for again, one
// second by default; zero asks each time. An error is never kept.
func WithStatusCache(ttl time.Duration) Opt {
	return func(c *config) error {
		c.statusTTL = ttl
		return nil
	}
}

// WithPluginEnv lets more variables of the runtime's environment through to the
// plugins, by name or by a prefix that ends in '*'. Without it plugins get the
// CNI_* variables, PATH, and the few that iptables and firewalld read; what
// else the runtime's environment holds, such as its secrets, stays with it.
func WithPluginEnv(names ...string) Opt {
	return func(c *config) error {
		c.envAllow = append(slices.Clone(c.envAllow), names...)
		return nil
	}
}

// WithInsecureFiles accepts plugins and configurations that others than root and
// this process's user can write or replace. They are refused by default: who can
// write them runs as the runtime. That is so of a file, and of each directory and
// symbolic link on the way to it, that every user may write (a directory with the
// sticky bit passes), or whose owner is neither root nor this process's user. A
// group may have the write bit.
func WithInsecureFiles() Opt {
	return func(c *config) error {
		c.allowInsecure = true
		return nil
	}
}

// WithStrictCapabilities makes it an error to give a capability that no plugin
// declares, for example port mappings where no portmap is configured. By
// default it is logged as a warning and the capability has no effect.
func WithStrictCapabilities() Opt {
	return func(c *config) error {
		c.strictCaps = true
		return nil
	}
}

// WithLogger sets where is logged what is not returned: each plugin's call at
// debug level, at info level with its stderr if it wrote any; what was passed
// over at warning level. The default logs nothing.
func WithLogger(logger *slog.Logger) Opt {
	return func(c *config) error {
		if logger == nil {
			logger = slog.New(discard{})
		}
		c.logger = logger
		return nil
	}
}

// WithObserver sets a function that is told of each plugin call when it is
// over, for metrics and traces. It is called from many goroutines at once and
// holds up the operation while it runs. ctx is the operation's.
func WithObserver(observe func(ctx context.Context, e Event)) Opt {
	return func(c *config) error {
		c.observe = observe
		return nil
	}
}

// Event is one plugin's call, as an observer is told of it. What an in-process
// plugin delegates, for example to an IPAM plugin, is part of its own call.
type Event struct {
	Operation   string // CNI_COMMAND: ADD, DEL, CHECK, STATUS
	Network     string
	Plugin      string     // its type
	PluginKind  PluginKind // what ran for it; empty if nothing did
	ContainerID string     // empty for STATUS
	IfName      string     // empty for STATUS, unless several loaded networks have the name
	Duration    time.Duration
	Err         error // what the plugin call ended with, or nil
}
