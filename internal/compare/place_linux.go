package compare

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
)

// Place is an interface, or a whole namespace, that has objects of an attachment: its
// addresses and routes, the modes of a port.
type Place struct {
	NS     *netns.Handle
	Inside bool
	Shared bool   // by all attachments; see [Difference.Shared]
	Whose  string // why nothing there is made again; empty if it is the ADD's
	Name   string // in errors: `interface "eth0" in the container`; may be empty
	// Find returns the interface as it is now, and Same reports whether that is the one
	// that was compared. They are nil for a namespace.
	Find func(*links.Conn) (links.Link, error)
	Same func(now links.Link) bool
}

// Lacks completes the difference of an object that is not there, which make makes again.
// It is nil if nothing is to be made.
func (p *Place) Lacks(d Difference, make func(context.Context, *links.Conn, links.Link) error) Difference {
	d.Inside = p.Inside
	switch {
	case d.Why != "":
	case p.Whose != "":
		d.Why = p.Whose
	case make == nil:
		d.Why = "it differs"
	default:
		d.Shared = p.Shared
		d.Fix = func(ctx context.Context) error { return p.Do(ctx, make) }
	}
	return d
}

// Do calls do for the place, unless another interface has taken it by now.
func (p *Place) Do(ctx context.Context, do func(context.Context, *links.Conn, links.Link) error) error {
	err := caller.On(ctx, p.NS, func(conn *links.Conn) (err error) {
		var now links.Link
		if p.Find != nil {
			if now, err = p.Find(conn); err == nil && !p.Same(now) {
				err = errors.New("it has changed since the comparison")
			}
			if err != nil {
				return err
			}
		}
		return do(ctx, conn, now)
	})
	if err == nil || p.Name == "" {
		return err
	}
	return fmt.Errorf("%s: %w", p.Name, err)
}
