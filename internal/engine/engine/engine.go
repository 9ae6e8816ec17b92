package engine

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/kernel/nft"
	"github.com/embedcni/cni/internal/run/invoke"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/ports"
)

// Engine attaches and detaches containers with one set of options and networks. It is
// immutable: a Load makes another one, and calls under way keep theirs.
type Engine struct {
	opts      Options
	Store     *container.Store
	networks  []*Network
	Own       string // the directory of locks and marks
	runner    *runner.Runtime
	loRunner  *runner.Runtime // runs the plugins of the loopback network; see RunnerOf
	Addresses *container.ByAddress
	ports     *ports.Index
	abandoned *leftovers.Search
	parsed    *conflist.Cache // of recorded configurations
	status    statusCache
}

// Options are how an engine works.
type Options struct {
	PluginDirs     []string
	PluginRoot     invoke.Root
	StateDir       string
	RecordDir      string // empty: below stateDir
	Owner          string
	OwnerNamed     bool // by the caller
	Retry          Retry
	HostNetNS      string
	Timeouts       Timeouts
	EnvAllow       []string
	Insecure       []string
	StrictPorts    bool
	PortRange      ports.Range
	WithoutReaping bool
	Choice         runner.Choice
	Logger         *slog.Logger
	Observe        func(context.Context, runner.Event)
}

// Timeouts limit the duration of one plugin's call for each verb; see cni.Timeouts.
type Timeouts struct{ Add, Del, Check, Status time.Duration }

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

// Network is a network configuration with the name of its interface in a container.
type Network struct {
	Config *libcni.NetworkConfigList
	IfName string
	IsLo   bool // the network of WithLoNetwork
}

// All Runtimes of the process change the rules of the same namespaces: a program may make a
// Runtime for each container. The sockets close themselves.
var sockets nft.Pool

// NewEngine returns an engine, which shares with the previous one what both know.
func NewEngine(o Options, networks []*Network, previous *Engine) *Engine {
	s := &Engine{opts: o, networks: networks, parsed: &conflist.Cache{}}
	env := invoke.Environ(os.Environ(), o.EnvAllow)
	s.Own = canonical(filepath.Join(o.StateDir, "embedcni"))
	recordDir := canonical(cmp.Or(o.RecordDir, filepath.Join(s.Own, "attachments")))
	var shared *container.Store
	if previous != nil {
		shared = previous.Store
	}
	s.Store = container.Open(filepath.Join(s.Own, "locks"), recordDir, o.HostNetNS, o.Logger, shared)
	var first *runner.Firsts
	var references *runner.References
	if previous != nil && previous.Store.Records == s.Store.Records {
		first, references, s.Addresses = previous.runner.First, previous.runner.References, previous.Addresses
	} else {
		s.Addresses = container.NewByAddress(s.Store.Records)
		first, references = runner.NewFirsts(s.Store.Locks.Space), &runner.References{}
	}
	s.ports = ports.Open(s.Store.Records, o.StateDir, o.Logger)
	s.runner = &runner.Runtime{
		Choice: o.Choice, Env: env, Limit: o.Timeouts.of, Observe: o.Observe, Logger: o.Logger,
		Bus: firewalld.Open(invoke.Variable(env, firewalld.Variable)), Locks: s.Store.Locks.Space, First: first, References: references,
	}
	s.runner.Root, s.runner.Dirs, s.runner.Insecure = o.PluginRoot, o.PluginDirs, o.Insecure
	s.abandoned = searchFor(s, previous)
	own := *s.runner
	own.Prefer = append(slices.Clone(own.Prefer), conflist.Loopback)
	s.loRunner = &own
	return s
}

// searchFor returns the search for abandoned containers. Runtimes with the same settings
// share one, except those with registered plugins: two such plugins cannot be compared.
func searchFor(eng, previous *Engine) *leftovers.Search {
	if len(eng.opts.Choice.Registered) == 0 {
		alike := append([]string{eng.Store.Records.Dir(), eng.opts.Owner, eng.Store.Boot, eng.opts.HostNetNS, eng.runner.Key()}, eng.runner.Env...)
		return leftovers.SearchOf(strings.Join(alike, "\x00"))
	}
	if previous != nil && previous.Store.Records == eng.Store.Records && len(previous.opts.Choice.Registered) > 0 {
		return previous.abandoned
	}
	return leftovers.SearchOf("")
}

// RunnerOf returns the settings under which the plugins of a network run. The network of
// WithLoNetwork is the library's own, so its plugin is too, whatever is installed.
func (eng *Engine) RunnerOf(n *Network) *runner.Runtime {
	if n.IsLo {
		return eng.loRunner
	}
	return eng.runner
}

// openHost opens the network namespace in which plugins run.
func (eng *Engine) openHost() (*container.Host, error) {
	return eng.Store.Hosts.Open(eng.opts.HostNetNS)
}

// canonical resolves the symbolic links of a path, as far as it exists. The path is
// stored in records and must lead to the same place however a later program spells
// the directory.
func canonical(path string) string {
	dir, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	for rest := ""; ; {
		if resolved, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(resolved, rest)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return path
		}
		dir, rest = parent, filepath.Join(filepath.Base(dir), rest)
	}
}

// Ordered returns directories, with those that are among first before the others.
func Ordered(dirs, first []string) []string {
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
