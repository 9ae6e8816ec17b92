package claims

import (
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/record"
)

// Valid are all attachments on a host: those on record, of every owner, and those
// that only libcni's cache has, because GC must keep the attachments of other
// runtimes.
type Valid struct {
	lists map[string][]types.GCAttachment // by network, in the order in which they were found
	has   map[record.Key]bool
}

// FindValid returns the attachments in these records, which are all on the host, and
// in libcni's cache. An attachment of a damaged record may be of any loaded network.
// It fails if a record may have more attachments than were read.
func FindValid(found []record.Found, loaded []string, cached []*libcni.NetworkAttachment) (*Valid, error) {
	v := &Valid{lists: map[string][]types.GCAttachment{}, has: map[record.Key]bool{}}
	for _, f := range found {
		if f.Err != nil && (!errors.Is(f.Err, record.ErrBad) || len(f.Record.Attachments) == 0) {
			return nil, fmt.Errorf("the list of attachments is incomplete: %w", f.Err)
		}
		for n := range f.Record.Present() {
			networks := []string{n.Network}
			if n.Network == "" {
				networks = loaded
			}
			for _, network := range networks {
				v.add(record.Key{ContainerID: f.Record.Plugins(), Network: network, IfName: n.IfName})
			}
		}
	}
	for _, c := range cached {
		v.add(record.Key{ContainerID: record.PluginID(c.ContainerID), Network: c.Network, IfName: c.IfName})
	}
	return v, nil
}

func (v *Valid) add(key record.Key) {
	if !v.has[key] {
		v.has[key] = true
		v.lists[key.Network] = append(v.lists[key.Network], types.GCAttachment{ContainerID: string(key.ContainerID), IfName: key.IfName})
	}
}

// Has reports whether an attachment is valid.
func (v *Valid) Has(key record.Key) bool { return v.has[key] }

// With returns the attachments of a network, with the missing ones of more added.
func (v *Valid) With(network string, more []types.GCAttachment) []types.GCAttachment {
	list, added := slices.Clone(v.lists[network]), map[types.GCAttachment]bool{}
	for _, a := range more {
		if !added[a] && !v.has[record.Key{ContainerID: record.PluginID(a.ContainerID), Network: network, IfName: a.IfName}] {
			added[a] = true
			list = append(list, a)
		}
	}
	return list
}
