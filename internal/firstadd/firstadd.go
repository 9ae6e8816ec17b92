// Package firstadd lets the first ADD of a network on a host run alone.
//
// Plugins create what a network's containers share (the bridge, the top-level
// chains of portmap and firewall) when the first container comes, and check
// before they create without a lock: thirty containers at once on a cold host
// leave rules twice. Once one ADD has succeeded, it is all there, and nobody
// waits any more.
package firstadd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/embedcni/cni/internal/boot"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/plainfile"
)

// Key is a network on a host. Two hosts are two network namespaces, or two
// boots of one; a network whose configuration has changed is another network.
//
// Some plugins make what is shared when it is first needed, not with the first
// container: portmap with the first that has a port. So each combination of
// capabilities has a first ADD of its own.
type Key struct {
	Network      string
	IfName       string   // of one of several networks of that name; else empty
	Host         string   // identity of the namespace the plugins run in
	Boot         string   // of the machine; empty: it is asked for
	Types        []string // of the plugins
	Config       [][]byte // their configuration
	Capabilities []string // that the ADD is given, sorted
}

// Tracker remembers which networks had their first ADD: in memory, and for
// other processes in a directory, a file for each network and combination of
// capabilities.
type Tracker struct {
	dir   string
	locks *lock.Space

	mu   sync.Mutex
	seen map[string]string // Key.name → mark
}

// New returns the tracker that keeps its marks in dir. Nothing is touched
// before the first Begin.
func New(dir string, locks *lock.Space) *Tracker {
	return &Tracker{dir: dir, locks: locks, seen: make(map[string]string)}
}

// First is an ADD that runs, alone if it is the first of its network.
type First struct {
	tracker *Tracker
	network string
	name    string
	mark    string
	held    *lock.Held // nil: not the first
}

// Begin waits until the ADD may run. It is alone among those that have no
// first ADD behind them and have a plugin type in common, since what plugins
// race for is shared by type, not by network. Call End when the ADD is over.
func (t *Tracker) Begin(ctx context.Context, key Key) (*First, error) {
	mark, err := key.mark()
	if err != nil {
		return nil, err
	}
	f := &First{tracker: t, network: key.Network, name: key.name(), mark: mark}
	if known, err := t.known(f); known || err != nil {
		return f, err
	}
	f.held, err = t.locks.LockAll(ctx, key.locks())
	if err != nil {
		return nil, fmt.Errorf("wait for the first ADD of network %q: %w", key.Network, err)
	}
	known, err := t.known(f) // while waiting, another one may have been the first
	if known || err != nil {
		err = errors.Join(err, f.held.Release())
		f.held = nil
	}
	return f, err
}

// End says how the ADD went. After a success nobody waits again.
func (f *First) End(ok bool) error {
	if f.held == nil {
		return nil
	}
	var err error
	if ok {
		err = f.tracker.remember(f)
	}
	return errors.Join(err, f.held.Release())
}

func (t *Tracker) known(f *First) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen[f.name] == f.mark {
		return true, nil
	}
	data, err := plainfile.Read(t.file(f.name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("mark of the first ADD of network %q: %w", f.network, err)
	}
	if string(data) != f.mark {
		return false, nil
	}
	t.seen[f.name] = f.mark
	return true, nil
}

// remember writes the mark. It is not synced: a mark that is lost costs a wait,
// and one of an earlier boot does not count.
func (t *Tracker) remember(f *First) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen[f.name] = f.mark
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return err
	}
	path := t.file(f.name)
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(f.mark), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func (t *Tracker) file(name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(t.dir, hex.EncodeToString(sum[:16]))
}

// name is what has a first ADD of its own. No network's name has a newline or a
// slash.
func (k Key) name() string {
	network := k.Network
	if k.IfName != "" {
		network += "/" + k.IfName
	}
	return strings.Join(append([]string{network}, k.Capabilities...), "\n")
}

// mark is what must be the same for an earlier ADD to count.
func (k Key) mark() (string, error) {
	id := k.Boot
	if id == "" {
		var err error
		if id, err = boot.ID(); err != nil {
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

func (k Key) locks() []lock.Key {
	var keys []lock.Key
	for _, typ := range slices.Compact(slices.Sorted(slices.Values(k.Types))) {
		keys = append(keys, lock.Key{Name: "first/" + typ})
	}
	return keys
}
