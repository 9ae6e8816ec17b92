package container

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/dirwatch"
	"github.com/embedcni/cni/internal/record"
)

// ByAddress finds the records of the containers that have an address. The records alone
// decide; it remembers the addresses in each, and decodes those that have changed. It is
// safe for concurrent use.
type ByAddress struct {
	records *record.Store
	files   *dirwatch.Files[[]netip.Addr]
}

// NewByAddress touches nothing. A record changes with each entry of its log, so nobody
// watches the directory.
func NewByAddress(records *record.Store) *ByAddress {
	return &ByAddress{records, dirwatch.NewFiles[[]netip.Addr](records.Dir(), record.FileExt, nil)}
}

// Find returns the records, of all hosts and boots, that have the address in a result.
// They are read after the call has begun. Of a record that cannot be used, the legible part
// counts.
func (b *ByAddress) Find(addr netip.Addr) (found []record.Found, err error) {
	addr = addr.WithZone("").Unmap()
	var files []string
	err = b.files.Each(b.read, func(name string, addrs []netip.Addr) {
		if slices.Contains(addrs, addr) {
			files = append(files, name)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("attachment records: %w", err)
	}
	slices.Sort(files)
	for _, file := range files {
		rec, err := b.records.LoadFile(file)
		if rec != nil { // else it was removed meanwhile
			found = append(found, record.Found{Record: rec, File: file, Err: err})
		}
	}
	return found, nil
}

// read returns the addresses in a record's results, those of the host's interfaces included.
func (b *ByAddress) read(name string) (addrs []netip.Addr, sure bool) {
	rec, err := b.records.LoadFile(name)
	if rec == nil {
		return nil, true // removed meanwhile, or not a record
	}
	for i := range rec.Attachments {
		n := &rec.Attachments[i]
		if n.State == record.Deleted {
			continue
		}
		if result := chain.Decode(n.Result); result != nil {
			for _, ip := range result.IPs {
				if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
					addrs = append(addrs, addr.Unmap())
				}
			}
		}
	}
	return addrs, !errors.Is(err, record.ErrUnread)
}
