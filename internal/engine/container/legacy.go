package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/store/record"
)

// Versions before 2027 kept, beside the locks, a copy of what they knew of libcni's cache
// ("cachedports") and a mark for each network that had its first ADD ("networks"), and beside
// the records a second name of each that has ports ("ports"). They do
// without them: one that still runs makes them again. This file may go in 2028.

// former returns the paths of what only earlier versions use, if it exists.
func former(own, records string) (paths []string) {
	for _, path := range []string{filepath.Join(own, "networks"), filepath.Join(own, "cachedports"), filepath.Join(records, "ports")} {
		if _, err := os.Lstat(path); err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

// Pools are the namespaces that pools of earlier versions have made, in a directory for
// each process; see record/legacy.go.
type Pools struct {
	dir     string
	process *Process
}

// Has reports whether the namespace exists that a pool made for a container, or
// may.
func (p Pools) Has(id record.PluginID) bool {
	owners, err := os.ReadDir(p.dir)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return slices.ContainsFunc(owners, func(owner os.DirEntry) bool {
		_, err := os.Lstat(filepath.Join(p.dir, owner.Name(), string(id)))
		return err == nil
	})
}

// ofDead returns the paths at which pools of dead processes have made namespaces, by
// directory.
func (p Pools) ofDead() (map[string][]string, error) {
	owners, err := os.ReadDir(p.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("pools: %w", err)
	}
	made := make(map[string][]string)
	for _, owner := range owners {
		if alive, err := p.process.RuntimeAlive(processOf(owner.Name())); alive || err != nil {
			continue // or it belongs to no pool
		}
		dir := filepath.Join(p.dir, owner.Name())
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process has removed it
		}
		if err != nil {
			return nil, fmt.Errorf("pools: %w", err)
		}
		made[dir] = nil
		for _, e := range entries {
			made[dir] = append(made[dir], filepath.Join(dir, e.Name()))
		}
	}
	return made, nil
}

// livesBy is the prefix of a directory name that contains the locked byte by
// which its process is known to live. Earlier versions leave directories of that
// name alone.
const livesBy = "life-"

// processOf returns a record of the process whose directory has that name.
func processOf(name string) *record.Record {
	if life, ok := strings.CutPrefix(name, livesBy); ok {
		return &record.Record{Life: life}
	}
	return &record.Record{Runtime: name}
}
