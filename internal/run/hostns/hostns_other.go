//go:build !linux

package hostns

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"

	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/store/ports"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// NetNS stands for the place where plugins run. Off Linux that is where the runtime
// runs, and a container's path is opaque.
type NetNS struct {
	*netns.Handle
	Conns links.Conns
}

// Finder has nothing to find off Linux.
type Finder struct{}

// NewFinder returns an empty Finder.
func NewFinder() *Finder { return &Finder{} }

// Open refuses a path.
func (*Finder) Open(path string) (*NetNS, error) {
	if path != "" {
		return nil, fmt.Errorf("WithHostNetNS: %w", ErrNotSupported)
	}
	return &NetNS{}, nil
}

// Dup returns h: there is nothing to open.
func (h *NetNS) Dup() (*NetNS, error) { return h, nil }

// Close does nothing.
func (*NetNS) Close() error { return nil }

// String returns no identity.
func (*NetNS) String() string { return "" }

// EndOf finds none.
func (*NetNS) EndOf(*netns.Handle, string) (int, error) { return 0, nil }

// HasAddress returns true: nobody knows.
func (*NetNS) HasAddress(netip.Addr) (bool, error) { return true, nil }

// Bound returns nothing: nobody knows.
func (*NetNS) Bound([]ports.Claim, *slog.Logger) ([]ports.Claim, error) { return nil, nil }

// BoundByOthers returns nothing: nobody knows.
func (*NetNS) BoundByOthers([]ports.Claim, *slog.Logger) ([]ports.Claim, error) { return nil, nil }

// LocalPorts returns ErrNotSupported.
func (*NetNS) LocalPorts() (ports.Local, error) { return ports.Local{}, ErrNotSupported }

// Reachable returns nil.
func (*NetNS) Reachable() error { return nil }

// Validate accepts every path.
func (*NetNS) Validate(path, _ string) (string, error) { return path, nil }

// OpenContainer opens nothing, and returns the path.
func (*NetNS) OpenContainer(path, _ string) (*netns.Handle, string, error) { return nil, path, nil }

// PathTo returns no path.
func (*Finder) PathTo(*NetNS, string) string { return "" }

// Find finds nothing.
func (*Finder) Find(*record.Record, string) (*NetNS, bool, error) { return nil, false, nil }

// LeadsNowhere reports whether an error says that nothing is at a path.
func LeadsNowhere(err error) bool { return errors.Is(err, fs.ErrNotExist) }
