// Package caller connects a built-in plugin with the runtime that calls it. The
// plugin writes notes for its DEL into the attachment's record, and asks the
// runtime about other attachments. A plugin that runs without a runtime, as in
// its own tests, gets a caller that remembers nothing.
package caller

import (
	"context"
	"encoding/json"
	"net/netip"
)

// Caller is the runtime, acting for one attachment. Its methods are safe for
// concurrent use.
type Caller interface {
	// Fact returns the last value noted under key for this attachment, by an
	// earlier call too, and nil if there is none.
	Fact(key string) json.RawMessage

	// Note records value, marshaled, under key. The note survives the process. It
	// is not synced: notes are about kernel state, and a power cut destroys both.
	// A key begins with the plugin's type.
	Note(key string, value any) error

	// InUse returns the addresses of all other attachments on record, of this
	// container and of others, of any owner.
	InUse() ([]netip.Addr, error)
}

// Reservations is the part of a runtime that host-local asks about its files.
// Other programs and administrators may share them.
type Reservations interface {
	// Claim records that the attachment is about to reserve the address in
	// host-local's directory for its network. A power cut that keeps the
	// reservation also keeps the claim, or the attachment's record, which leads
	// to the reservation.
	Claim(dir string, addr netip.Addr)

	// MayRelease reports whether GC may release an attachment's address on the
	// network: the runtime's owner reserved it, and the attachment is gone.
	MayRelease(id, ifName string, addr netip.Addr) bool
}

// ReservationsFrom returns the caller's Reservations, never nil. Without a
// runtime only DEL may release addresses.
func ReservationsFrom(ctx context.Context) Reservations {
	if r, ok := ctx.Value(key{}).(Reservations); ok {
		return r
	}
	return nobody{}
}

type key struct{}

// With returns a context whose plugins are called by c.
func With(ctx context.Context, c Caller) context.Context { return context.WithValue(ctx, key{}, c) }

// From returns the caller of the context, never nil.
func From(ctx context.Context) Caller {
	if c, ok := ctx.Value(key{}).(Caller); ok {
		return c
	}
	return nobody{}
}

type nobody struct{}

func (nobody) Fact(string) json.RawMessage  { return nil }
func (nobody) Note(string, any) error       { return nil }
func (nobody) InUse() ([]netip.Addr, error) { return nil, nil }

func (nobody) Claim(string, netip.Addr)                   {}
func (nobody) MayRelease(string, string, netip.Addr) bool { return false }

// loWasUp is the key of the note that lo was up before the ADD of the plugin
// loopback.
const loWasUp = "loopback.wasUp"

// NoteLoWasUp notes that lo was up before the ADD of the plugin loopback, so
// that its DEL leaves it up.
func NoteLoWasUp(c Caller) error { return c.Note(loWasUp, true) }

// LoWasUp reports whether NoteLoWasUp was called for the attachment.
func LoWasUp(c Caller) bool { return string(c.Fact(loWasUp)) == "true" }
