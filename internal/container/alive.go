package container

import (
	"fmt"

	"github.com/embedcni/cni/internal/orphan"
	"github.com/embedcni/cni/internal/record"
)

// Life returns the name, for the record, of the byte that this process keeps
// locked while it lives. It is empty if no byte can be locked; then the
// process's number decides.
func (s *Store) Life() string {
	name, err := s.Locks.Life()
	if err != nil {
		s.Logger.Info("whether this process lives is only known by its number", "error", err)
	}
	return name
}

// RuntimeAlive reports whether the process that last worked on the container
// still runs, or may: a process counts as alive unless it is known to be dead.
//
// The locked byte decides. A number is less reliable: another process may have
// it after a reboot, a process that executes a new program keeps it, and in
// another PID namespace it belongs to another process. It is for records of
// earlier versions, and for hosts where no byte can be locked.
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
		return true, nil // a damaged record has no more to go by
	}
	alive, err := orphan.AliveIn(rec.PIDNS, rec.Runtime)
	if err != nil {
		return true, fmt.Errorf("the runtime of container %s: %w", rec.ContainerID, err)
	}
	return alive, nil
}
