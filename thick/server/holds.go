package server

import (
	"context"
	"fmt"
	"sync"

	"github.com/embedcni/cni/thick/internal/wire"
)

// holds keep the ADDs of a container from running beside its DELs in the queue: a DEL that has
// found an earlier attachment must not end a later one.
type holds struct {
	mu sync.Mutex
	of map[string]*hold // by container

	isRuntime bool // this process executes shims itself
}

// hold is the state of one container.
type hold struct {
	adds, dels int
	calls      int           // of any verb
	changed    chan struct{} // closed when there are no ADDs, or no DELs, any more
}

// at changes the state of a container.
func (h *holds) at(id string, change func(*hold)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of == nil {
		h.of = map[string]*hold{}
	}
	c := h.of[id]
	if c == nil {
		c = &hold{changed: make(chan struct{})}
		h.of[id] = c
	}
	adds, dels := c.adds, c.dels
	change(c)
	if adds > 0 && c.adds == 0 || dels > 0 && c.dels == 0 {
		close(c.changed)
		c.changed = make(chan struct{})
	}
	if c.adds == 0 && c.dels == 0 && c.calls == 0 {
		delete(h.of, id)
	}
}

// call counts a call for a container until end is called. It reports whether the call is of a
// plugin that the Backend runs, and would wait for itself: it comes from a child of this process,
// in another call for its container, and an ADD in another ADD. A runtime that executes shims
// itself has children too. ADDs show whether this process is one: removals and looks run DELs
// and CHECKs of plugins outside calls.
func (h *holds) call(id, verb string, isChild bool) (asksItself bool, end func()) {
	h.at(id, func(c *hold) {
		others := c.calls
		if verb == wire.Add {
			others = c.adds
			h.isRuntime = h.isRuntime || isChild && others == 0
		}
		asksItself = isChild && others > 0 && !h.isRuntime
		c.calls++
	})
	return asksItself, func() { h.at(id, func(c *hold) { c.calls-- }) }
}

// add waits until no DELs of a container are left in the queue, and keeps later ones waiting
// until end is called. It fails when draining is closed.
func (h *holds) add(ctx context.Context, id string, draining <-chan struct{}) (end func(), err error) {
	for {
		var wait <-chan struct{}
		h.at(id, func(c *hold) {
			if c.dels > 0 {
				wait = c.changed
			} else {
				c.adds++
			}
		})
		if wait == nil {
			return func() { h.at(id, func(c *hold) { c.adds-- }) }, nil
		}
		select {
		case <-wait:
		case <-draining:
			return nil, errDraining
		case <-ctx.Done():
			return nil, fmt.Errorf("a DEL of container %s in the queue has not ended: %w", id, context.Cause(ctx))
		}
	}
}

// del keeps ADDs of a container from beginning until end is called.
func (h *holds) del(id string) (end func()) {
	h.at(id, func(c *hold) { c.dels++ })
	return func() { h.at(id, func(c *hold) { c.dels-- }) }
}

// alone waits until no ADD of a container is under way.
func (h *holds) alone(ctx context.Context, id string) error {
	for {
		var wait <-chan struct{}
		h.at(id, func(c *hold) {
			if c.adds > 0 {
				wait = c.changed
			}
		})
		if wait == nil {
			return nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
