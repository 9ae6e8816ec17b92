//go:build !linux

package container

import (
	"context"
	"time"

	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// Off Linux a path is opaque: nothing is opened, examined or kept alive.

// Pins are empty off Linux.
type Pins struct{}

// NewPins returns empty Pins.
func NewPins(_, _ string) *Pins { return &Pins{} }

// Where returns no path.
func (*Pins) Where(record.ID) (string, error) { return "", nil }

// At returns no path.
func (*Pins) At(string) string { return "" }

// Discard does nothing.
func (*Pins) Discard(string) error { return nil }

// Holds returns false.
func (*Pins) Holds(*netns.Handle) bool { return false }

// Keeps returns false.
func (*Pins) Keeps(record.ID) bool { return false }

// WasMounted is false.
func (*Pins) WasMounted(record.ID) bool { return false }

func (*Pins) openPath(record.ID) string { return "" }

// Follow does nothing off Linux.
func (*Container) Follow() error { return nil }

// SameNetNS accepts every path.
func (*Recorded) SameNetNS(string) error { return nil }

// Pin does nothing.
func (*Container) Pin() error { return nil }

// Unpin does nothing.
func (*Recorded) Unpin() error { return nil }

// Lives returns true: off Linux the record decides.
func (*Place) Lives(_, _ string) (bool, error) { return true, nil }

// HasLink returns false.
func (*Place) HasLink(string) (bool, error) { return false, nil }

// HasNoDevice returns false.
func (*Place) HasNoDevice(_, _ string) bool { return false }

// Lo returns false.
func (*Place) Lo(string, bool) (bool, error) { return false, nil }

// Gone reports whether the machine was rebooted. Everything of this boot counts
// as existing.
func (p *Place) Gone() bool { return p.Rebooted }

func (p *Place) reach(string) error {
	p.Path, p.Reached = p.of.Record.NetNS.Path, ByPath
	return nil
}

// Settle does nothing.
func (*Place) Settle() error { return nil }

// AwaitEnd does nothing: no container lives elsewhere.
func (*Place) AwaitEnd(context.Context, time.Time) error { return nil }

// Remains is true: off Linux an attachment counts as existing.
func Remains(*Host, string, record.Attachment) (lives, ended bool, err error) {
	return true, false, nil
}

func (*Place) isRecordedHere() bool { return true }

func (*Place) isInhabited() bool { return false }

func (c *Container) identify() (record.NetNS, error) { return record.NetNS{Path: c.Place.Path}, nil }

func removeOurs(record.NetNS, bool) error { return nil }

type fresh struct{}

func (*fresh) close() {}

// MakeNetNS fails.
func (*Container) MakeNetNS(string) error { return netns.ErrNotSupported }

// MakesNetNS returns false.
func (*Container) MakesNetNS() bool { return false }

// RemakeNetNS does nothing.
func (*Container) RemakeNetNS() error { return nil }

// OutlivesPowerCut returns false.
func (*Container) OutlivesPowerCut() bool { return false }

// strayNamespaces returns none: off Linux nothing is kept alive.
func (*Store) strayNamespaces() (paths, dirs []string, err error) { return nil, nil, nil }

// IsLocked returns false: nothing is compared that a call could be changing.
func (*Locks) IsLocked(record.ID) (bool, error) { return false, nil }

// Other finds none: off Linux no namespace is open.
func (*Container) Other(*netns.Handle, string, bool) (string, error) { return "", nil }

// Untouched is true.
func Untouched(*Host, *netns.Handle) bool { return true }
