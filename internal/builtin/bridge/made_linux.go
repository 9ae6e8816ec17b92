package bridge

import (
	"encoding/json"
	"fmt"
	"net"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
)

// A bridge that an ADD of this plugin made is made again if it is gone; others
// belong to the host. The bridge carries an alias, by which each later ADD, of
// any program, sees who made it, and notes the fact for its own attachment: the
// attachment that made the bridge may be gone while others use it. A bridge that
// an administrator or another program makes under the same name has no such
// alias.
const (
	alias    = "embedcni"
	madeNote = "bridge.made"
	// hostsNote says that the bridge was there before the ADD, and that no ADD had made it.
	// Records of earlier versions have neither note for a bridge of the host, nor for one
	// that an executable made.
	hostsNote = "bridge.hosts"
)

// made is the note about a bridge that an ADD made.
type made struct {
	MAC           string `json:"mac"`
	VLANFiltering bool   `json:"vlanFiltering,omitempty"`
}

// noteMade notes that an ADD made the bridge, this one or an earlier one.
func noteMade(record caller.Record, br links.Link) error {
	return record.NoteSoon(madeNote, made{MAC: br.MAC.String(), VLANFiltering: br.VLANFiltering})
}

// noteHosts notes that the bridge is the host's.
func noteHosts(record caller.Record) error { return record.NoteSoon(hostsNote, true) }

// madeBy returns the note of an attachment, or nil. Attachments of earlier
// versions, and of other plugins, have none.
func madeBy(record caller.Record) (*made, error) {
	text := record.Fact(madeNote)
	if text == nil {
		return nil, nil
	}
	m := &made{}
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("note %s: %w", madeNote, err)
	}
	return m, nil
}

// madeForOthers returns the last note of another attachment about the bridge of that name,
// or nil. The attachment's result says which bridge its note is about.
func madeForOthers(record caller.Record, bridge string) (last *made, err error) {
	others, err := record.Others(madeNote)
	if err != nil {
		return nil, fmt.Errorf("whether bridge %q was deleted: %w", bridge, err)
	}
	for _, o := range others {
		var result struct {
			Interfaces []struct{ Name, Sandbox string }
		}
		m := &made{}
		if json.Unmarshal(o.Result, &result) != nil || json.Unmarshal(o.Value, m) != nil {
			continue // another's record is no reason to fail
		}
		for _, i := range result.Interfaces {
			if i.Name == bridge && i.Sandbox == "" {
				last = m
			}
		}
	}
	return last, nil
}

// is reports whether the bridge is the noted one. One that was made again has its
// hardware address before it has the alias, and one that a later ADD made has
// another address.
func (m *made) is(br links.Link) bool {
	return br.Kind == "bridge" && (br.Alias == alias || br.MAC.String() == m.MAC)
}

// mark says who made a bridge.
func mark(conn *links.Conn, index int) error {
	text := alias
	if err := conn.Change(index, links.Change{Alias: &text}); err != nil {
		return fmt.Errorf("alias of interface %d: %w", index, err)
	}
	return nil
}

// bridge returns the bridge to make again.
func (m *made) bridge(c *config) links.Bridge {
	mac, err := net.ParseMAC(m.MAC)
	if err != nil {
		mac = nil // a random one is better than no bridge
	}
	return links.Bridge{Name: c.Bridge, MTU: c.MTU, VLANFiltering: m.VLANFiltering || c.filtersVLANs(), MAC: mac}
}
