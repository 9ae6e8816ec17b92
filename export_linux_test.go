package cni

import (
	"context"
	"reflect"
)

// Reap examines all records for abandoned containers, in the foreground.
// Background rounds do the same, with pauses.
func (r *Runtime) Reap(ctx context.Context) error {
	s := r.current.Load()
	host, err := s.Hosts.Open(s.hostNetNS)
	if err != nil {
		return err
	}
	return join(s.abandoned.Round(ctx, s.forAbandoned(), host), host.Close())
}

// Reaped reports whether any call has requested a round.
func (r *Runtime) Reaped() bool {
	return !reflect.ValueOf(r.current.Load().abandoned).Elem().FieldByName("rounds").Elem().IsZero()
}

// SearchesWith reports whether two Runtimes look for abandoned containers together.
func (r *Runtime) SearchesWith(other *Runtime) bool {
	rounds := func(r *Runtime) uintptr {
		return reflect.ValueOf(r.current.Load().abandoned).Elem().FieldByName("rounds").Pointer()
	}
	return rounds(r) == rounds(other)
}

// ReadRecordsBy calls told for each record that is read.
func (r *Runtime) ReadRecordsBy(told func()) {
	store := r.current.Load().Records
	read := store.Read
	store.Read = func(path string) ([]byte, error) {
		told()
		return read(path)
	}
}
