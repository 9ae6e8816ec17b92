package cni

import (
	"context"
	"reflect"
)

// Reap examines all records for abandoned containers, in the foreground.
// Background passes do the same, one after the other. It returns the number of
// passes.
func (r *Runtime) Reap(ctx context.Context) (passes int, err error) {
	s := r.current.Load()
	host, err := s.Hosts.Open(s.hostNetNS)
	if err != nil {
		return 0, err
	}
	passes, err = s.abandoned.Round(ctx, s.forAbandoned(), host)
	return passes, join(err, host.Close())
}

// Reaped reports whether any call has requested a pass.
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
