package guarded

import (
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/embedcni/cni/internal/dirwatch"
	"github.com/embedcni/cni/internal/guard"
	"github.com/embedcni/cni/internal/record"
)

// Records follows a directory of records. It is safe for concurrent use.
type Records struct {
	watch *dirwatch.Watch

	mu     sync.Mutex
	ids    map[string]record.ID // by file
	known  bool                 // all were read
	failed map[record.ID]bool   // have a removal that has to be repeated
	// changed are the containers that have changed since take, and taken those that it
	// has returned as guarded. A container that comes and goes in between is in neither.
	changed map[string]guard.Container
	taken   map[string]bool
}

// Watch begins to follow the records in a directory, which need not exist. The caller
// closes them.
func Watch(dir string) (*Records, error) {
	w, err := dirwatch.Open(dir)
	if err != nil {
		return nil, err
	}
	return &Records{
		watch: w, ids: make(map[string]record.ID), failed: make(map[record.ID]bool),
		changed: make(map[string]guard.Container), taken: make(map[string]bool),
	}, nil
}

// Close stops following the records.
func (k *Records) Close() error { return k.watch.Close() }

// Changed returns the containers in scope that have changed since the last call, at the
// first call all. One that has left the scope is not guarded any more. With an error
// these are the known ones.
func (k *Records) Changed(in *record.Store, scope Scope, log *slog.Logger) ([]guard.Container, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.refresh(in, scope, log)
	return k.take(), err
}

// Failed returns the containers in scope with a removal that failed or was cut short.
// With an error these are the known ones.
func (k *Records) Failed(in *record.Store, scope Scope, log *slog.Logger) (ids []record.ID, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	err = k.refresh(in, scope, log)
	for id := range k.failed {
		ids = append(ids, id)
	}
	return ids, err
}

// refresh reads the records that have changed.
func (k *Records) refresh(in *record.Store, scope Scope, log *slog.Logger) error {
	seen, err := k.watch.Now()
	if err != nil {
		log.Warn("all records are read, since their changes are not known", "error", err)
	}
	files := seen.Names
	if k.known = k.known && !seen.Lost; !k.known { // until it has succeeded
		if files, err = k.allFiles(in); err != nil {
			return err
		}
	}
	k.known = true
	for _, name := range files {
		if file, ok := strings.CutSuffix(name, record.FileExt); ok && file != "" {
			rec, err := in.LoadFile(file)
			if err != nil {
				rec = nil // a record that cannot be used is not guarded
			}
			k.read(file, rec, scope)
		}
	}
	return nil
}

// read takes in what a file has now: a record, or nil.
func (k *Records) read(file string, rec *record.Record, scope Scope) {
	before, had := k.ids[file]
	if rec == nil || rec.ContainerID == "" {
		if had {
			k.change(guard.Container{ID: string(before)})
			delete(k.ids, file)
			delete(k.failed, before)
		}
		return
	}
	k.ids[file] = rec.ContainerID
	delete(k.failed, rec.ContainerID)
	c := guard.Container{ID: string(rec.ContainerID)}
	if scope.Includes(rec) {
		c.Signs, c.Guarded = signsOf(rec, scope.Owner)
		if rec.IsUnsettled(scope.Owner) {
			k.failed[rec.ContainerID] = true
		}
	}
	k.change(c)
}

func (k *Records) change(c guard.Container) {
	if !c.Guarded && !k.taken[c.ID] {
		delete(k.changed, c.ID)
		return
	}
	k.changed[c.ID] = c
}

// take returns the containers that have changed since it did before.
func (k *Records) take() (all []guard.Container) {
	for id, c := range k.changed {
		all = append(all, c)
		if c.Guarded {
			k.taken[id] = true
		} else {
			delete(k.taken, id)
		}
	}
	clear(k.changed)
	return all
}

// allFiles returns the files of all records, those that are known and gone included.
func (k *Records) allFiles(in *record.Store) ([]string, error) {
	files, err := in.Files()
	if err != nil {
		return nil, err
	}
	for file := range k.ids {
		if !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	for i := range files {
		files[i] += record.FileExt
	}
	return files, nil
}
