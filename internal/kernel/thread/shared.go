package thread

import (
	"runtime"
	"sync"
	"weak"
)

// Shared has one value for each key, as long as somebody has a pointer to it. The zero
// Shared has none, and is safe for concurrent use. It is for what all Runtimes of a process
// have in common. Some programs make a Runtime for each container: what a Runtime knows of
// all containers must not be in memory, read and watched as often as there are Runtimes.
type Shared[K comparable, V any] struct {
	mu  sync.Mutex
	all map[K]weak.Pointer[V]
}

// Get returns the value of a key. It calls make, which must not call Get, if there is none.
// Nobody need give the value back: the garbage collector finds that nobody has it any more.
func (v *Shared[K, V]) Get(key K, make func() *V) *V {
	v.mu.Lock()
	defer v.mu.Unlock()
	if value := v.all[key].Value(); value != nil {
		return value
	}
	value := make()
	v.set(key, weak.Make(value))
	runtime.AddCleanup(value, v.forget, key)
	return value
}

func (v *Shared[K, V]) set(key K, value weak.Pointer[V]) {
	if v.all == nil {
		v.all = make(map[K]weak.Pointer[V])
	}
	v.all[key] = value
}

// forget deletes the entry of a value that nobody has, unless there is a new value.
func (v *Shared[K, V]) forget(key K) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.all[key].Value() == nil {
		delete(v.all, key)
	}
}
