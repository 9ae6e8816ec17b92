package netconf

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// reservations has the reservations of a host, a file for each network. Its callers hold a lock.
type reservations struct{ Dir string }

// reservation is the subnets of a network.
type reservation struct {
	ConfDir string // where the configuration is
	Network string
	// Subnets are in the order in which the network asks for those of a family.
	V4, V6 []netip.Prefix `json:",omitempty"`
}

// Of returns the subnets of the family that a range asks for.
func (r *reservation) Of(w wanting) *[]netip.Prefix { return r.family(w.Pools[0]) }

func (r *reservation) family(p netip.Prefix) *[]netip.Prefix {
	if p.Addr().Is4() {
		return &r.V4
	}
	return &r.V6
}

func (s reservations) path(confDir, network string) string {
	sum := sha256.Sum256([]byte(confDir + "\x00" + network))
	return filepath.Join(s.Dir, hex.EncodeToString(sum[:16])+".json")
}

// Load returns the reservation of a network, empty if it has none.
func (s reservations) Load(confDir, network string) (*reservation, error) {
	path := s.path(confDir, network)
	r := &reservation{}
	data, err := plainfile.Read(path)
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &reservation{ConfDir: confDir, Network: network}, nil
	case err != nil:
		return nil, fmt.Errorf("reservation of subnets of network %q, %s: %w", network, path, err)
	case r.ConfDir != confDir || r.Network != network:
		return nil, fmt.Errorf("reservation of subnets of network %q, %s: it is another network's", network, path)
	}
	return r, nil
}

// Save writes a reservation. When it returns nil, it survives a power cut.
func (s reservations) Save(r *reservation) error {
	err := os.MkdirAll(s.Dir, 0o700)
	if err != nil {
		return err
	}
	data, err := json.Marshal(r)
	if err == nil {
		err = plainfile.Replace(s.path(r.ConfDir, r.Network), append(data, '\n'), 0o600)
	}
	if err == nil {
		err = plainfile.SyncDir(s.Dir)
	}
	if err != nil {
		return fmt.Errorf("reserve subnets for network %q: %w", r.Network, err)
	}
	return nil
}

// Delete ends a reservation, if there is one.
func (s reservations) Delete(confDir, network string) error {
	if err := os.Remove(s.path(confDir, network)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release the subnets of network %q: %w", network, err)
	}
	return nil
}

// Others returns the subnets of all other networks. From a file that is damaged it
// returns whatever looks like one.
func (s reservations) Others(confDir, network string) ([]netip.Prefix, error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	own := filepath.Base(s.path(confDir, network))
	var all []netip.Prefix
	errs := []error{err}
	for _, e := range entries {
		if e.Name() == own || strings.HasPrefix(e.Name(), ".") { // hidden: a writer was killed before the rename
			continue
		}
		data, err := plainfile.Read(filepath.Join(s.Dir, e.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		all = append(all, scanPrefixes(data)...)
	}
	if err := joined.Errors(errs...); err != nil {
		return nil, fmt.Errorf("reservations of subnets: %w", err)
	}
	return all, nil
}
