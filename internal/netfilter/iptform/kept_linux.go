package iptform

import (
	"context"
	"sync"

	"github.com/embedcni/cni/netns"
)

// Kept are the last dumps of some tools, for one who looks at a host again and again. A
// dump is used as long as the kernel has counted no change of any rules since: it is then
// as good as a new one. Nobody counts the changes of legacy rules, which are always read.
//
// It is safe for concurrent use. A nil Kept keeps nothing.
type Kept struct {
	mu    sync.Mutex
	dumps map[keptFor]*dump
}

// keptFor identifies the rules of a dump.
type keptFor struct {
	ns   netns.ID
	tool string
}

// of returns the key of a variant's rules. ok is false if they cannot be kept.
func (k *Kept) of(x maker) (key keptFor, ok bool) {
	if k == nil || x.Legacy || x.Sockets.NS == nil {
		return key, false
	}
	return keptFor{x.Sockets.NS.ID(), x.Name()}, true
}

// current returns the dump of a variant's rules as they are now, or nil.
func (k *Kept) current(ctx context.Context, x maker) *dump {
	key, ok := k.of(x)
	if !ok {
		return nil
	}
	k.mu.Lock()
	last := k.dumps[key]
	k.mu.Unlock()
	if last == nil {
		return nil
	}
	generation, err := x.Generation(ctx)
	if err != nil || generation != last.generation {
		return nil // an error is met again when they are read
	}
	d := *last // a listing is never changed
	d.maker, d.in = x, nil
	return &d
}

// keep keeps a dump instead of an earlier one.
func (k *Kept) keep(d *dump) {
	key, ok := k.of(d.maker)
	if !ok || !d.steady || d.generation == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dumps == nil {
		k.dumps = make(map[keptFor]*dump)
	}
	k.dumps[key] = d
}
