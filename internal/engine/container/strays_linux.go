package container

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/embedcni/cni/netns"
)

// strayNamespaces returns the paths of pins without a record, the paths of
// namespaces that a pool of a dead process made and never recorded, and the
// directories of such pools that contain nothing else.
//
// A path does not identify a namespace, because a directory can be spelled in
// many ways. So a namespace is no stray if a record has its identity, or a
// process is in it. And while a record cannot be read there are no strays,
// because any may be that record's.
func (s *Store) strayNamespaces() (paths, dirs []string, err error) {
	pins, err := s.Pins.strays(s.Records)
	if err != nil {
		return nil, nil, err
	}
	made, err := s.Pools.ofDead()
	if err != nil || len(pins)+len(made) == 0 {
		return nil, nil, err // read records and processes only if there is a reason
	}
	known, err := s.recordedNamespaces()
	if known == nil || err != nil {
		return nil, nil, err
	}
	stray, err := known.unclaimed(slices.Concat(append(slices.Collect(maps.Values(made)), pins)...))
	if err != nil {
		return nil, nil, err
	}
	for dir, entries := range made {
		if !slices.ContainsFunc(entries, func(path string) bool { return !stray[path] }) {
			dirs = append(dirs, dir)
		}
	}
	return slices.Collect(maps.Keys(stray)), dirs, nil
}

// knownNetNS are the namespaces of all records, of every owner.
type knownNetNS struct {
	ids map[netns.ID]bool
	// names are the file names of pools' namespaces, which are random: they
	// identify a namespace whose mount is not visible.
	names map[string]bool
}

// recordedNamespaces returns nil if a record cannot be read.
func (s *Store) recordedNamespaces() (*knownNetNS, error) {
	found, err := s.Records.List()
	if err != nil {
		return nil, err
	}
	known := &knownNetNS{make(map[netns.ID]bool), make(map[string]bool)}
	for _, f := range found {
		if f.Err != nil {
			s.Logger.Warn("namespaces that belong to no record are left for later: one of the records cannot be read",
				"file", f.File, "error", f.Err)
			return nil, nil
		}
		ns := f.Record.NetNS
		known.ids[ns.ID()] = true
		if ns.Ours {
			known.names[filepath.Base(ns.Path)] = true
		}
	}
	return known, nil
}

// unclaimed returns the paths at which there is neither a known namespace nor
// one with a process in it.
func (known *knownNetNS) unclaimed(paths []string) (map[string]bool, error) {
	all, err := inhabited()
	if err != nil {
		return nil, err
	}
	stray := make(map[string]bool)
	for _, path := range paths {
		id, err := identify(path)
		switch {
		case errors.Is(err, fs.ErrNotExist), known.names[filepath.Base(path)], err == nil && (known.ids[id] || all[id.Ino]):
		case err == nil, errors.Is(err, netns.ErrNotNetNS): // or the file of a former pin
			stray[path] = true
		default:
			return nil, fmt.Errorf("examine a namespace that belongs to no record: %w", err)
		}
	}
	return stray, nil
}
