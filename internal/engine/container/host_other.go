//go:build !linux

package container

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
	"github.com/embedcni/cni/outcome"
)

// Host stands for the place where plugins run. Off Linux that is where the runtime
// runs, and a container's path is opaque.
type Host struct {
	*netns.Handle
	Conns links.Conns
}

// Finder has nothing to find off Linux.
type Finder struct{}

// NewFinder returns an empty Finder.
func NewFinder() *Finder { return &Finder{} }

// Open refuses a path.
func (*Finder) Open(path string) (*Host, error) {
	if path != "" {
		return nil, fmt.Errorf("WithHostNetNS: %w", outcome.ErrNotSupported)
	}
	return &Host{}, nil
}

// Dup returns h: there is nothing to open.
func (h *Host) Dup() (*Host, error) { return h, nil }

// Close does nothing.
func (*Host) Close() error { return nil }

// String returns no identity.
func (*Host) String() string { return "" }

// EndOf finds none.
func (*Host) EndOf(*netns.Handle, string) (int, error) { return 0, nil }

// HasAddress returns true: nobody knows.
func (*Host) HasAddress(netip.Addr) (bool, error) { return true, nil }

// Bound returns nothing: nobody knows.
func (*Host) Bound([]ports.Claim, *slog.Logger) ([]ports.Claim, error) { return nil, nil }

// BoundByOthers returns nothing: nobody knows.
func (*Host) BoundByOthers([]ports.Claim, *slog.Logger) ([]ports.Claim, error) { return nil, nil }

// LocalPorts returns ErrNotSupported.
func (*Host) LocalPorts() (ports.Local, error) { return ports.Local{}, outcome.ErrNotSupported }

// Reachable returns nil.
func (*Host) Reachable() error { return nil }

// Validate accepts every path.
func (*Host) Validate(path, _ string) (string, error) { return path, nil }

// OpenContainer opens nothing, and returns the path.
func (*Host) OpenContainer(path, _ string) (*netns.Handle, string, error) { return nil, path, nil }

// PathTo returns no path.
func (*Finder) PathTo(*Host, string) string { return "" }

// Find finds nothing.
func (*Finder) Find(*record.Record, string) (*Host, bool, error) { return nil, false, nil }

// LeadsNowhere reports whether an error says that nothing is at a path.
func LeadsNowhere(err error) bool { return errors.Is(err, fs.ErrNotExist) }
