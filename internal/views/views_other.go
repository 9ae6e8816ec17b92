//go:build !linux

package views

import (
	"context"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/netns"
)

// Looks open empty views off Linux.
type Looks struct{}

// Dumps returns Looks that read each host once.
func Dumps() *Looks { return &Looks{} }

// View is empty off Linux.
type View struct{ compare.View }

// Open returns an empty view.
func (*Looks) Open(context.Context, *hostns.NetNS, *netns.Handle, netfilter.Options) (*View, error) {
	return &View{}, nil
}

// Compared returns the empty view.
func (v *View) Compared() *compare.View { return &v.View }

// HasLink returns true: off Linux the record decides.
func (*View) HasLink(string) (bool, error) { return true, nil }

// Close does nothing.
func (*View) Close() error { return nil }
