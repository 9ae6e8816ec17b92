// Package hold keeps on disk which containers and networks are not to be repaired by
// themselves. Each hold is a file, so that it survives its process and is seen by
// others. It needs no lock: a file is complete when it has its name.
package hold

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/plainfile"
	"github.com/embedcni/cni/internal/record"
)

// Hold keeps a container, a network, or a container's attachment to a network from
// being repaired.
type Hold struct {
	Container record.ID `json:"container,omitempty"` // empty: all
	Network   string    `json:"network,omitempty"`   // empty: all
	Reason    string    `json:"reason,omitempty"`
	Owner     string    `json:"owner,omitempty"` // who asked for it
	Since     time.Time `json:"since"`
	// Attached is when the container was attached. A later container of the same ID is
	// another one, which is not held. Zero for a network.
	Attached time.Time `json:"attached,omitzero"`

	damaged *damage // nil: it was read
}

// damage is a file that cannot be read. Its name still shows what it is about.
type damage struct {
	name string
	err  error
}

// Err returns the reason why a hold cannot be read, or nil.
func (h Hold) Err() error {
	if h.damaged == nil {
		return nil
	}
	return h.damaged.err
}

// Holds reports whether it is about a container's attachment to a network. A damaged hold
// may be of an earlier container of the same ID.
func (h Hold) Holds(rec *record.Record, network string) bool {
	if h.damaged != nil {
		return slices.Contains([]string{
			nameOf(rec.ContainerID, ""), nameOf(rec.ContainerID, network), nameOf("", network),
		}, h.damaged.name)
	}
	if h.Network != "" && h.Network != network {
		return false
	}
	return h.Container == "" || h.Container == rec.ContainerID && h.Attached.Equal(rec.Since)
}

// Store is a directory of holds. The first hold creates it.
type Store struct{ Dir string }

// In returns the store of a state directory.
func In(stateDir string) Store { return Store{filepath.Join(stateDir, "embedcni", "holds")} }

// LockName is the name of the lock that keeps holds from being changed while something is
// repaired by itself.
const LockName = "holds"

const ext = ".json"

// path returns the path of a hold.
func (s Store) path(h Hold) string { return filepath.Join(s.Dir, nameOf(h.Container, h.Network)) }

// nameOf returns the name of a hold's file. A name of any characters becomes a hash.
func nameOf(container record.ID, network string) string {
	sum := sha256.Sum256([]byte(string(container) + "\x00" + network))
	return hex.EncodeToString(sum[:16]) + ext
}

// Put writes a hold, in place of an earlier one of the same container and network. When
// it returns nil, the hold survives a power cut.
func (s Store) Put(h Hold) error {
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	if err := plainfile.Replace(s.path(h), data, 0o600); err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	return s.sync()
}

// sync makes names survive a power cut.
func (s Store) sync() error {
	if err := plainfile.SyncDir(s.Dir); err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	return nil
}

// Delete deletes a hold, and reports whether there was one.
func (s Store) Delete(h Hold) (bool, error) {
	err := os.Remove(s.path(h))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("hold: %w", err)
	}
	return true, s.sync()
}

// List returns all holds, in the order of their files, with those that cannot be read; see
// [Hold.Err]. With an error none is known, so that anything may be held.
func (s Store) List() (all []Hold, err error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, missing(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ext) {
			continue // being written
		}
		path := filepath.Join(s.Dir, e.Name())
		data, err := plainfile.Read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since
		}
		var h Hold
		if err == nil {
			err = json.Unmarshal(data, &h)
		}
		if err == nil && s.path(h) != path {
			err = errors.New("it names something else than its file")
		}
		if err != nil {
			h = Hold{damaged: &damage{e.Name(), fmt.Errorf("hold %s cannot be read; what it holds stays held until it is deleted: %w", path, err)}}
		}
		all = append(all, h)
	}
	return all, nil
}

// Forget deletes the holds of a container that is gone. Of damaged ones it finds those of
// the container, and of its attachments to networks.
func (s Store) Forget(id record.ID, networks ...string) error {
	all, err := s.List()
	for _, h := range all {
		if h.Container == id {
			_, derr := s.Delete(h)
			err = errors.Join(err, derr)
		}
		for _, network := range append(networks, "") {
			if its := (Hold{Container: id, Network: network}); h.damaged != nil && h.damaged.name == nameOf(id, network) {
				_, derr := s.Delete(its)
				err = errors.Join(err, derr)
			}
		}
	}
	return err
}

// missing returns nil for an error that there is no such file.
func missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
