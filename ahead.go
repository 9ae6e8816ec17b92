package cni

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/ahead"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/firstadd"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/netfilter"
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

// aheads remembers properties of executables, and the rules that were made ahead
// for ADDs that failed. It is safe for concurrent use.
type aheads struct {
	versions ahead.Versions

	mu      sync.Mutex
	none    map[string]bool               // executables, by path, that create no shared rules
	givenUp map[string][]netfilter.Common // made for ADDs that failed, by host namespace
}

// contended returns the types in the chain whose plugins must not create their
// shared rules at the same time: executables whose shared rules are not known, and
// plugins that the caller has registered.
func (a *attachment) contended(ctx context.Context) []string {
	var types []string
	for _, p := range a.network.config.Plugins {
		typ := p.Network.Type
		c, _, _ := a.kinds.get(typ)
		if kind := PluginKind(c.Kind); kind != PluginBuiltIn &&
			(kind != PluginExecutable || !a.op.ahead.versions.Makes(ctx, typ, c.Path, p.Bytes)) {
			types = append(types, typ)
		}
	}
	return types
}

// startAhead makes the missing shared rules of an executable ahead, and then runs its
// ADD. If it cannot make them, the ADD runs alone for a moment.
func (a *attachment) startAhead(ctx context.Context, call chain.Call, p provider) (invoke.Output, error) {
	s, has, err := a.findShared(ctx, call)
	if has || errors.Is(err, netfilter.ErrNotSupported) || a.op.ahead.makesNone(p.path) {
		return a.start(ctx, call, p)
	}
	if err == nil && a.op.ahead.versions.Makes(ctx, call.Plugin, p.path, call.Stdin) {
		var made netfilter.Common
		if made, err = s.MakeCommon(ctx, s.rules); !made.Empty() {
			a.made = append(a.made, made)
		}
		if err == nil {
			return a.start(ctx, call, p)
		}
	}
	if err != nil {
		a.op.logger.Warn("create the shared iptables rules ahead of the plugin", "container", a.op.id, "plugin", call.Plugin, "error", err)
	}
	return a.startBeside(ctx, call, p, s)
}

// shared holds rules that containers share, and the firewalls that have them.
type shared struct {
	*netfilter.Firewalls
	rules netfilter.Rules
}

// findShared returns the rules that the reference plugin of the call's type would
// make for all containers, and reports whether they all exist. The plugin makes
// fewer rules if firewalld runs. findShared asks for firewalld only if a rule is
// missing.
func (a *attachment) findShared(ctx context.Context, call chain.Call) (s shared, has bool, err error) {
	request := ahead.Request{Type: call.Plugin, IfName: a.IfName, Config: call.Stdin}
	s = shared{netfilter.Open(a.op.host.Handle, caller.Netfilter(ctx)), request.Rules()}
	has, err = s.HasCommon(ctx, s.rules)
	if has || err != nil || !request.AsksForFirewalld() {
		return s, has, err
	}
	if request.Firewalld, err = a.op.bus.Running(ctx, a.op.host.Handle); !request.Firewalld || err != nil {
		return s, false, err
	}
	s.rules = request.Rules()
	has, err = s.HasCommon(ctx, s.rules)
	return s, has, err
}

// startBeside runs the ADD of an executable that may create shared rules. It takes
// the turn of the type first, so that the ADD runs alone for a moment, unless the
// whole chain has the turn. Afterwards it removes duplicate rules.
func (a *attachment) startBeside(ctx context.Context, call chain.Call, p provider, s shared) (invoke.Output, error) {
	var turn *firstadd.Turn
	if !a.first.Took(call.Plugin) {
		var err error
		if turn, err = a.op.first.Take(ctx, []string{call.Plugin}); err != nil {
			return invoke.Output{}, err
		}
		if has, err := s.HasCommon(ctx, s.rules); has && err == nil {
			if err := turn.End(); err != nil {
				return invoke.Output{}, err
			}
			return a.start(ctx, call, p) // another ADD has made the rules meanwhile
		}
	}
	out, err := a.start(ctx, call, p)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), aheadTime)
	defer cancel()
	removed, rerr := s.RemoveDuplicates(ctx, s.rules)
	if removed > 0 {
		a.op.logger.Info("removed iptables rules that plugins had created twice", "container", a.op.id, "plugin", call.Plugin, "rules", removed)
	}
	if rerr = join(rerr, turn.End()); rerr != nil {
		a.op.logger.Warn("look for iptables rules that plugins have created twice", "container", a.op.id, "plugin", call.Plugin, "error", rerr)
	}
	if has, herr := s.HasCommon(ctx, s.rules); err == nil && herr == nil && !has {
		a.op.ahead.noteNone(p.path)
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
func (h *aheads) makesNone(path string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.none[path]
}

func (h *aheads) noteNone(path string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.none == nil {
		h.none = make(map[string]bool)
	}
	h.none[path] = true
}

// giveUpAhead hands the rules that were made ahead of failed ADDs to takeBackAhead,
// which removes them if they are not in use.
func (op *operation) giveUpAhead() {
	h := op.ahead
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range op.attachments {
		for _, made := range a.made {
			if h.givenUp == nil {
				h.givenUp = make(map[string][]netfilter.Common)
			}
			h.givenUp[op.host.String()] = append(h.givenUp[op.host.String()], made)
		}
		a.made = nil
	}
}

// takeBackAhead removes the rules that were made ahead of failed ADDs. It keeps
// rules that are in use. It does nothing while an ADD or DEL of any process is under
// way, or a plugin of another runtime runs; the next operation then tries again. An
// operation calls it last, after it has released its locks.
func (op *operation) takeBackAhead() {
	host := op.host.String()
	if !op.ahead.hasGivenUp(host) {
		return
	}
	held, err := op.locks.TryLockAll([]lock.Key{{Name: barrier}})
	if held == nil {
		return
	}
	defer func() {
		if err := join(err, held.Release()); err != nil {
			op.logger.Warn("remove rules that were made ahead of an ADD that failed", "error", err)
		}
	}()
	var busy bool
	if busy, err = pluginsRun(op.host, known.Portmap, known.Firewall); busy || err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), takeBackTime)
	defer cancel()
	fw := netfilter.Open(op.host.Handle, netfilter.Options{})
	for _, made := range op.ahead.takeGivenUp(host) {
		if err := fw.RemoveCommon(ctx, made); err != nil {
			op.logger.Debug("keep rules that were made ahead of an ADD that failed", "error", err)
		}
	}
}

func (h *aheads) hasGivenUp(host string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.givenUp[host]) > 0
}

func (h *aheads) takeGivenUp(host string) []netfilter.Common {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.givenUp[host]
	delete(h.givenUp, host)
	return all
}
