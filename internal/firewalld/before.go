package firewalld

import (
	"encoding/json"
	"net/netip"

	"github.com/embedcni/cni/internal/caller"
)

// Before is what an ADD found before it put addresses into zones, for its DEL and
// the sweep: by zone and source, whether the source was there and is nobody's who
// is on record. Such a source is an administrator's, or of a program that nobody
// knows, and stays.
type Before map[string]bool

// before is the note of the plugin firewall.
const before = "firewall.zones"

// Recall returns the note; empty if there is none, as of an executable.
func Recall(c caller.Caller) (Before, error) {
	b := Before{}
	fact := c.Fact(before)
	if fact == nil {
		return b, nil
	}
	return b, json.Unmarshal(fact, &b)
}

// Note notes it.
func (b Before) Note(c caller.Caller) error { return c.Note(before, b) }

func key(zone string, addr netip.Addr) string { return zone + " " + Source(addr) }

// Foreign reports whether the address was in the zone before, and stays.
func (b Before) Foreign(zone string, addr netip.Addr) bool { return b[key(zone, addr)] }

// Found adds whether an address is a foreign one. What is known stays: a second
// ADD finds what the first one has made.
func (b Before) Found(zone string, addr netip.Addr, foreign bool) {
	if _, known := b[key(zone, addr)]; !known {
		b[key(zone, addr)] = foreign
	}
}
