//go:build !linux

package container

import "github.com/embedcni/cni/internal/record"

// Off Linux a path is opaque: nothing is opened, examined or kept alive.

// Pins are empty off Linux.
type Pins struct{}

// NewPins returns empty Pins.
func NewPins(string) *Pins { return &Pins{} }

// Where returns no path.
func (*Pins) Where(record.ID) (string, error) { return "", nil }

// At returns no path.
func (*Pins) At(string) string { return "" }

// Discard does nothing.
func (*Pins) Discard(string) error { return nil }

// WasMounted is false.
func (*Pins) WasMounted(record.ID) bool { return false }

// Follow does nothing off Linux.
func (*Container) Follow() error { return nil }

// SameNetNS accepts every path.
func (*Container) SameNetNS(string) error { return nil }

// Pin does nothing.
func (*Container) Pin() error { return nil }

// Unpin does nothing.
func (*Container) Unpin() error { return nil }

// PinnedHere returns true.
func (*Container) PinnedHere() bool { return true }

// Gone reports whether the machine was rebooted. Everything of this boot counts
// as existing.
func (c *Container) Gone() bool { return c.Rebooted }

func (c *Container) identify() (record.NetNS, error) { return record.NetNS{Path: c.Path}, nil }

// reach does nothing.
func (c *Container) reach() error {
	c.Path, c.Reached = c.Record.NetNS.Path, ByPath
	return nil
}

func (*Container) settleLetGo() error { return nil }

func (*Container) isInhabited() bool { return false }

func removeOurs(record.NetNS) error { return nil }
