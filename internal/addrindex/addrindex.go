// Package addrindex finds the records of the containers that have an address, without
// decoding all of them each time.
//
//	address ─► Find ─► list the files ─► decode those that are new or changed ─► records
//
// The records alone decide. In memory are the addresses of each record that was decoded,
// with the identity, size and time of its file at that moment: other processes write
// records too. So each call looks at each file, and decodes what has changed.
package addrindex

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/parallel"
	"github.com/embedcni/cni/internal/record"
)

// Index is the index of a directory of records. It is safe for concurrent use.
type Index struct {
	records *record.Store
	mu      sync.Mutex // so that of several callers only one decodes a new record
	known   map[string]entry
}

// entry is a decoded record.
type entry struct {
	file  fs.FileInfo // before it was read
	addrs []netip.Addr
}

// Open returns the index of the records.
func Open(records *record.Store) *Index { return &Index{records: records} }

// settled is the age at which a file's time says that it has not changed since: two
// changes within one tick of a file system's clock, of up to two seconds, have one time.
const settled = 3 * time.Second

// Find returns the records, of all hosts and boots, that have the address in a result.
// They are read after the call has begun. Of a record that cannot be used, the legible part
// counts.
func (x *Index) Find(addr netip.Addr) (found []record.Found, err error) {
	files, err := x.candidates(addr.WithZone("").Unmap())
	if err != nil {
		return nil, fmt.Errorf("attachment records: %w", err)
	}
	for _, file := range files {
		rec, err := x.records.LoadFile(file)
		if rec != nil { // else it was removed meanwhile
			found = append(found, record.Found{Record: rec, File: file, Err: err})
		}
	}
	return found, nil
}

// candidates returns the names of the records that may have the address.
func (x *Index) candidates(addr netip.Addr) (files []string, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	names, err := x.list()
	if err != nil {
		return nil, err
	}
	entries, errs := make([]*entry, len(names)), make([]error, len(names))
	parallel.Each(len(names), runtime.GOMAXPROCS(0), func(i int) { entries[i], errs[i] = x.look(names[i]) })
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	now := time.Now()
	known := make(map[string]entry, len(names))
	for i, e := range entries {
		if e == nil {
			continue
		}
		if slices.Contains(e.addrs, addr) {
			files = append(files, names[i])
		}
		if e.file != nil && now.Sub(e.file.ModTime()) > settled {
			known[names[i]] = *e
		}
	}
	x.known = known
	return files, nil
}

// list returns the names of all records. A file that is replaced while a directory is
// read may be missing in the list, so one that was known is listed all the same, and a
// directory that changes is read again, at most a few times.
func (x *Index) list() ([]string, error) {
	all := make(map[string]bool, len(x.known))
	for name := range x.known {
		all[name] = true
	}
	for range 4 {
		before, err := os.Stat(x.records.Dir())
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		names, err := x.records.Files()
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			all[name] = true
		}
		if after, err := os.Stat(x.records.Dir()); err == nil && after.ModTime().Equal(before.ModTime()) {
			break
		}
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// look returns the addresses of a record, nil if there is none. Several goroutines call
// it at once.
func (x *Index) look(name string) (*entry, error) {
	info, err := os.Lstat(x.records.Path(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if e, ok := x.known[name]; ok && same(e.file, info) {
		return &e, nil
	}
	rec, err := x.records.LoadFile(name)
	if rec == nil {
		return nil, nil // removed meanwhile, or not a record
	}
	e := &entry{file: info, addrs: addressesIn(rec)}
	if errors.Is(err, record.ErrUnread) {
		e.file = nil // it may be legible the next time
	}
	return e, nil
}

func same(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// addressesIn returns the addresses in a record's results, those of the host's
// interfaces included.
func addressesIn(rec *record.Record) (addrs []netip.Addr) {
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
	return addrs
}
