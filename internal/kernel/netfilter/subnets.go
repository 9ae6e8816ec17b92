package netfilter

import (
	"encoding/json"
	"net/netip"
	"slices"
)

// SubnetsFact is the key of the note about the subnets whose packets the host forwards
// for an attachment's network.
const SubnetsFact = "firewall.subnets"

// noted is that note.
type noted struct {
	Subnets []netip.Prefix `json:"subnets"`
	Leaving bool           `json:"leaving,omitempty"` // it is removed: others need not wait for it
}

// NotedSubnets returns the subnets that a note names. It returns none if the attachment
// is being removed, unless leaving attachments count.
func NotedSubnets(note json.RawMessage, leaving bool) ([]netip.Prefix, error) {
	var n noted
	if note == nil {
		return nil, nil
	}
	if err := json.Unmarshal(note, &n); err != nil || n.Leaving && !leaving {
		return nil, err
	}
	return n.Subnets, nil
}

// Leave notes that an attachment is removed, so that its network's last one takes the
// rules along.
func Leave(record Notes) error {
	subnets, err := NotedSubnets(record.Fact(SubnetsFact), false)
	if err != nil || len(subnets) == 0 {
		return err
	}
	return record.Note(SubnetsFact, noted{subnets, true})
}

// Subnets returns the subnets of addresses, each once.
func Subnets(addrs []netip.Prefix) (subnets []netip.Prefix) {
	for _, p := range addrs {
		if p, err := PlainPrefix(p); err == nil && !slices.Contains(subnets, p.Masked()) {
			subnets = append(subnets, p.Masked())
		}
	}
	return subnets
}
