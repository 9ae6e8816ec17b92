package sweep

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
)

// Reserved returns those of the target's addresses that host-local has reserved
// for another attachment in one of the target's directories.
func Reserved(t Target) ([]netip.Addr, error) {
	var reserved []netip.Addr
	var errs []error
	for _, dir := range t.IPAMDirs {
		for _, addr := range t.Addresses {
			data, err := os.ReadFile(filepath.Join(dir, addr.String()))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("for whom is address %s reserved: %w", addr, err))
			}
			if len(data) > 0 && !holds(string(data), t.ContainerID, t.IfName) {
				reserved = append(reserved, addr)
			}
		}
	}
	return reserved, errors.Join(errs...)
}
