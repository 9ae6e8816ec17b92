package leftovers

import (
	"context"
	"log/slog"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/store/record"
)

// Runtime is the part of the runtime that a Search uses. It has the newest
// configuration.
type Runtime struct {
	Owner, Boot string // whose containers, and which boot of the machine this is
	Records     *record.Store
	Logger      *slog.Logger
	Containers
}

// Containers are the containers on record, as one Runtime sees them. Its type must be
// comparable: a Search notes each once.
type Containers interface {
	// Keeps reports whether this process keeps the namespace of a container alive.
	Keeps(record.ID) bool

	// Tend does the next step for the container of a record file if the container is
	// abandoned. If that fails, a later look tries again. With a *NoEndError the
	// container stays as it is. Plugins run in the recorded host namespace, or else in
	// host, which Tend takes over.
	Tend(file string, host *container.Host) (Step, error)
}

// Step is the result of Tend.
type Step struct {
	Ends  []int // the interfaces on the host that vanish when the namespace ends
	Again bool  // call Tend again when they have vanished
	Ended bool  // the container is on record no more
}

// Tend does the next step for one container, as [Containers.Tend] does, but may wait for
// the container. It takes over host.
type Tend func(ctx context.Context, host *container.Host) (Step, error)
