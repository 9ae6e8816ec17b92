// Package container opens containers: it locks a container, reads its record,
// and finds the network namespaces of the container and of its plugins.
package container

import (
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/portindex"
	"github.com/embedcni/cni/internal/record"
)

var (
	// ErrBusy: another call for the container is under way.
	ErrBusy = errors.New("another call for the container is under way")
	// ErrNotAttached: the container, or an interface of it, is not attached.
	ErrNotAttached = errors.New("not attached")
	// ErrHostNetNS: the namespace in which the container's plugins ran cannot be
	// found.
	ErrHostNetNS = errors.New("host network namespace out of reach")
)

// Store holds the containers of a state directory: their records, locks, pins, and
// the namespaces that pools of earlier versions have made.
type Store struct {
	*Process
	Records   *record.Store
	Locks     *Locks
	Pins      *Pins
	Pools     Pools
	Ports     *portindex.Index // of the host, that records claim
	Hosts     *hostns.Finder
	HostNetNS string // the configured namespace to run plugins in; empty: the caller's
	Logger    *slog.Logger
}

// Open returns the containers that have their records in a directory, and exclude each
// other by a lock file. It shares with previous, if that is not nil, the found host
// namespaces, and records, locks and pins unless they are elsewhere.
func Open(lockFile, recordDir, hostNetNS string, logger *slog.Logger, previous *Store) *Store {
	s := &Store{Hosts: hostns.NewFinder(), HostNetNS: hostNetNS, Logger: logger}
	if previous != nil {
		s.Hosts = previous.Hosts
	}
	var space *lock.Space
	if previous != nil && previous.Locks.Path() == lockFile && previous.Records.Dir() == recordDir {
		s.Records, s.Pins, space, s.Ports = previous.Records, previous.Pins, previous.Locks.Space, previous.Ports
	} else {
		s.Records, s.Pins, space = record.Open(recordDir), NewPins(recordDir, lockFile), lock.Open(lockFile)
		s.Ports = portindex.Open(s.Records, logger)
	}
	s.Process = newProcess(space, logger)
	s.Locks = &Locks{Space: space, records: s.Records, process: s.Process, logger: logger}
	s.Pools = Pools{filepath.Join(recordDir, "pool"), s.Process}
	return s
}

// Container is one container during a call. Calls for a container exclude each other
// by its lock.
type Container struct {
	Recorded
	Place
	guard
	fresh *fresh // the namespace that this call makes; nil if it makes none
	keeps bool   // the recorded namespace outlives the attachments; see KeepNetNS
	in    *Store
}

// New returns a container that is not locked and whose record is not read. It takes
// over host.
func (s *Store) New(id record.ID, host *hostns.NetNS) *Container {
	return &Container{
		in: s, guard: guard{locks: s.Locks, id: id},
		Recorded: Recorded{ID: id, records: s.Records}, Place: Place{Host: host},
	}
}

// Unlock closes the container's namespace, waits until the record is on the disk, and
// lets other calls work on the container.
func (c *Container) Unlock() {
	c.Leave()
	c.fresh.close()
	c.coming.Discard()
	_ = c.pending.Wait() // those who relied on it have waited, and returned the error
	c.unlock()
}

// Close releases all that the container holds.
func (c *Container) Close() {
	c.Unlock()
	c.logClose(c.leaveHost())
	c.logClose(c.Host.Close())
}

// Leave closes the container's namespace if it is open.
func (c *Container) Leave() { c.logClose(c.leave()) }

func (c *Container) logClose(err error) {
	if err != nil {
		c.in.Logger.Error("close network namespace", "container", c.ID, "error", err)
	}
}

// OpenPath opens the namespace to which a path leads now, for a verb.
func (c *Container) OpenPath(path, verb string) (err error) {
	c.Leave()
	c.NetNS, c.Path, err = c.Host.OpenContainer(path, verb)
	return err
}

// Depart has the container be where its record says, until Return. It returns the
// place where it was.
func (c *Container) Depart() Place {
	at := c.Place
	c.Place = Place{Host: at.Host}
	return at
}

// Return undoes Depart.
func (c *Container) Return(to Place) {
	c.Leave()
	c.logClose(c.leaveHost())
	c.Place, c.Damaged = to, false
}
