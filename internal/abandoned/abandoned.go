// Package abandoned searches in the background for containers that nobody removes:
// containers of one owner whose recorded path certainly no longer leads to their
// namespace. A [Search] reads the records and paces the work; the runtime removes
// the containers that it finds. The Runtimes of a process that are alike have one
// Search together. All calls may be concurrent.
package abandoned

import (
	"log/slog"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/record"
)

// Runtime is the part of the runtime that a Search uses. It has the newest
// configuration.
type Runtime struct {
	Owner, Boot string // whose containers, and which boot of the machine this is
	Records     *record.Store
	Logger      *slog.Logger
	Containers
}

// Alike identifies Runtimes of a process that search together. They would remove the same
// containers with the same plugins.
type Alike struct {
	Dir, Owner, Boot string // of the records
	Host             string // the path of the host namespace, if it was given
	Plugins, Env     string // which plugins run
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
	Tend(file string, host *hostns.NetNS) (Step, error)
}

// Step is the result of Tend.
type Step struct {
	Ends  []int // the interfaces on the host that vanish when the namespace ends
	Again bool  // call Tend again when they have vanished
}
