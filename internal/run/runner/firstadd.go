package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/lock"
)

// The first ADD of a network on a host runs alone, for a short time.
//
// When the first container comes, plugins create the parts that a network's
// containers share: the top-level chains of portmap and firewall, a VRF. Some
// check before they create, without a lock: thirty containers at once on a cold
// host leave duplicate rules. Once one ADD has succeeded, the shared parts
// exist, and no ADD of that process waits any more. Other processes do not hear of it:
// the first ADD of each runs alone, if its plugins may race at all.
//
// A plugin that hangs must affect its own container only. So both the time
// alone and the wait are limited. After that, ADDs run side by side, and the
// caller removes the duplicates that they may leave.

const (
	// longestAlone limits the time that an ADD runs alone. It is several times
	// as long as the first ADD of a network takes with executables on a busy
	// machine. It is shorter than longestWait, so that after an ADD that hangs
	// the next one can run alone, and the others see that it was the first.
	longestAlone = 1500 * time.Millisecond
	// longestWait limits the wait for an ADD that runs alone. It also holds for
	// processes of earlier versions, which are alone for as long as their plugin
	// runs.
	longestWait = 2 * time.Second
	// longestWaits limits the wait for one plugin that runs alone: for three that hang.
	longestWaits = 3 * longestAlone
)

// Firsts remembers which networks had their first ADD in this process.
type Firsts struct {
	locks       *lock.Space
	alone, wait time.Duration
	// memory has of whom nobody waits any more. The Firsts of one lock file have it in
	// common: some programs make a Runtime for each container.
	memory *sync.Map
}

var memories thread.Shared[string, sync.Map] // by the path of the lock file

// NewFirsts returns those of a lock file. Nothing is touched before the first Begin.
func NewFirsts(locks *lock.Space) *Firsts {
	memory := memories.Get(locks.Path(), func() *sync.Map { return &sync.Map{} })
	return &Firsts{locks: locks, alone: longestAlone, wait: longestWait, memory: memory}
}

func (t *Firsts) knows(of string) bool {
	_, known := t.memory.Load(of)
	return known
}

// Within sets how long an ADD is alone, and how long another waits for that. It
// is for tests, and must be called before anything else.
func (t *Firsts) Within(alone, wait time.Duration) { t.alone, t.wait = alone, wait }

// Begin waits until the ADD may begin. The first ADD of a network runs alone, for a moment,
// among the first ADDs that have a plugin type in common with it, if two of these plugins
// at the same time could create shared objects twice: plugins race by type, not by network.
// Some make shared rules on first use, not with the first container: portmap with the first
// one that has a port. So each combination of capabilities that the ADD is given has a
// first ADD of its own. A network whose configuration has changed is another network.
//
// Call end when the ADD is over; only the first call counts. After a success nobody in
// this process waits again.
func (r *Runner) Begin(ctx context.Context, capabilities []string) (end func(ok bool) error, err error) {
	never := func() bool { return false }
	end, err = r.Runtime.First.begin(ctx, r.made("first", capabilities...), func() []lock.Key { return r.contended(ctx) }, r.Runtime.First.wait, never)
	if err != nil {
		return nil, fmt.Errorf("wait for the first ADD of network %q: %w", r.Network.Name, err)
	}
	return end, nil
}

// contended returns the keys of the types in the chain whose plugins must not create at the
// same time what containers share: executables, and plugins that the caller has registered.
func (r *Runner) contended(ctx context.Context) (keys []lock.Key) {
	for _, p := range r.Network.Plugins {
		typ := p.Network.Type
		c, _, _ := r.Plugins.Get(typ)
		if kind := Kind(c.Kind); kind != BuiltIn && (kind != Executable || r.Runtime.References.races(ctx, r.Runtime.Root, typ, c.Path, p.Bytes)) {
			keys = append(keys, lock.Key{Name: "first/" + typ})
		}
	}
	return keys
}

// alone waits until the ADD of an executable may create the chains that all containers on a
// host share, those of portmap and firewall. Executables create them for the first
// container, and again after a flush: they look, and then create, without a lock, so that
// of two at a time one may fail. Where they are not there, one executable of the type runs
// alone, for a moment at most. end says whether it succeeded.
func (e *execution) alone(ctx context.Context) (end func(ok bool) error, err error) {
	r, call, rules := e.Runner, e.call, conflist.Known(e.call.Plugin).Rules
	if call.Verb != "ADD" || e.p.Kind != Executable || r.Host == nil || rules != conflist.HostPorts && rules != conflist.Forward {
		return func(bool) error { return nil }, nil
	}
	keys := func() []lock.Key { return []lock.Key{{Name: "shared/" + call.Plugin}} }
	end, err = r.Runtime.First.begin(ctx, r.made("shared", call.Plugin), keys, longestWaits, func() bool {
		there, err := netfilter.HasShared(ctx, r.Host, r.Given.Filters, rules == conflist.Forward, call.Stdin)
		if err != nil {
			r.Runtime.Logger.Debug("whether the chains that containers share are there is not known", "plugin", call.Plugin, "error", err)
		}
		return there || err != nil
	})
	if err != nil {
		return nil, fmt.Errorf("wait for another ADD of plugin %q: %w", call.Plugin, err)
	}
	return end, nil
}

// made returns a text for what plugins of the network make on the host. It differs if
// anything does. None of its parts has a NUL.
func (r *Runner) made(what string, by ...string) string {
	parts := []string{what, r.Network.Name}
	if r.Host != nil {
		parts = append(parts, r.Host.ID().String())
	}
	for _, p := range r.Network.Plugins {
		parts = append(parts, string(p.Bytes))
	}
	return strings.Join(slices.Concat(parts, []string{""}, by), "\x00")
}

// begin waits until nobody else has one of the keys, which are asked for only if that
// matters. If it takes too long, or there are no keys, others may run at the same time. of
// is for whom nobody waits any more once one has ended well, and what they make is not
// there: they make none of it.
func (t *Firsts) begin(ctx context.Context, of string, keys func() []lock.Key, wait time.Duration, there func() bool) (end func(ok bool) error, err error) {
	nothing := func(bool) error { return nil }
	if t.knows(of) {
		return nothing, nil
	}
	leave, err := t.take(ctx, wait, keys())
	if err != nil {
		return nil, err
	}
	// there is called with the keys held: whoever holds them may have made only a part so far.
	if t.knows(of) || there() { // by one that was waited for
		return nothing, leave()
	}
	ended := false
	return func(ok bool) error {
		if !ended && ok && !there() {
			t.memory.Store(of, true)
		}
		ended = true
		return leave()
	}, nil
}

// take locks the keys for a limited time, at most until leave is called. After too long a
// wait it locks nothing.
func (t *Firsts) take(ctx context.Context, wait time.Duration, keys []lock.Key) (leave func() error, err error) {
	nothing := func() error { return nil }
	if len(keys) == 0 {
		return nothing, nil
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	held, err := t.locks.LockAll(waiting, keys)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return nothing, nil
	}
	if err != nil {
		return nil, err
	}
	release := sync.OnceValue(held.Release)
	over := time.AfterFunc(t.alone, func() { _ = release() }) // leave returns the same error
	return func() error {
		over.Stop()
		return release()
	}, nil
}
