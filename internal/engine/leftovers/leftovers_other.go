//go:build !linux

package leftovers

import (
	"context"
	"io/fs"
	"log/slog"
	"time"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/outcome"
)

// Interfaces and flows of other systems are their plugins' business, and no namespace is
// kept alive there.

func (*Target) inKernel() []finder                    { return nil }
func (*Target) tuned(context.Context) ([]Item, error) { return nil, nil }
func (*Target) flushFlows() (uint, error)             { return 0, nil }
func (*Target) NotItsShaper() (bool, error)           { return false, nil }
func (*Target) Settled() (bool, error)                { return false, netns.ErrNotSupported }
func (*Device) Restore(*netns.Handle, string, bool) (bool, error) {
	return false, netns.ErrNotSupported
}
func Identify(_ *links.Conns, _, _ *netns.Handle, _ string, _ bool) (*Device, error) {
	return nil, netns.ErrNotSupported
}

// Search finds nothing.
type Search struct{}

func SearchOf(string) *Search                                  { return &Search{} }
func (*Search) Request(Runtime, *container.Host, bool)         {}
func End(context.Context, *container.Host, Tend) (bool, error) { return false, nil }
func IsAbandoned(*record.Record, string, string) bool          { return false }
func LetGo(*container.Container, []*Attachment, *slog.Logger) ([]int, error) {
	return nil, outcome.ErrNotSupported
}

// made reports no file as host-local's, which is a plugin of Linux.
func made(info fs.FileInfo) (written, changed time.Time, private bool) {
	return info.ModTime(), info.ModTime(), false
}
