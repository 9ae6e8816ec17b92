package runner

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/ahead"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/firstadd"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/netns"
)

// All containers on a host share the top-level chains and rules of portmap and
// firewall. The executables create them for the first container: they look, then
// create, without a lock, so two of them at a time can create the same rules twice.
// For versions of the executables whose shared rules are known, the runtime makes
// these rules ahead: it creates them itself before it starts the executable. The
// ADDs then need not wait for each other. The runtime looks for the rules before each
// ADD, since an administrator, firewalld or docker may have flushed them.
//
// Rules made ahead stay if the runtime is killed. The plugin would have left the
// same rules.

// sharesRules reports whether the executable of a type creates rules that containers
// share.
func sharesRules(typ string) bool {
	rules := known.Of(typ).Rules
	return rules == known.HostPorts || rules == known.Forward
}

// Ahead remembers properties of executables, and the rules that were made ahead for
// ADDs that failed. The zero value is ready to use, by several goroutines at once.
type Ahead struct {
	versions ahead.Versions

	mu      sync.Mutex
	none    map[string]bool               // executables, by path, that create no shared rules
	givenUp map[string][]netfilter.Common // made for ADDs that failed, by host namespace
}

// Begin waits until the ADD may begin: the first ADD of a network runs alone for a
// moment if two of its plugins at the same time could create shared rules twice.
func (r *Runner) Begin(ctx context.Context, key firstadd.Key) (*firstadd.First, error) {
	key.Types = func() []string { return r.contended(ctx) }
	first, err := r.First.Begin(ctx, key)
	r.Plugins.turn = first
	return first, err
}

// contended returns the types in the chain whose plugins must not create their
// shared rules at the same time: executables whose shared rules are not known, and
// plugins that the caller has registered.
func (r *Runner) contended(ctx context.Context) []string {
	var types []string
	for _, p := range r.Network.Plugins {
		typ := p.Network.Type
		c, _, _ := r.Plugins.get(typ)
		if kind := Kind(c.Kind); kind != BuiltIn &&
			(kind != Executable || !r.Ahead.versions.Makes(ctx, r.Root, typ, c.Path, p.Bytes)) {
			types = append(types, typ)
		}
	}
	return types
}

// sharing is the ADD of an executable that creates rules which containers share.
type sharing struct {
	*Runner
	call      chain.Call
	plugin    Provider
	firewalls *netfilter.Firewalls
	rules     fwrules.Rules // which the reference plugin of the type would create
}

func (s *sharing) start(ctx context.Context) (invoke.Output, error) {
	return s.Runner.start(ctx, s.call, s.plugin)
}

// startAhead makes the missing shared rules ahead, and then runs the ADD. If it cannot
// make them, the ADD runs alone for a moment.
func (s *sharing) startAhead(ctx context.Context) (invoke.Output, error) {
	has, err := s.find(ctx)
	switch {
	case has:
		return s.startBeside(ctx)
	case errors.Is(err, netfilter.ErrNotSupported) || s.Ahead.makesNone(string(s.Root)+" "+s.plugin.Path):
		return s.start(ctx)
	case err == nil && s.isKnown(ctx):
		if err = s.make(ctx); err == nil {
			return s.startBeside(ctx)
		}
	}
	if err != nil {
		s.Logger.Warn("create the shared iptables rules ahead of the plugin", "container", s.ContainerID, "plugin", s.call.Plugin, "error", err)
	}
	return s.startAlone(ctx)
}

// isKnown reports whether all rules that the executable shares are known.
func (s *sharing) isKnown(ctx context.Context) bool {
	return s.Ahead.versions.Makes(ctx, s.Root, s.call.Plugin, s.plugin.Path, s.call.Stdin)
}

// make creates the missing shared rules.
func (s *sharing) make(ctx context.Context) error {
	made, err := s.firewalls.MakeCommon(ctx, s.rules)
	if !made.Empty() {
		s.Plugins.made = append(s.Plugins.made, made)
	}
	return err
}

// startBeside runs the ADD while the shared rules exist. Somebody may delete them
// meanwhile: an administrator or firewalld that flushes all rules, or a runtime with
// another state directory that takes back those of its failed ADD. If the ADD fails and
// they are gone, startBeside undoes it, makes them again, and runs it once more.
func (s *sharing) startBeside(ctx context.Context) (invoke.Output, error) {
	out, err := s.start(ctx)
	if !errors.As(err, new(*invoke.ExitError)) || !s.isKnown(ctx) {
		return out, err
	}
	if has, herr := s.firewalls.HasCommon(ctx, s.rules); has || herr != nil {
		return out, err
	}
	undo := s.call
	undo.Verb, undo.Env = "DEL", invoke.WithVariable(undo.Env, "CNI_COMMAND", "DEL")
	if _, derr := s.Runner.start(ctx, undo, s.plugin); derr != nil {
		return out, err
	}
	if s.make(ctx) != nil {
		return out, err
	}
	s.Logger.Info("repeat an ADD: the rules that containers share were deleted during it", "container", s.ContainerID, "plugin", s.call.Plugin, "error", err)
	return s.start(ctx)
}

// find finds out the rules, and reports whether they all exist. The plugin makes
// fewer rules if firewalld runs, which is asked only if a rule is missing.
func (s *sharing) find(ctx context.Context) (has bool, err error) {
	request := ahead.Request{Type: s.call.Plugin, IfName: s.IfName, Config: s.call.Stdin}
	s.firewalls, s.rules = netfilter.Open(s.Host, s.Given.Filters), request.Rules()
	has, err = s.firewalls.HasCommon(ctx, s.rules)
	if has || err != nil || !request.AsksForFirewalld() {
		return has, err
	}
	if request.Firewalld, err = s.Bus.Running(ctx, s.Host); !request.Firewalld || err != nil {
		return false, err
	}
	s.rules = request.Rules()
	return s.firewalls.HasCommon(ctx, s.rules)
}

// startAlone takes the turn of the type and runs the ADD, which then runs alone for a
// moment, unless the whole chain has the turn. Afterwards it removes duplicate rules.
func (s *sharing) startAlone(ctx context.Context) (invoke.Output, error) {
	var turn *firstadd.Turn
	if !s.Plugins.turn.Took(s.call.Plugin) {
		var err error
		if turn, err = s.First.Take(ctx, []string{s.call.Plugin}); err != nil {
			return invoke.Output{}, err
		}
		if has, err := s.firewalls.HasCommon(ctx, s.rules); has && err == nil {
			if err := turn.End(); err != nil {
				return invoke.Output{}, err
			}
			return s.start(ctx) // another ADD has made the rules meanwhile
		}
	}
	out, err := s.start(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), aheadTime)
	defer cancel()
	removed, rerr := s.firewalls.RemoveDuplicates(ctx, s.rules)
	if removed > 0 {
		s.Logger.Info("removed iptables rules that plugins had created twice", "container", s.ContainerID, "plugin", s.call.Plugin, "rules", removed)
	}
	if rerr = errors.Join(rerr, turn.End()); rerr != nil {
		s.Logger.Warn("look for iptables rules that plugins have created twice", "container", s.ContainerID, "plugin", s.call.Plugin, "error", rerr)
	}
	if has, herr := s.firewalls.HasCommon(ctx, s.rules); err == nil && herr == nil && !has {
		s.Ahead.noteNone(string(s.Root) + " " + s.plugin.Path)
	}
	return out, err
}

const (
	// aheadTime bounds the removal of duplicate rules.
	aheadTime = 10 * time.Second
	// takeBackTime bounds the removal of rules that were made ahead of a failed ADD.
	// Other calls wait for it. It takes milliseconds unless another program holds the
	// xtables lock.
	takeBackTime = 2 * time.Second
)

// makesNone reports whether an executable has succeeded without creating the shared
// rules of the reference plugin of its type.
func (h *Ahead) makesNone(path string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.none[path]
}

func (h *Ahead) noteNone(path string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.none == nil {
		h.none = make(map[string]bool)
	}
	h.none[path] = true
}

// GiveUp hands the rules that were made ahead of a failed ADD to TakeBack, which
// removes them if they are not in use. host identifies the host namespace.
func (h *Ahead) GiveUp(host string, p *Plugins) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.givenUp == nil {
		h.givenUp = make(map[string][]netfilter.Common)
	}
	if len(p.made) > 0 {
		h.givenUp[host] = append(h.givenUp[host], p.made...)
		p.made = nil
	}
}

// TakeBack removes the rules in the namespace that were made ahead of failed ADDs. It
// keeps rules that are in use. It does nothing while an ADD or DEL of any process,
// which share the key all, is under way, or a plugin of another runtime runs; the next
// call then tries again. The caller must have released its locks.
func (h *Ahead) TakeBack(host *netns.Handle, locks *lock.Space, all lock.Key, logger *slog.Logger) {
	if host == nil || !h.hasGivenUp(host.ID().String()) {
		return
	}
	held, err := locks.TryLockAll([]lock.Key{all})
	if held == nil {
		return
	}
	defer func() {
		if err := errors.Join(err, held.Release()); err != nil {
			logger.Warn("remove rules that were made ahead of an ADD that failed", "error", err)
		}
	}()
	var busy bool
	if busy, err = anyRuns(host, known.Portmap, known.Firewall); busy || err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), takeBackTime)
	defer cancel()
	fw := netfilter.Open(host, netfilter.Options{})
	for _, made := range h.takeGivenUp(host.ID().String()) {
		if err := fw.RemoveCommon(ctx, made); err != nil {
			logger.Debug("keep rules that were made ahead of an ADD that failed", "error", err)
		}
	}
}

func (h *Ahead) hasGivenUp(host string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.givenUp[host]) > 0
}

func (h *Ahead) takeGivenUp(host string) []netfilter.Common {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.givenUp[host]
	delete(h.givenUp, host)
	return all
}
