package floor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// reserve takes the next address of each prefix. It uses host-local's files and
// holds host-local's lock.
func (h *Host) reserve(id string) (_ []netip.Prefix, err error) {
	store, err := disk.New(h.network, h.dataDir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := store.Lock(); err != nil {
		return nil, err
	}
	var addrs []netip.Prefix
	for i, p := range h.prefixes {
		rangeID := fmt.Sprint(i)
		next := p.Addr().Next().Next() // the first is the gateway's
		if last, err := store.LastReservedIP(rangeID); err == nil {
			if a, ok := netip.AddrFromSlice(last); ok {
				next = a.Unmap().Next()
			}
		}
		taken, err := store.Reserve(id, ifName, net.IP(next.AsSlice()), rangeID)
		if err != nil || !taken {
			return nil, errors.Join(fmt.Errorf("address %s cannot be reserved", next), err)
		}
		addrs = append(addrs, netip.PrefixFrom(next, p.Bits()))
	}
	return addrs, nil
}

// release frees addresses. Deleting a file needs no lock: nobody takes the name
// while the file exists.
func (h *Host) release(addrs []netip.Prefix) error {
	var errs []error
	for _, a := range addrs {
		errs = append(errs, os.Remove(filepath.Join(h.dataDir, h.network, a.Addr().String())))
	}
	return errors.Join(errs...)
}
