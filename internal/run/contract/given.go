package contract

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/netns"
)

// Given is everything that a runtime lends to a plugin for one call. It is in the context,
// because the methods of a plugin have no other parameter for it. A plugin reads nothing else
// from the context.
type Given struct {
	Record  Record            // the attachment's; nil: it remembers nothing
	Filters netfilter.Options // of the packet filters that the plugin opens; see Firewalls
	Conns   *links.Conns      // open sockets; nil: the plugin opens its own
	Bus     *firewalld.Bus    // of a firewalld; nil: the system's
	Batch   *thread.Batch     // changes that are made together; nil: each is made at once
	Durable func() error      // waits until the record survives a power cut; nil: it does
	// Patience limits the time that a repair waits for the kernel; nil: only the context
	// does.
	Patience *Patience
}

// Record is the record of one attachment, and of the others on the host. Its
// methods are safe for concurrent use.
type Record interface {
	// Fact returns the last value noted under key for this attachment, by an
	// earlier call too, and nil if there is none.
	Fact(key string) json.RawMessage

	// Note records value, marshaled, under key. The note survives the process. It
	// is not synced: notes are about kernel state, and a power cut destroys both.
	// A key begins with the plugin's type.
	Note(key string, value any) error

	// Others returns the notes under a key of all other attachments on record, of any
	// owner, that were made from the same host namespace since the machine was booted,
	// with the newest container's last. It reads all records.
	Others(key string) ([]Noted, error)

	// InUse returns the addresses of all other attachments on record, of this
	// container and of others, of any owner.
	InUse() ([]netip.Addr, error)

	// Released says that a DEL has released the attachment's addresses in host-local's
	// directory.
	Released(dir string)
}

// Noted is a note of another attachment.
type Noted struct {
	Value  json.RawMessage
	Result json.RawMessage // of its ADD
}

type key struct{}

// With returns the context of a plugin's call.
func With(ctx context.Context, g Given) context.Context {
	return context.WithValue(ctx, key{}, g.complete())
}

// From returns the value of the context, in which Record, Bus and Durable are set.
// A plugin that runs without a runtime, as in its own tests, gets the zero Given
// completed that way.
func From(ctx context.Context) *Given {
	if g, ok := ctx.Value(key{}).(*Given); ok {
		return g
	}
	return Given{}.complete()
}

func (g Given) complete() *Given {
	if g.Record == nil {
		g.Record = noRecord{}
	}
	if g.Bus == nil {
		g.Bus = firewalld.Open("")
	}
	if g.Durable == nil {
		g.Durable = func() error { return nil }
	}
	return &g
}

// Firewalls opens the packet filters of a namespace. They keep their notes in the
// record, and put their changes into the batch.
func (g *Given) Firewalls(ns *netns.Handle) *netfilter.Firewalls {
	o := g.Filters
	o.Notes, o.Batch = g.Record, g.Batch
	return netfilter.Open(ns, o)
}

// noRecord remembers nothing.
type noRecord struct{}

func (noRecord) Fact(string) json.RawMessage    { return nil }
func (noRecord) Note(string, any) error         { return nil }
func (noRecord) Others(string) ([]Noted, error) { return nil, nil }
func (noRecord) InUse() ([]netip.Addr, error)   { return nil, nil }
func (noRecord) Released(string)                {}

// loWasUp is the key of the note that lo was up before the ADD of the plugin
// loopback.
const loWasUp = "loopback.wasUp"

// NoteLoWasUp notes that lo was up before the ADD of the plugin loopback, so
// that its DEL leaves it up.
func NoteLoWasUp(r Record) error { return r.Note(loWasUp, true) }

// LoWasUp reports whether NoteLoWasUp was called for the attachment.
func LoWasUp(r Record) bool { return string(r.Fact(loWasUp)) == "true" }

// NoteRestored notes that rules of the executable of a type were made again in this
// module's own form.
func NoteRestored(r Record, typ string) error {
	if Restored(r, typ) {
		return nil
	}
	return r.Note(typ+".restored", true)
}

// Restored reports whether NoteRestored was called for the attachment.
func Restored(r Record, typ string) bool { return string(r.Fact(typ+".restored")) == "true" }

// Patience is the time that plugins may wait, all together, for work that the kernel does
// by itself, such as the detection of duplicate addresses. It is safe for concurrent use.
// A nil Patience has no end.
type Patience struct {
	mu   sync.Mutex
	left time.Duration
}

// NewPatience returns a Patience of that length.
func NewPatience(d time.Duration) *Patience { return &Patience{left: d} }

// ErrEnough means that a Patience has ended.
var ErrEnough = errors.New("it has taken long enough")

// Wait begins to wait, until stop is called. The context ends with the patience; then its
// cause is ErrEnough.
func (p *Patience) Wait(ctx context.Context) (_ context.Context, stop func()) {
	if p == nil {
		return ctx, func() {}
	}
	p.mu.Lock()
	left := p.left
	p.mu.Unlock()
	begun := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, left, ErrEnough)
	return ctx, func() {
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.left = max(p.left-time.Since(begun), 0)
	}
}
