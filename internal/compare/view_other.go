//go:build !linux

package compare

import (
	"context"

	"github.com/embedcni/cni/plugin"
)

// View is empty off Linux, where nothing is compared.
type View struct{}

// Comparer is a built-in plugin that can compare its part of an attachment. There is
// none off Linux.
type Comparer interface {
	Compare(ctx context.Context, r *plugin.Request, v *View) ([]Difference, error)
}
