package record

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

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// Hold keeps a container, a network, or a container's attachment to a network from
// being repaired by itself.
type Hold struct {
	Container ID        `json:"container,omitempty"` // empty: all
	Network   string    `json:"network,omitempty"`   // empty: all
	Reason    string    `json:"reason,omitempty"`
	Owner     string    `json:"owner,omitempty"` // who asked for it
	Since     time.Time `json:"since"`
	// Attached is when the container was attached. A later container of the same ID is
	// another one, which is not held. Zero for a network.
	Attached time.Time `json:"attached,omitzero"`

	// Of a file that cannot be read, only the name shows what it is about.
	file    string
	damaged error
}

// Err returns the reason why a hold cannot be read, or nil.
func (h Hold) Err() error { return h.damaged }

// Holds reports whether it is about a container's attachment to a network. A damaged hold
// may be of an earlier container of the same ID.
func (h Hold) Holds(rec *Record, network string) bool {
	if h.damaged != nil {
		return slices.Contains([]string{
			holdName(rec.ContainerID, ""), holdName(rec.ContainerID, network), holdName("", network),
		}, h.file)
	}
	if h.Network != "" && h.Network != network {
		return false
	}
	return h.Container == "" || h.Container == rec.ContainerID && h.Attached.Equal(rec.Since)
}

// Holds is a directory of holds, a file for each, so that it survives its process and is
// seen by others. It needs no lock: a file is complete when it has its name. The first hold
// creates the directory.
type Holds struct{ Dir string }

// HoldsIn returns the holds of a state directory.
func HoldsIn(stateDir string) Holds { return Holds{filepath.Join(stateDir, "embedcni", "holds")} }

// HoldsLock is the name of the lock that keeps holds from being changed while something is
// repaired by itself.
const HoldsLock = "holds"

// path returns the path of a hold.
func (s Holds) path(h Hold) string { return filepath.Join(s.Dir, holdName(h.Container, h.Network)) }

// holdName returns the name of a hold's file. A name of any characters becomes a hash.
func holdName(container ID, network string) string {
	sum := sha256.Sum256([]byte(string(container) + "\x00" + network))
	return hex.EncodeToString(sum[:16]) + FileExt
}

// Put writes a hold, in place of an earlier one of the same container and network. When
// it returns nil, the hold survives a power cut.
func (s Holds) Put(h Hold) error {
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err = os.MkdirAll(s.Dir, 0o700); err == nil {
		err = plainfile.Replace(s.path(h), data, 0o600)
	}
	return s.synced(err)
}

// synced makes a change survive a power cut, unless it has failed.
func (s Holds) synced(err error) error {
	if err == nil {
		err = plainfile.SyncDir(s.Dir)
	}
	if err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	return nil
}

// Delete deletes a hold, and reports whether there was one.
func (s Holds) Delete(h Hold) (bool, error) {
	err := os.Remove(s.path(h))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, s.synced(err)
}

// List returns all holds, in the order of their files, with those that cannot be read; see
// [Hold.Err]. With an error none is known, so that anything may be held.
func (s Holds) List() (all []Hold, err error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, ignoreMissing(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), FileExt) {
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
			h = Hold{file: e.Name(), damaged: fmt.Errorf("hold %s cannot be read; what it holds stays held until it is deleted: %w", path, err)}
		}
		all = append(all, h)
	}
	return all, nil
}

// Forget deletes the holds of a container that is gone. Of damaged ones it finds those of
// the container, and of its attachments to networks.
func (s Holds) Forget(id ID, networks ...string) error {
	all, err := s.List()
	for _, network := range append(networks, "") {
		if its := holdName(id, network); slices.ContainsFunc(all, func(h Hold) bool { return h.file == its }) {
			all = append(all, Hold{Container: id, Network: network})
		}
	}
	for _, h := range all {
		if h.Container == id {
			_, derr := s.Delete(h)
			err = joined.Errors(err, derr)
		}
	}
	return err
}
