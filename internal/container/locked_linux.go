package container

import (
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/record"
)

// IsLocked reports whether a call for the container is in progress, in any process.
func (l *Locks) IsLocked(id record.ID) (bool, error) {
	state, err := l.State(lock.Byte(key(id)))
	return state != lock.Free, err
}
