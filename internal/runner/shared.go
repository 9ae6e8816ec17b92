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
			(kind != Executable || !r.Ahead.versions.Makes(ctx, typ, c.Path, p.Bytes)) {
			types = append(types, typ)
		}
	}
	return types
}

// startAhead makes the missing shared rules of an executable ahead, and then runs its
// ADD. If it cannot make them, the ADD runs alone for a moment.
func (r *Runner) startAhead(ctx context.Context, call chain.Call, p Provider) (invoke.Output, error) {
	s, has, err := r.findShared(ctx, call)
	if has || errors.Is(err, netfilter.ErrNotSupported) || r.Ahead.makesNone(p.Path) {
		return r.start(ctx, call, p)
	}
	if err == nil && r.Ahead.versions.Makes(ctx, call.Plugin, p.Path, call.Stdin) {
		var made netfilter.Common
		if made, err = s.MakeCommon(ctx, s.rules); !made.Empty() {
			r.Plugins.made = append(r.Plugins.made, made)
		}
		if err == nil {
			return r.start(ctx, call, p)
		}
	}
	if err != nil {
		r.Logger.Warn("create the shared iptables rules ahead of the plugin", "container", r.ContainerID, "plugin", call.Plugin, "error", err)
	}
	return r.startBeside(ctx, call, p, s)
}

// shared holds rules that containers share, and the firewalls that have them.
type shared struct {
	*netfilter.Firewalls
	rules fwrules.Rules
}

// findShared returns the rules that the reference plugin of the call's type would
// make for all containers, and reports whether they all exist. The plugin makes
// fewer rules if firewalld runs. findShared asks for firewalld only if a rule is
// missing.
func (r *Runner) findShared(ctx context.Context, call chain.Call) (s shared, has bool, err error) {
	request := ahead.Request{Type: call.Plugin, IfName: r.IfName, Config: call.Stdin}
	s = shared{netfilter.Open(r.Host, r.Given.Filters), request.Rules()}
	has, err = s.HasCommon(ctx, s.rules)
	if has || err != nil || !request.AsksForFirewalld() {
		return s, has, err
	}
	if request.Firewalld, err = r.Bus.Running(ctx, r.Host); !request.Firewalld || err != nil {
		return s, false, err
	}
	s.rules = request.Rules()
	has, err = s.HasCommon(ctx, s.rules)
	return s, has, err
}

// startBeside runs the ADD of an executable that may create shared rules. It takes
// the turn of the type first, so that the ADD runs alone for a moment, unless the
// whole chain has the turn. Afterwards it removes duplicate rules.
func (r *Runner) startBeside(ctx context.Context, call chain.Call, p Provider, s shared) (invoke.Output, error) {
	var turn *firstadd.Turn
	if !r.Plugins.turn.Took(call.Plugin) {
		var err error
		if turn, err = r.First.Take(ctx, []string{call.Plugin}); err != nil {
			return invoke.Output{}, err
		}
		if has, err := s.HasCommon(ctx, s.rules); has && err == nil {
			if err := turn.End(); err != nil {
				return invoke.Output{}, err
			}
			return r.start(ctx, call, p) // another ADD has made the rules meanwhile
		}
	}
	out, err := r.start(ctx, call, p)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), aheadTime)
	defer cancel()
	removed, rerr := s.RemoveDuplicates(ctx, s.rules)
	if removed > 0 {
		r.Logger.Info("removed iptables rules that plugins had created twice", "container", r.ContainerID, "plugin", call.Plugin, "rules", removed)
	}
	if rerr = errors.Join(rerr, turn.End()); rerr != nil {
		r.Logger.Warn("look for iptables rules that plugins have created twice", "container", r.ContainerID, "plugin", call.Plugin, "error", rerr)
	}
	if has, herr := s.HasCommon(ctx, s.rules); err == nil && herr == nil && !has {
		r.Ahead.noteNone(p.Path)
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
