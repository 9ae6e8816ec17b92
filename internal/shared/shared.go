// Package shared has the values that all Runtimes of a process share. Some programs make
// a Runtime for each container: what a Runtime knows of all containers must not be in
// memory, read and watched as often as there are Runtimes.
package shared

import (
	"runtime"
	"sync"
)

// Values has one value for each key, as long as somebody has a Ref to it. The zero Values
// has none, and is safe for concurrent use.
type Values[K comparable, V any] struct {
	mu  sync.Mutex
	all map[K]*entry[V]
}

type entry[V any] struct {
	value *V
	refs  int
}

// Ref keeps a value for those who ask for it later. Whoever uses the value keeps the Ref,
// and need not give it back: the garbage collector finds that nobody has it any more.
type Ref[V any] struct{ Value *V }

// Get returns the value of a key. It calls make, which must not call Get, if there is none.
func (v *Values[K, V]) Get(key K, make func() *V) *Ref[V] {
	v.mu.Lock()
	defer v.mu.Unlock()
	e := v.all[key]
	if e == nil {
		e = &entry[V]{value: make()}
		v.set(key, e)
	}
	e.refs++
	r := &Ref[V]{e.value}
	runtime.SetFinalizer(r, func(*Ref[V]) { v.drop(key, e) })
	return r
}

func (v *Values[K, V]) set(key K, e *entry[V]) {
	if v.all == nil {
		v.all = make(map[K]*entry[V])
	}
	v.all[key] = e
}

func (v *Values[K, V]) drop(key K, e *entry[V]) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if e.refs--; e.refs == 0 {
		delete(v.all, key)
	}
}
