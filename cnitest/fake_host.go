package cnitest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/embedcni/cni"
)

// fakeHost is what survives the restart of a program.
type fakeHost struct {
	mu         sync.Mutex
	containers map[string]*fakeContainer
	released   map[string]*fakeContainer // that are not on record any more, and attached
	locked     map[string]chan struct{}  // by container; closed when it is unlocked
	gone       map[string]bool           // namespaces that have ended, by path
	exists     map[string]uint64         // those that were made here, or attached: their inodes
	faults     []*Fault
	holds      []cni.Hold
	calls      []FakeCall
	listeners  []chan struct{} // of guards
	ipam       fakeIPAM
	made       int   // names of interfaces and namespaces
	port       int32 // that was chosen last
}

func newFakeHost() *fakeHost {
	return &fakeHost{
		containers: map[string]*fakeContainer{}, released: map[string]*fakeContainer{}, locked: map[string]chan struct{}{},
		gone: map[string]bool{}, exists: map[string]uint64{}, ipam: newFakeIPAM(),
	}
}

// fakeContainer is a container on record.
type fakeContainer struct {
	id, netns   string
	since       time.Time
	dead        bool      // its namespace has ended
	made        bool      // Setup has made its namespace
	kept        bool      // forget leaves that namespace
	pooled      bool      // a pool has made it
	pool        *FakePool // that has made it ahead of time; nobody uses it yet
	calls       int       // of Setup
	changes     int       // of its record
	attachments []*fakeAttachment
}

// lock waits until no other call for the container is in progress.
func (h *fakeHost) lock(ctx context.Context, id string) (unlock func(), err error) {
	for {
		h.mu.Lock()
		busy := h.locked[id]
		if busy == nil {
			done := make(chan struct{})
			h.locked[id] = done
			h.mu.Unlock()
			return func() {
				h.mu.Lock()
				defer h.mu.Unlock()
				delete(h.locked, id)
				close(done)
			}, nil
		}
		h.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// briefly is the time for which Recover and the like wait for another call.
const briefly = 250 * time.Millisecond

// lockBriefly returns ErrBusy if another call has the container locked.
func (h *fakeHost) lockBriefly(ctx context.Context, id string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, briefly, cni.ErrBusy)
	defer cancel()
	return h.lock(ctx, id)
}

// lockAttached is lock for calls about a container that is attached and lives. Otherwise
// the error is ErrNotAttached or errGone. It returns the attachments on record.
func (h *fakeHost) lockAttached(ctx context.Context, id string) (all []*fakeAttachment, unlock func(), err error) {
	if err := validID(id); err != nil {
		return nil, nil, err
	}
	if unlock, err = h.lock(ctx, id); err != nil {
		return nil, nil, err
	}
	all, dead := h.recorded(id, func(a *fakeAttachment) bool { return !a.warm })
	switch {
	case dead:
		err = errGone
	case len(all) == 0:
		err = cni.ErrNotAttached
	default:
		return all, unlock, nil
	}
	unlock()
	return nil, nil, err
}

// recorded returns the attachments of a container that are on record and selected; nil
// selects all. dead reports whether its namespace has ended.
func (h *fakeHost) recorded(id string, selected func(*fakeAttachment) bool) (all []*fakeAttachment, dead bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.containers[id]
	if c == nil {
		return nil, false
	}
	for _, a := range c.attachments {
		if selected == nil || selected(a) {
			all = append(all, a)
		}
	}
	return all, c.dead
}

// mine returns the attachments of a container that an owner has made. One that a pool has
// made ahead of time is nobody's, unless its removal has failed, or the pool's program has
// ended.
func (h *fakeHost) mine(id, owner string) (mine []*fakeAttachment, dead bool) {
	return h.recorded(id, func(a *fakeAttachment) bool {
		return a.owner == owner && (!a.warm || a.failures > 0 || h.containers[id].pool.ended)
	})
}

// attached returns the attachments of all containers, on record or released. The host is
// locked.
func (h *fakeHost) attached() iter.Seq2[*fakeContainer, *fakeAttachment] {
	return func(yield func(*fakeContainer, *fakeAttachment) bool) {
		for _, from := range []map[string]*fakeContainer{h.containers, h.released} {
			for _, id := range slices.Sorted(maps.Keys(from)) {
				for _, a := range from[id].attachments {
					if !yield(from[id], a) {
						return
					}
				}
			}
		}
	}
}

// find returns the first attachment of a container for which is returns true, or nil. The
// container may be nil too.
func (c *fakeContainer) find(is func(*fakeAttachment) bool) *fakeAttachment {
	if c == nil {
		return nil
	}
	i := slices.IndexFunc(c.attachments, is)
	if i < 0 {
		return nil
	}
	return c.attachments[i]
}

// on returns the attachment to a network by an interface, or nil.
func (c *fakeContainer) on(network, ifName string) *fakeAttachment {
	return c.find(func(a *fakeAttachment) bool { return a.Network == network && a.IfName == ifName })
}

// forget removes attachments from the record, and with the last one the container.
func (h *fakeHost) forget(id string, gone []*fakeAttachment) {
	c := h.containers[id]
	if c == nil {
		return
	}
	c.changes++
	c.attachments = slices.DeleteFunc(c.attachments, func(a *fakeAttachment) bool { return slices.Contains(gone, a) })
	if len(c.attachments) > 0 {
		return
	}
	h.unrecord(c)
	if c.made && !c.kept {
		h.endNetNS(c.netns)
	}
}

// forgetEmpty removes a namespace that a pool has made without attachments, if the pool's
// program has ended. It reports whether it has done so.
func (h *fakeHost) forgetEmpty(id, owner string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.containers[id]
	if c == nil || len(c.attachments) > 0 || c.pool == nil || !c.pool.ended || c.pool.owner != owner {
		return false
	}
	h.forget(id, nil)
	return true
}

// unrecord removes a container from the record, with its holds.
func (h *fakeHost) unrecord(c *fakeContainer) {
	delete(h.containers, c.id)
	h.holds = slices.DeleteFunc(h.holds, func(held cni.Hold) bool { return held.ContainerID == c.id })
}

// recall puts attachments of a released container on record again; nil selects all. The
// host is locked.
func (h *fakeHost) recall(id string, selected func(*fakeAttachment) bool) {
	r := h.released[id]
	if r == nil {
		return
	}
	back := *r
	back.attachments = nil
	r.attachments = slices.DeleteFunc(r.attachments, func(a *fakeAttachment) bool {
		going := selected == nil || selected(a)
		if going {
			back.attachments = append(back.attachments, a)
		}
		return going
	})
	if len(r.attachments) == 0 {
		delete(h.released, id)
	}
	switch c := h.containers[id]; {
	case len(back.attachments) == 0:
	case c == nil:
		h.containers[id] = &back
	default:
		c.attachments = append(c.attachments, back.attachments...)
	}
}

// ids returns the containers on record, in order.
func (h *fakeHost) ids() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.containers))
}

// maxID is the longest ID: the name of a file has it.
const maxID = 255

// validID is the check of every method that takes an ID alone.
func validID(id string) error {
	if len(id) > maxID {
		return fmt.Errorf("container ID of %d bytes is too long: %w", len(id), cni.ErrInvalidArgument)
	}
	if err := utils.ValidateContainerID(id); err != nil {
		return fmt.Errorf("container ID %q: %w: %w", id, err, cni.ErrInvalidArgument)
	}
	return nil
}

// errNoAnswerYet: a pool does not wait for a plugin that waits.
var errNoAnswerYet = errors.New("the plugin has not answered yet")

// fault answers for the plugins that run: it returns the error of an injected fault. The
// host is not locked.
func (h *fakeHost) fault(ctx context.Context, verb, id string, a *fakeAttachment) error {
	f, ok := h.take(verb, id, a)
	if !ok {
		return nil
	}
	if err := f.wait(ctx, verb, verb == "ADD" && a.warm); err != nil {
		return a.error(verb, id, a.failing(f), err)
	}
	if f.Err == nil {
		return nil
	}
	return a.error(verb, id, a.failing(f), f.Err)
}

// wait returns when the plugin answers.
func (f Fault) wait(ctx context.Context, verb string, atOnce bool) error {
	if f.Wait == nil {
		return nil
	}
	if verb == "DEL" {
		ctx = context.WithoutCancel(ctx)
	}
	if atOnce {
		select {
		case <-f.Wait:
			return nil
		default:
			return errNoAnswerYet
		}
	}
	select {
	case <-f.Wait:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// failing returns the type of the plugin that a fault is about.
func (a *fakeAttachment) failing(f Fault) string {
	all := a.plugins()
	return cmp.Or(f.Plugin, all[len(all)-1])
}

// runs reports whether a plugin runs: not if a pool has run it before, or does not run it
// yet.
func (a *fakeAttachment) runs(verb, typ string) bool {
	at := max(slices.Index(a.plugins(), typ), 0) // those of IPAM run in the first
	return verb != "ADD" || a.from <= at && at < a.to
}

// take returns the fault for a call, and counts it.
func (h *fakeHost) take(verb, id string, a *fakeAttachment) (Fault, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, f := range h.faults {
		if f.Verb != "" && f.Verb != verb || f.ContainerID != "" && f.ContainerID != id || f.Network != "" && f.Network != a.Network ||
			!a.runs(verb, a.failing(*f)) {
			continue
		}
		taken := *f
		if f.Times == 1 {
			h.faults = slices.Delete(h.faults, i, i+1)
		} else if f.Times > 1 {
			f.Times--
		}
		return taken, true
	}
	return Fault{}, false
}

// error returns the *cni.Error of a plugin.
func (a *fakeAttachment) error(verb, id, typ string, cause error) error {
	e := &cni.Error{
		Op: verb, Network: a.Network, Plugin: typ, ContainerID: id, IfName: a.IfName, Err: cause,
	}
	if typ == "" {
		return e
	}
	e.PluginKind = cni.PluginBuiltIn
	var coded *types.Error
	switch {
	case errors.As(cause, &coded):
		e.Code, e.Msg, e.Details = coded.Code, coded.Msg, coded.Details
	case errors.Is(cause, context.Canceled), errors.Is(cause, context.DeadlineExceeded):
	default:
		e.Code, e.Msg = types.ErrInternal, cause.Error()
	}
	return e
}
