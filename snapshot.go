package cni

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/firewalld"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/leftovers"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/nft"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/runner"
)

// snapshot is a complete configuration. It is immutable: Load makes another one, and
// calls under way keep theirs.
type snapshot struct {
	opts      settings
	store     *container.Store
	wanted    *config // the options that it was made by
	networks  []*Network
	last      *snapshot // the last one with networks, if a Reload found that theirs are gone
	skipped   []SkippedFile
	own       string // the directory of locks and marks
	runner    *runner.Runtime
	loRunner  *runner.Runtime // runs the plugins of the loopback network; see runnerOf
	addresses *container.ByAddress
	ports     *ports.Index
	abandoned *leftovers.Search
	sockets   *nft.Pool
	parsed    *conflist.Cache // of recorded configurations
	deletions *links.Deletions
	bus       *firewalld.Bus
	status    statusCache
	warned    sync.Map // see loud
}

// All Runtimes of the process change the rules and interfaces of the same namespaces: a
// program may make a Runtime for each container. The sockets close themselves.
var (
	sockets   nft.Pool
	deletions links.Deletions
)

// newSnapshot reads the networks.
func newSnapshot(want *config, previous *snapshot) (*snapshot, error) {
	b := &build{settings: &want.settings, previous: previous}
	for _, load := range want.loaders {
		if err := load.load(b); err != nil {
			return nil, err
		}
	}
	return b.snapshot(want), nil
}

// snapshot makes a configuration of the networks that were read.
func (b *build) snapshot(want *config) *snapshot {
	previous := b.previous
	s := &snapshot{opts: want.settings, wanted: want, networks: b.networks, skipped: b.skipped, parsed: &conflist.Cache{}}
	env := invoke.Environ(os.Environ(), s.opts.envAllow, nil)
	s.own = canonical(filepath.Join(s.opts.stateDir, "embedcni"))
	recordDir := canonical(cmp.Or(s.opts.recordDir, filepath.Join(s.own, "attachments")))
	s.sockets, s.deletions = &sockets, &deletions
	s.bus = firewalld.Open(invoke.Variable(env, firewalld.Variable))
	var shared *container.Store
	if previous != nil {
		shared = previous.store
	}
	s.store = container.Open(filepath.Join(s.own, "locks"), recordDir, s.opts.hostNetNS, s.opts.logger, shared)
	var first *runner.Firsts
	var references *runner.References
	if previous != nil && previous.store.Records == s.store.Records {
		first, references, s.addresses = previous.runner.First, previous.runner.References, previous.addresses
	} else {
		s.addresses = container.NewByAddress(s.store.Records)
		first, references = runner.NewFirsts(s.store.Locks.Space), &runner.References{}
	}
	s.ports = ports.Open(s.store.Records, s.opts.stateDir, s.opts.logger)
	s.runner = &runner.Runtime{
		Choice: s.opts.choice, Env: env, Limit: s.opts.timeouts.of, Observe: observer(s.opts.observe), Logger: s.opts.logger,
		Bus: s.bus, Locks: s.store.Locks.Space, First: first, References: references,
	}
	s.runner.Root, s.runner.Dirs, s.runner.AllowInsecure = s.opts.pluginRoot, s.opts.pluginDirs, s.opts.allowInsecure
	s.abandoned = s.search(previous)
	own := *s.runner
	own.Prefer = append(slices.Clone(own.Prefer), known.Loopback)
	s.loRunner = &own
	for _, n := range s.networks {
		n.snapshot = s
	}
	return s
}

// search returns the search for abandoned containers. Runtimes with the same settings
// share one, except those with registered plugins: two such plugins cannot be compared.
func (s *snapshot) search(previous *snapshot) *leftovers.Search {
	if len(s.opts.choice.Registered) == 0 {
		alike := append([]string{s.store.Records.Dir(), s.opts.owner, s.store.Boot, s.opts.hostNetNS, s.runner.Key()}, s.runner.Env...)
		return leftovers.SearchOf(strings.Join(alike, "\x00"))
	}
	if previous != nil && previous.store.Records == s.store.Records && len(previous.opts.choice.Registered) > 0 {
		return previous.abandoned
	}
	return leftovers.SearchOf("")
}

// runnerOf returns the settings under which the plugins of a network run. The network of
// WithLoNetwork is the library's own, so its plugin is too, whatever is installed.
func (s *snapshot) runnerOf(n *Network) *runner.Runtime {
	if n.isLo {
		return s.loRunner
	}
	return s.runner
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
