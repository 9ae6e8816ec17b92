package container

import (
	"fmt"

	"github.com/embedcni/cni/internal/orphan"
	"github.com/embedcni/cni/internal/record"
)

// Life names the byte that this process has locked for as long as it lives, for
// the record. It is empty where none can be locked, so that others go by the
// number.
func (s *Store) Life() string {
	name, err := s.Locks.Life()
	if err != nil {
		s.Logger.Info("whether this process lives is only known by its number", "error", err)
	}
	return name
}

// RuntimeAlive reports whether the process that last worked on the container
// still runs, or may: one that is not known to be dead counts as alive.
//
// Its byte says so. A number says less: another process may have it after a
// reboot, a process that executes itself anew keeps it, and in another PID
// namespace it is somebody else's. It is for records of earlier versions, and
// for where no byte can be locked.
func (s *Store) RuntimeAlive(rec *record.Record) (bool, error) {
	now, err := s.BootID()
	if err != nil {
		return true, err
	}
	if rec.Boot != "" && rec.Boot != now {
		return false, nil
	}
	if rec.Life != "" {
		alive, known, err := s.Locks.Lives(rec.Life)
		if known || err != nil {
			return alive || err != nil, err
		}
	}
	if rec.Runtime == "" {
		return true, nil // a damaged record says no more
	}
	alive, err := orphan.AliveIn(rec.PIDNS, rec.Runtime)
	if err != nil {
		return true, fmt.Errorf("the runtime of container %s: %w", rec.ContainerID, err)
	}
	return alive, nil
}
