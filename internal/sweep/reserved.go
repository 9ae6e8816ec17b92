package sweep

import (
	"errors"
	"fmt"
	"net/netip"
)

// Reserved returns those of the target's addresses that host-local has reserved
// for another attachment in one of the target's directories.
func Reserved(t Target) ([]netip.Addr, error) {
	var reserved []netip.Addr
	var errs []error
	for _, dir := range t.IPAMDirs {
		for _, addr := range t.Addresses {
			r, ok, err := readReservation(dir, addr.String())
			if err != nil {
				errs = append(errs, fmt.Errorf("for whom is address %s reserved: %w", addr, err))
			}
			if ok && r.content != "" && !holds(r.content, t.ContainerID, t.IfName) {
				reserved = append(reserved, addr)
			}
		}
	}
	return reserved, errors.Join(errs...)
}
