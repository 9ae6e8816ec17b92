// Package container opens containers: it locks a container, reads its record,
// and finds the network namespaces of the container and of its plugins: by path,
// mount and descriptor, and by the threads in them.
package container

import (
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/embedcni/cni/internal/kernel/proc"
	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/outcome"
)

// Store holds the containers of a state directory: their records, locks, pins, and
// the namespaces that pools of earlier versions have made.
type Store struct {
	*Process
	Records   *record.Store
	Locks     *Locks
	Pins      *Pins
	Pools     Pools
	Hosts     *Finder
	HostNetNS string // the configured namespace to run plugins in; empty: the caller's
	Logger    *slog.Logger
}

// Open returns the containers that have their records in a directory, and exclude each
// other by a lock file. It shares with previous, if that is not nil, the found host
// namespaces, and records, locks and pins unless they are elsewhere.
func Open(lockFile, recordDir, hostNetNS string, logger *slog.Logger, previous *Store) *Store {
	s := &Store{Hosts: NewFinder(), HostNetNS: hostNetNS, Logger: logger}
	if previous != nil {
		s.Hosts = previous.Hosts
	}
	var space *lock.Space
	if previous != nil && previous.Locks.Path() == lockFile && previous.Records.Dir() == recordDir {
		s.Records, s.Pins, space = previous.Records, previous.Pins, previous.Locks.Space
	} else {
		s.Records, s.Pins, space = record.Open(recordDir), NewPins(recordDir, lockFile), lock.Open(lockFile)
	}
	s.Process = newProcess(space, logger)
	s.Locks = &Locks{Space: space, records: s.Records, process: s.Process, logger: logger}
	s.Pools = Pools{filepath.Join(recordDir, "pool"), s.Process}
	return s
}

// Container is one container during a call. Calls for a container exclude each other
// by its lock.
type Container struct {
	Recorded Recorded
	Place    Place
	Guard    Guard
	fresh    *fresh // the namespace that this call makes; nil if it makes none
	in       *Store
}

// New returns a container that is not locked and whose record is not read. It takes
// over host.
func (s *Store) New(id record.ID, host *Host) *Container {
	c := &Container{in: s, Guard: Guard{locks: s.Locks, id: id}, Recorded: Recorded{ID: id, in: s}}
	c.Place = Place{Host: host, of: &c.Recorded}
	return c
}

// Unlock closes the container's namespace, waits until the record is on the disk, and
// lets other calls work on the container.
func (c *Container) Unlock() {
	c.Leave()
	c.fresh.close()
	c.Recorded.coming.Discard()
	_ = c.Recorded.pending.Wait() // those who relied on it have waited, and returned the error
	c.Guard.unlock()
}

// Close releases all that the container holds.
func (c *Container) Close() {
	c.Unlock()
	c.logClose(c.Place.leaveHost())
	c.logClose(c.Place.Host.Close())
}

// Leave closes the container's namespace if it is open.
func (c *Container) Leave() { c.logClose(c.Place.leave()) }

func (c *Container) logClose(err error) {
	if err != nil {
		c.in.Logger.Error("close network namespace", "container", c.Recorded.ID, "error", err)
	}
}

// OpenPath opens the namespace to which a path leads now, for a verb.
func (c *Container) OpenPath(path, verb string) (err error) {
	c.Leave()
	c.Place.NetNS, c.Place.Path, err = c.Place.Host.OpenContainer(path, verb)
	return err
}

// Depart has the container be where its record says, until Return. It returns the
// place where it was.
func (c *Container) Depart() Place {
	at := c.Place
	c.Place = Place{Host: at.Host, of: at.of}
	return at
}

// Return undoes Depart.
func (c *Container) Return(to Place) {
	c.Leave()
	c.logClose(c.Place.leaveHost())
	c.Place, c.Recorded.Damaged = to, false
}

// Place is where a container is attached, and how that was found.
type Place struct {
	Host  *Host         // in which its plugins run
	NetNS *netns.Handle // its own, open until Leave; nil if no path leads there
	Path  string        // CNI_NETNS

	Reached  Reached // how the recorded namespace was found
	Rebooted bool    // the record is of another boot of the machine
	HostGone bool    // the recorded host namespace is gone, with everything that plugins made there

	callers *Host     // the caller's host namespace while Host is the recorded one
	of      *Recorded // the record of the container
}

// Inside returns the open namespace if an attachment's path leads there: libcni's
// cache can have another path.
func (p *Place) Inside(path string) *netns.Handle {
	if path != p.Path {
		return nil
	}
	return p.NetNS
}

// leave closes the container's namespace.
func (p *Place) leave() (err error) {
	if p.NetNS != nil {
		err = p.NetNS.Close()
	}
	p.NetNS = nil
	return err
}

// leaveHost returns to the host namespace of the caller.
func (p *Place) leaveHost() (err error) {
	if p.callers != nil {
		err = p.Host.Close()
		p.Host, p.callers = p.callers, nil
	}
	return err
}

// EnterHost changes to the host namespace in which the record says that plugins
// ran. It differs from the caller's if BuildKit's detached one, a rootless one
// or WithHostNetNS is in use. In the caller's namespace plugins would find
// neither the rules nor the interfaces, or a neighbour's with the same address.
// mustStop means that the caller wants the container gone.
func (c *Container) EnterHost(mustStop bool) error {
	rec := c.Recorded.Record
	if rec.Host == "" || c.Place.Rebooted || rec.Host == c.Place.Host.String() {
		return nil
	}
	found, certain, err := c.in.Hosts.Find(rec, c.in.HostNetNS)
	if err != nil {
		return fmt.Errorf("host network namespace of container %s: %w", c.Recorded.ID, err)
	}
	if found != nil {
		c.logClose(c.Place.leaveHost())
		c.Place.callers, c.Place.Host = c.Place.Host, found
		return nil
	}
	// If the container's namespace is not found either, a Remove by the caller
	// can harm nothing alive, and it must be possible to stop a container.
	if certain || mustStop && c.Place.Gone() {
		c.Place.HostGone = true
		c.in.Logger.Warn("the host network namespace of the container is gone, and with it the container's interfaces and rules",
			"container", c.Recorded.ID, "namespace", rec.Host, "path", rec.HostPath)
		return nil
	}
	return fmt.Errorf("container %s was attached from network namespace %s, which cannot be found from %s, where this call would run plugins; "+
		"call from there, or name it with WithHostNetNS: %w", c.Recorded.ID, c.Recorded.RecordedHost(), c.in.described(c.Place.Host), outcome.ErrHostNetNS)
}

// hostPath returns a path by which others find a host namespace, or "".
func (s *Store) hostPath(host *Host) string { return s.Hosts.PathTo(host, s.HostNetNS) }

func (s *Store) described(host *Host) string {
	return described(host.String(), s.hostPath(host))
}

// sameHost refuses to add to a container that is attached from another host
// namespace, because a record has only one.
func (c *Container) sameHost() error {
	rec := c.Recorded.Record
	if rec == nil || rec.IsEmpty() || rec.Host == "" || rec.Host == c.Place.Host.String() {
		return nil
	}
	return fmt.Errorf("container %s is attached from network namespace %s, and this call would run plugins in %s: %w",
		c.Recorded.ID, c.Recorded.RecordedHost(), c.in.described(c.Place.Host), outcome.ErrHostNetNS)
}

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
