package container

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/record"
)

// pools returns the directory of the namespaces that pools make. Each process has a
// directory in it.
func (s *Store) pools() string { return filepath.Join(s.Records.Dir(), "pool") }

// PoolDir returns the directory in which the pools of this process make namespaces.
func (s *Store) PoolDir() (string, error) {
	life, identity := s.Life(), ""
	if life == "" {
		var err error
		if identity, err = s.Identity(); err != nil {
			return "", err
		}
	}
	return filepath.Join(s.pools(), poolName(life, identity)), nil
}

// HasPooled reports whether the namespace exists that a pool made for a container, or
// may.
func (s *Store) HasPooled(id record.PluginID) bool {
	owners, err := os.ReadDir(s.pools())
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return slices.ContainsFunc(owners, func(owner os.DirEntry) bool {
		_, err := os.Lstat(filepath.Join(s.pools(), owner.Name(), string(id)))
		return err == nil
	})
}

// livesBy is the prefix of a directory name that contains the locked byte by
// which its process is known to live. Earlier versions leave directories of that
// name alone.
const livesBy = "life-"

// poolName names the directory of a process: by the byte that it has locked or,
// if life is empty, by its identity.
func poolName(life, identity string) string {
	if life != "" {
		return livesBy + life
	}
	return identity
}

// processOf returns a record of the process whose directory has that name.
func processOf(name string) *record.Record {
	if life, ok := strings.CutPrefix(name, livesBy); ok {
		return &record.Record{Life: life}
	}
	return &record.Record{Runtime: name}
}
