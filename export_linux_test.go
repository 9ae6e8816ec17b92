package cni

import (
	"context"
	"reflect"
)

// Reap examines all records for abandoned containers, in the foreground.
// Looks in the background do the same, with pauses.
func (r *Runtime) Reap(context.Context) error {
	s := r.current.Load()
	host, err := s.store.Hosts.Open(s.opts.hostNetNS)
	if err != nil {
		return err
	}
	return join(s.abandoned.Look(s.forAbandoned(), host), host.Close())
}

// Reaped reports whether any call has requested a look.
func (r *Runtime) Reaped() bool {
	return reflect.ValueOf(r.current.Load().abandoned).Elem().FieldByName("begun").Bool()
}

// SearchesWith reports whether two Runtimes look for abandoned containers together.
func (r *Runtime) SearchesWith(other *Runtime) bool {
	return r.current.Load().abandoned == other.current.Load().abandoned
}

// ReadRecordsBy calls told for each record that is read.
func (r *Runtime) ReadRecordsBy(told func()) {
	store := r.current.Load().store.Records
	read := store.Read
	store.Read = func(path string) ([]byte, error) {
		told()
		return read(path)
	}
}
