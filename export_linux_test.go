package cni

import (
	"context"
	"reflect"
)

// Reap examines all records for abandoned containers, in the foreground.
// Looks in the background do the same, with pauses.
func (r *Runtime) Reap(context.Context) error { return r.current.Load().eng.Reap() }

// search returns the search of a Runtime.
func (r *Runtime) search() reflect.Value {
	return reflect.ValueOf(r.current.Load().eng).Elem().FieldByName("abandoned")
}

// Reaped reports whether any call has requested a look.
func (r *Runtime) Reaped() bool { return r.search().Elem().FieldByName("begun").Bool() }

// SearchesWith reports whether two Runtimes look for abandoned containers together.
func (r *Runtime) SearchesWith(other *Runtime) bool {
	return r.search().Pointer() == other.search().Pointer()
}

// ReadRecordsBy calls told for each record that is read.
func (r *Runtime) ReadRecordsBy(told func()) {
	store := r.current.Load().eng.Store.Records
	read := store.Read
	store.Read = func(path string) ([]byte, error) {
		told()
		return read(path)
	}
}
