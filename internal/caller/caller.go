// Package caller connects a built-in plugin with the runtime that calls it: the
// plugin notes in the attachment's record what its DEL will need and cannot find
// out again, and asks what only the runtime knows. A plugin that runs without a
// runtime, as in its own tests, gets a caller that remembers nothing.
package caller

import (
	"context"
	"encoding/json"
	"net/netip"
)

// Caller is the runtime, on behalf of one attachment. Its methods may be called
// by several goroutines.
type Caller interface {
	// Fact returns what was last noted under key for this attachment, by an
	// earlier call too; nil if nothing was.
	Fact(key string) json.RawMessage

	// Note records value, which is marshaled, under key. It survives the end of
	// the process. It is not synced: what is lost with the power is what the
	// kernel held, which the notes are about. A key begins with the plugin's
	// type.
	Note(key string, value any) error

	// InUse returns the addresses that other attachments on record have now, of
	// this container and of others, whoever owns them.
	InUse() ([]netip.Addr, error)
}

// Reservations is the part of a runtime that host-local asks about its files,
// which other programs and administrators may share.
type Reservations interface {
	// Claim says that the attachment is about to reserve the address in host-local's
	// directory for its network. It is noted where a power cut does not lose it
	// without the reservation, or the attachment's record is there to find it by.
	Claim(dir string, addr netip.Addr)

	// MayRelease reports whether GC may release the address that is reserved for
	// an attachment of the network: the runtime's owner reserved it, and the
	// attachment is gone.
	MayRelease(id, ifName string, addr netip.Addr) bool
}

// ReservationsFrom returns those of the caller, never nil. Without a runtime
// nothing may be released but by DEL.
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

// loWasUp is the note of the plugin loopback that lo was up before its ADD.
const loWasUp = "loopback.wasUp"

// NoteLoWasUp notes that lo was up before the ADD of the plugin loopback, so that
// its DEL is not to set it down.
func NoteLoWasUp(c Caller) error { return c.Note(loWasUp, true) }

// LoWasUp reports whether that is noted.
func LoWasUp(c Caller) bool { return string(c.Fact(loWasUp)) == "true" }
