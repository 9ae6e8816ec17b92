package firewalld

import (
	"encoding/json"
	"net/netip"
)

// Before records which sources an ADD found in the zones, for its DEL and the
// sweep. The key is the zone and the source. The value is true for a foreign
// source, which was there and belongs to no attachment on record: an
// administrator or another program has added it, and it stays.
type Before map[string]bool

// before is the key of the note of the plugin firewall.
const before = "firewall.zones"

// Notes keep facts in an attachment's record.
type Notes interface {
	// Fact returns the last note under key, or nil.
	Fact(key string) json.RawMessage
	// Note records a value under key.
	Note(key string, value any) error
}

// Recall returns the note. It is empty if there is none, as for an executable.
func Recall(n Notes) (Before, error) {
	b := Before{}
	fact := n.Fact(before)
	if fact == nil {
		return b, nil
	}
	return b, json.Unmarshal(fact, &b)
}

// Note stores b as the note.
func (b Before) Note(n Notes) error { return n.Note(before, b) }

func key(zone string, addr netip.Addr) string { return zone + " " + Source(addr) }

// Foreign reports whether the address is foreign, and stays in the zone.
func (b Before) Foreign(zone string, addr netip.Addr) bool { return b[key(zone, addr)] }

// Found records whether an address is foreign. It changes no earlier answer: a
// second ADD finds the addresses that the first one added.
func (b Before) Found(zone string, addr netip.Addr, foreign bool) {
	if _, known := b[key(zone, addr)]; !known {
		b[key(zone, addr)] = foreign
	}
}
