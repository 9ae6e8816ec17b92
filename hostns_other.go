//go:build !linux

package cni

import (
	"context"
	"fmt"

	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// hostNetNS stands for where plugins run. Off Linux that is where the runtime
// runs, and a container's path means what its platform wants it to mean.
type hostNetNS struct{}

func (s *snapshot) openHost() (*hostNetNS, error) { return openHostNetNS(s.hostNetNS) }

func openHostNetNS(path string) (*hostNetNS, error) {
	if path != "" {
		return nil, fmt.Errorf("WithHostNetNS: %w", ErrNotSupported)
	}
	return &hostNetNS{}, nil
}

func (h *hostNetNS) dup() (*hostNetNS, error)                 { return h, nil }
func (*hostNetNS) close() error                               { return nil }
func (*hostNetNS) netNS() invoke.NetNS                        { return nil }
func (*hostNetNS) String() string                             { return "" }
func (*hostNetNS) validate(path, verb string) (string, error) { return path, nil }

// open opens nothing: what a path means is the platform's business.
func (*hostNetNS) open(path, verb string) (*netns.Handle, string, error) { return nil, path, nil }

// prepare has nothing to open.
func (*operation) prepare() {}

// hasNoDevice cannot look into a container either.
func (*attachment) hasNoDevice() bool { return false }

// avoidOthers cannot tell namespaces apart.
func (*operation) avoidOthers()  {}
func (*attachment) avoidOthers() {}

// share has no sockets to share.
func (*operation) share(ctx context.Context) context.Context { return ctx }

// follow has nothing to follow.
func (*operation) follow() error { return nil }

// lives cannot look into a container off Linux. What is recorded counts.
func (a *attachment) lives([]*attachment) (bool, error) { return true, nil }

// gone cannot look either: what is of this boot counts as there.
func (op *operation) gone() bool { return op.rebooted }

// taken cannot look into a container either.
func (a *attachment) taken() (bool, error) { return false, nil }

// openRecorded opens nothing, and returns the path as it was recorded.
func (*hostNetNS) openRecorded(rec *record.Record, _ string) (*netns.Handle, string, reached, error) {
	return nil, rec.NetNS.Path, byPath, nil
}

// inhabited cannot look into a container off Linux.
func (op *operation) inhabited() bool { return false }

func (*hostNetNS) handle() *netns.Handle { return nil }
