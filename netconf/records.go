package netconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/store/record"
)

// attachedNetworks returns the networks of the containers on record, which may be attached to
// networks that are configured no more, and those of the addresses that they have on the
// networks of one name.
func attachedNetworks(records *record.Store, name string) (all, its []netip.Prefix, err error) {
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
			var result struct {
				IPs []struct{ Address netip.Prefix }
			}
			if a.Network != name || json.Unmarshal(a.Result, &result) != nil {
				continue // its ADD has not answered
			}
			for _, ip := range result.IPs {
				its = append(its, ip.Address)
			}
		}
		return true
	})
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, nil, fmt.Errorf("networks of attached containers: %w", err)
	}
	return mergePrefixes(all), mergePrefixes(its), nil
}
