//go:build !linux

package abandoned

import (
	"context"
	"log/slog"

	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/record"
)

// Search finds nothing. Off Linux no namespace is kept alive.
type Search struct{}

// Open returns a Search.
func Open(Alike) *Search { return &Search{} }

// New returns a Search.
func New() *Search { return &Search{} }

// Request does nothing.
func (*Search) Request(Runtime, *hostns.NetNS, bool) {}

// Tend is never called off Linux.
type Tend func(context.Context, *hostns.NetNS) (Step, bool, error)

// End returns false.
func End(context.Context, *hostns.NetNS, Tend) (bool, error) { return false, nil }

// Is returns false.
func Is(*record.Record, string, string) bool { return false }

// LetGo fails with [hostns.ErrNotSupported].
func LetGo(*container.Container, []*footprint.Attachment, *slog.Logger) ([]int, error) {
	return nil, hostns.ErrNotSupported
}
