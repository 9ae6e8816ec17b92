package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/shared"
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

// FirstKey is a network on a host. Two hosts are two network namespaces; a network whose
// configuration has changed is another network.
//
// Some plugins make shared rules on first use, not with the first container: portmap
// with the first one that has a port. So each combination of capabilities has a first
// ADD of its own.
type FirstKey struct {
	Network      string
	IfName       string   // of one of several networks of that name; else empty
	Host         string   // identity of the namespace the plugins run in
	Config       []string // of the plugins
	Capabilities []string // that the ADD is given, sorted
}

// String returns a text that differs for other keys. None of the parts has a NUL.
func (k FirstKey) String() string {
	parts := slices.Concat([]string{k.Network, k.IfName, k.Host}, k.Config, []string{""}, k.Capabilities)
	return strings.Join(parts, "\x00")
}

// Firsts remembers which networks had their first ADD in this process.
type Firsts struct {
	locks       *lock.Space
	alone, wait time.Duration
	// memory has of whom nobody waits any more. The Firsts of one lock file have it in
	// common: some programs make a Runtime for each container.
	memory *sync.Map
}

var memories shared.Values[string, sync.Map] // by the path of the lock file

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

// Begin waits until the ADD may run. The first ADD of a network runs alone
// among the first ADDs that have a plugin type in common with it, since plugins
// race by type, not by network. Both the wait and the time alone are limited.
//
// types returns the types of the plugins that must not create their shared parts at the
// same time. It is called only if the ADD is the first.
//
// Call end when the ADD is over; only the first call counts. After a success nobody in
// this process waits again.
func (t *Firsts) Begin(ctx context.Context, key FirstKey, types func() []string) (end func(ok bool) error, err error) {
	never := func() bool { return false }
	if end, err = t.begin(ctx, key.String(), "first/", types, t.wait, never); err != nil {
		return nil, fmt.Errorf("wait for the first ADD of network %q: %w", key.Network, err)
	}
	return end, nil
}

// Once waits until a plugin of a type may make the parts that containers share: one plugin
// of the type does so at a time. If there reports that they exist, plugins run side by side.
// Both the wait and the time alone are limited. of identifies the plugins that make the same: once one has ended
// well and made nothing of it, nobody waits for them. Call end when the plugin has ended; ok
// says whether it has succeeded.
func (t *Firsts) Once(ctx context.Context, typ, of string, there func() bool) (end func(ok bool) error, err error) {
	types := func() []string { return []string{typ} }
	if end, err = t.begin(ctx, of, "shared/", types, longestWaits, there); err != nil {
		return nil, fmt.Errorf("wait for another ADD of plugin %q: %w", typ, err)
	}
	return end, nil
}

// begin waits until nobody else has the key of one of the types. If that takes too long, or
// there are no types, others may run at the same time. of is whom nobody waits for once one
// has ended well, and there is false.
func (t *Firsts) begin(ctx context.Context, of, prefix string, types func() []string, wait time.Duration, there func() bool) (end func(ok bool) error, err error) {
	nothing := func(bool) error { return nil }
	if t.knows(of) {
		return nothing, nil
	}
	var keys []lock.Key
	for _, typ := range types() {
		keys = append(keys, lock.Key{Name: prefix + typ})
	}
	leave, err := t.take(ctx, wait, keys)
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
