// Package firstadd lets the first ADD of a network on a host run alone, for a
// short time.
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
package firstadd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/proc"
	"github.com/embedcni/cni/internal/shared"
)

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

// Key is a network on a host. Two hosts are two network namespaces, or two
// boots of one; a network whose configuration has changed is another network.
//
// Some plugins make shared rules on first use, not with the first container: portmap
// with the first one that has a port. So each combination of capabilities has a first
// ADD of its own.
type Key struct {
	Network      string
	IfName       string   // of one of several networks of that name; else empty
	Host         string   // identity of the namespace the plugins run in
	Boot         string   // of the machine; empty: it is asked for
	Config       [][]byte // of the plugins
	Capabilities []string // that the ADD is given, sorted

	// Types returns the types of the plugins that must not create their shared
	// parts at the same time. It is called only if the ADD is the first.
	Types func() []string
}

// Tracker remembers which networks had their first ADD in this process.
type Tracker struct {
	locks       *lock.Space
	alone, wait time.Duration
	ref         *shared.Ref[memory]
}

// memory is what the Trackers of one lock file have in common: some programs make a
// Runtime for each container.
type memory struct {
	mu   sync.Mutex
	seen map[string]string // Key.name → mark
	none map[string]bool   // of Once: those that have made nothing
}

func (m *memory) knows(f *First) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen[f.name] == f.mark
}

func (m *memory) remember(f *First) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen == nil {
		m.seen = make(map[string]string)
	}
	m.seen[f.name] = f.mark
}

var memories shared.Values[string, memory] // by the path of the lock file

// New returns a tracker. Nothing is touched before the first Begin.
func New(locks *lock.Space) *Tracker {
	ref := memories.Get(locks.Path(), func() *memory { return &memory{} })
	return &Tracker{locks: locks, alone: longestAlone, wait: longestWait, ref: ref}
}

// Within sets how long an ADD is alone, and how long another waits for that. It
// is for tests, and must be called before anything else.
func (t *Tracker) Within(alone, wait time.Duration) { t.alone, t.wait = alone, wait }

// First is a running ADD. The first ADD of its network is alone for a short
// time.
type First struct {
	tracker *Tracker
	name    string
	mark    string
	first   bool
	types   []string // with which it has had a turn, or waited for one
	turn    *Turn    // nil: not alone
}

// Begin waits until the ADD may run. The first ADD of a network runs alone
// among the first ADDs that have a plugin type in common with it, since plugins
// race by type, not by network. Both the wait and the time alone are limited.
// Call End when the ADD is over.
func (t *Tracker) Begin(ctx context.Context, key Key) (*First, error) {
	mark, err := key.mark()
	if err != nil {
		return nil, err
	}
	f := &First{tracker: t, name: key.name(), mark: mark}
	if t.ref.Value.knows(f) {
		return f, nil
	}
	f.first, f.types = true, key.Types()
	if f.turn, err = t.Take(ctx, f.types); err != nil {
		return nil, fmt.Errorf("wait for the first ADD of network %q: %w", key.Network, err)
	}
	if t.ref.Value.knows(f) { // while waiting, another one has been the first
		f.first, f.types = false, nil
		err = f.turn.End()
		f.turn = nil
	}
	return f, err
}

// Took reports whether the ADD took a turn with a type, or waited for one in
// vain. It is false for nil.
func (f *First) Took(typ string) bool { return f != nil && slices.Contains(f.types, typ) }

// End says how the ADD went. After a success nobody in this process waits again.
func (f *First) End(ok bool) error {
	if !f.first {
		return nil
	}
	f.first = false
	if ok {
		f.tracker.ref.Value.remember(f)
	}
	return f.turn.End()
}

// Turn is a limited time during which no other Turn has the same types of
// plugins.
type Turn struct {
	over  *time.Timer
	leave func() error
}

// Take waits until no other Turn has one of the types. If that takes too long,
// or there are no types, the Turn is nil, and others may run at the same time.
func (t *Tracker) Take(ctx context.Context, types []string) (*Turn, error) {
	if len(types) == 0 {
		return nil, nil
	}
	return t.take(ctx, t.wait, keys(types))
}

func (t *Tracker) take(ctx context.Context, wait time.Duration, keys []lock.Key) (*Turn, error) {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	held, err := t.locks.LockAll(waiting, keys)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	turn := &Turn{leave: sync.OnceValue(held.Release)}
	turn.over = time.AfterFunc(t.alone, func() { _ = turn.leave() }) // End returns the same error
	return turn, nil
}

// Once waits until a plugin of a type may make what it shares with others, unless there
// reports that it is there: one plugin of the type does so at a time. Both the wait and the
// time alone are limited. of identifies the plugins that make the same: once one has ended
// well and made nothing of it, nobody waits for them. Call end when the plugin has ended; ok
// says whether it has succeeded.
func (t *Tracker) Once(ctx context.Context, typ, of string, there func() bool) (end func(ok bool) error, err error) {
	m := t.ref.Value
	m.mu.Lock()
	none := m.none[of]
	m.mu.Unlock()
	nothing := func(bool) error { return nil }
	if none || there() {
		return nothing, nil
	}
	turn, err := t.take(ctx, longestWaits, []lock.Key{{Name: "shared/" + typ}})
	if err != nil {
		return nil, fmt.Errorf("wait for another ADD of plugin %q: %w", typ, err)
	}
	if there() {
		return nothing, turn.End()
	}
	return func(ok bool) error {
		if ok && !there() {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.none == nil {
				m.none = make(map[string]bool)
			}
			m.none[of] = true
		}
		return turn.End()
	}, nil
}

// End lets others take their turn.
func (t *Turn) End() error {
	if t == nil {
		return nil
	}
	t.over.Stop()
	return t.leave()
}

// name identifies the network and the capabilities that have a first ADD of
// their own. No network's name has a newline or a slash.
func (k Key) name() string {
	network := k.Network
	if k.IfName != "" {
		network += "/" + k.IfName
	}
	return strings.Join(append([]string{network}, k.Capabilities...), "\n")
}

// mark is the content of a mark, which must be equal for an earlier ADD to count.
func (k Key) mark() (string, error) {
	id := k.Boot
	if id == "" {
		var err error
		if id, err = proc.BootID(); err != nil {
			return "", err
		}
	}
	h := sha256.New()
	for _, part := range k.Config {
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	return strings.Join([]string{k.Network, id, k.Host, hex.EncodeToString(h.Sum(nil))}, "\n"), nil
}

func keys(types []string) []lock.Key {
	var keys []lock.Key
	for _, typ := range slices.Compact(slices.Sorted(slices.Values(types))) {
		keys = append(keys, lock.Key{Name: "first/" + typ})
	}
	return keys
}
