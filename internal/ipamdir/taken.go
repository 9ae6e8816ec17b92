package ipamdir

import (
	"errors"
	"fmt"
	"net/netip"
)

// Taken returns those of the attachment's addresses that are reserved for
// another attachment.
func Taken(s Search) (taken []netip.Addr, err error) {
	var errs []error
	for _, dir := range s.Dirs {
		for _, addr := range s.Addresses {
			r, ok, err := readReservation(dir, addr.String())
			if err != nil {
				errs = append(errs, fmt.Errorf("find the owner of the reserved address %s: %w", addr, err))
			}
			if ok && r.content != "" && !holds(r.content, s.ContainerID, s.IfName) {
				taken = append(taken, addr)
			}
		}
	}
	return taken, errors.Join(errs...)
}
