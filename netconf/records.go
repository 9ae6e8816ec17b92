package netconf

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/store/record"
)

// attachedNetworks returns the networks of the containers on record, which may be attached to
// networks that are configured no more.
func attachedNetworks(records *record.Store) (all []netip.Prefix, err error) {
	var errs []error
	scanned := map[string]bool{} // containers of one network have one configuration
	err = records.Each(func(f record.Found) bool {
		if f.Err != nil {
			data, err := plainfile.Read(records.Path(f.File))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
			all = append(all, scanPrefixes(data)...)
		}
		for _, a := range f.Record.Attachments {
			if config := string(a.Config); !scanned[config] {
				scanned[config] = true
				all = append(all, scanPrefixes(a.Config)...)
			}
			all = append(all, scanPrefixes(a.Result)...)
		}
		return true
	})
	if err := joined.Errors(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("networks of attached containers: %w", err)
	}
	return mergePrefixes(all), nil
}
