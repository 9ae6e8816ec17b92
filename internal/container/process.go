package container

import (
	"fmt"
	"log/slog"

	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/proc"
	"github.com/embedcni/cni/internal/record"
)

// Process identifies this process and this boot of the machine for records, and
// recognises the processes that records name.
type Process struct {
	Boot  string // of the machine; empty if it could not be read yet
	PIDNS uint64 // the PID namespace of the numbers in self; 0 if unknown

	self   string // empty if it could not be read yet
	locks  *lock.Space
	logger *slog.Logger
}

func newProcess(locks *lock.Space, logger *slog.Logger) *Process {
	p := &Process{PIDNS: proc.PIDNS(), locks: locks, logger: logger}
	p.self, _ = proc.Self() // those who need them return the error
	p.Boot, _ = proc.BootID()
	return p
}

// BootID returns the boot ID of the machine.
func (p *Process) BootID() (string, error) {
	if p.Boot != "" {
		return p.Boot, nil
	}
	return proc.BootID()
}

// Identity returns the identity of this process, for the record.
func (p *Process) Identity() (string, error) {
	if p.self != "" {
		return p.self, nil
	}
	self, err := proc.Self()
	if err != nil {
		return "", fmt.Errorf("identity of this process: %w", err)
	}
	return self, nil
}

// Life returns the name, for the record, of the byte that this process keeps
// locked while it lives. It is empty if no byte can be locked; then the
// process's number decides.
func (p *Process) Life() string {
	name, err := p.locks.Life()
	if err != nil {
		p.logger.Info("whether this process lives is only known by its number", "error", err)
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
func (p *Process) RuntimeAlive(rec *record.Record) (bool, error) {
	now, err := p.BootID()
	if err != nil {
		return true, err
	}
	if rec.Boot != "" && rec.Boot != now {
		return false, nil
	}
	if rec.Life != "" {
		alive, known, err := p.locks.Lives(rec.Life)
		if known || err != nil {
			return alive || err != nil, err
		}
	}
	if rec.Runtime == "" {
		return true, nil // a damaged record has no more to go by
	}
	alive, err := proc.AliveIn(rec.PIDNS, rec.Runtime)
	if err != nil {
		return true, fmt.Errorf("the runtime of container %s: %w", rec.ContainerID, err)
	}
	return alive, nil
}
