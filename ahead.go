package cni

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/ahead"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/firstadd"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/netfilter"
)

// The executables of portmap and firewall make what containers share when the
// first one comes, after a look and without a lock. Where it is known what they
// make, it is made ahead of them, and nobody waits for anybody. Whether it is
// there is looked at for every container: an administrator, firewalld or docker
// may have flushed the rules.
//
// What is made ahead stays if the runtime is killed: the plugin that was to
// follow leaves the same behind.

// aheads is what a Runtime knows of executables and of what it has made ahead of
// them. It may be used by many goroutines.
type aheads struct {
	versions ahead.Versions

	mu      sync.Mutex
	none    map[string]bool // executables, by path, that make nothing of the kind
	givenUp map[string][]netfilter.Common
}

// contended are the types in the chain whose plugins must not make what they
// share at the same time: executables of which it is not known, and what the
// caller has registered.
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

// startAhead runs the ADD of an executable behind what is made ahead of it, or
// else alone for a moment.
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
		a.op.logger.Warn("make ahead what containers share in iptables", "container", a.op.id, "plugin", call.Plugin, "error", err)
	}
	return a.startBeside(ctx, call, p, s)
}

// shared are rules that containers share, and where they are.
type shared struct {
	*netfilter.Firewalls
	rules netfilter.Rules
}

// findShared returns what the reference plugin of the call's type would make for
// all containers, and whether it is there. Whether a firewalld runs, in whose
// place less is made, is asked only if something is missing.
func (a *attachment) findShared(ctx context.Context, call chain.Call) (s shared, has bool, err error) {
	request := ahead.Request{Type: call.Plugin, IfName: a.IfName, Config: call.Stdin}
	s = shared{netfilter.Open(a.op.host.handle()), request.Rules()}
	has, err = s.HasCommon(ctx, s.rules)
	if has || err != nil || !request.AsksForFirewalld() {
		return s, has, err
	}
	if request.Firewalld, err = a.op.bus.Running(ctx, a.op.host.handle()); !request.Firewalld || err != nil {
		return s, false, err
	}
	s.rules = request.Rules()
	has, err = s.HasCommon(ctx, s.rules)
	return s, has, err
}

// startBeside runs the ADD of an executable that may make what containers share,
// alone for a moment unless the whole chain is, and removes what is there twice
// afterwards.
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
			return a.start(ctx, call, p) // another has made it meanwhile
		}
	}
	out, err := a.start(ctx, call, p)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), aheadTime)
	defer cancel()
	removed, rerr := s.RemoveDuplicates(ctx, s.rules)
	if removed > 0 {
		a.op.logger.Info("removed rules of iptables that plugins have made twice", "container", a.op.id, "plugin", call.Plugin, "rules", removed)
	}
	if rerr = join(rerr, turn.End()); rerr != nil {
		a.op.logger.Warn("look for rules of iptables that plugins have made twice", "container", a.op.id, "plugin", call.Plugin, "error", rerr)
	}
	if has, herr := s.HasCommon(ctx, s.rules); err == nil && herr == nil && !has {
		a.op.ahead.noteNone(p.path)
	}
	return out, err
}

const (
	// aheadTime is how long it may take to remove what is there twice.
	aheadTime = 10 * time.Second
	// takeBackTime is how long it may take to remove what was made ahead in vain.
	// Other calls wait meanwhile, for milliseconds unless another program has the
	// lock of xtables.
	takeBackTime = 2 * time.Second
)

// makesNone reports whether an executable has succeeded without what the
// reference plugin of its type would have made.
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

// giveUpAhead has what was made ahead of an ADD that failed go, if nobody uses
// it.
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

// takeBackAhead removes what was made ahead of ADDs that failed, unless somebody
// uses it or may be about to: an ADD or DEL of whatever process is under way, or
// a plugin of another runtime. Then the next operation tries again. It is the
// last thing that an operation does, without its locks.
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
			op.logger.Warn("remove what was made ahead of an ADD that failed", "error", err)
		}
	}()
	var busy bool
	if busy, err = pluginsRun(op.host, "portmap", "firewall"); busy || err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), takeBackTime)
	defer cancel()
	fw := netfilter.Open(op.host.handle())
	for _, made := range op.ahead.takeGivenUp(host) {
		if err := fw.RemoveCommon(ctx, made); err != nil {
			op.logger.Debug("what was made ahead of an ADD that failed stays", "error", err)
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
