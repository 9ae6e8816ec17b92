package container

import (
	"errors"
	"time"

	"github.com/embedcni/cni/internal/record"
)

// Recorded is a container's record, in memory and on the disk.
type Recorded struct {
	ID      record.ID
	Record  *record.Record // nil: there is none, or not yet
	Damaged bool           // Record is only the legible part

	records *record.Store
	pending *record.Pending // Record, on its way to the disk
}

// Load reads the record. It keeps the legible part of a damaged one, and returns that
// error as damage. A record that is newer or cannot be read is an error.
func (r *Recorded) Load() (damage, err error) {
	rec, err := r.records.Load(r.ID)
	if err != nil && !errors.Is(err, record.ErrBad) {
		return nil, err
	}
	r.Record, r.Damaged = rec, err != nil
	return err, nil
}

// PluginID returns the container's ID as plugins know it.
func (r *Recorded) PluginID() record.PluginID {
	if r.Record != nil {
		return r.Record.Plugins()
	}
	return record.PluginID(r.ID)
}

// RecordedHost describes the host namespace of the record.
func (r *Recorded) RecordedHost() string { return described(r.Record.Host, r.Record.HostPath) }

func described(id, path string) string {
	if path == "" {
		return id
	}
	return id + " (" + path + ")"
}

// Begin puts a record on the disk before the first plugin runs. If early, it does not
// wait until the record survives a power cut; see Pending.
func (r *Recorded) Begin(rec *record.Record, early bool) (err error) {
	if early {
		r.pending, err = r.records.BeginSoon(rec)
	} else {
		err = r.records.Begin(rec)
	}
	if err == nil {
		r.Record = rec
	}
	return err
}

// Pending returns the sync of the record that is in progress; nil if it has
// finished.
func (r *Recorded) Pending() *record.Pending { return r.pending }

// Note adds an entry to the record, if there is one.
func (r *Recorded) Note(e record.Entry) error {
	if r.Record == nil {
		return nil
	}
	return r.records.Append(r.Record, e)
}

// EnterRecorded opens the recorded namespaces where they are found now, if they are.
// After a reboot they are gone, wherever the path leads: another namespace may have
// been given the same number. For mustStop see [Container.EnterHost].
func (c *Container) EnterRecorded(mustStop bool) error {
	c.Leave()
	c.Path, c.Reached = "", NotReached
	now, err := c.in.BootID()
	if err != nil {
		return err
	}
	if c.Rebooted = c.Record.Boot != now; c.Rebooted {
		return nil
	}
	if err := c.reach(c.Record, c.in.Pins.openPath(c.ID)); err != nil {
		return err
	}
	if err := c.EnterHost(mustStop); err != nil {
		return err
	}
	if err := c.settleLetGo(c.Record); err != nil {
		return err
	}
	if unknown := c.Uncertain(); unknown != nil {
		c.in.Logger.Warn("nothing is done inside the container's network namespace", "container", c.ID, "reason", unknown)
	}
	return nil
}

// NewRecord returns the record of a container that an owner is about to attach,
// with the attachments that it already has, but without the new ones.
func (c *Container) NewRecord(owner string) (*record.Record, error) {
	if err := c.sameHost(); err != nil {
		return nil, err
	}
	boot, err := c.in.BootID()
	if err != nil {
		return nil, err
	}
	self, err := c.in.Identity()
	if err != nil {
		return nil, err
	}
	rec := &record.Record{
		Runtime: self, Life: c.in.Life(), PIDNS: c.in.PIDNS,
		ContainerID: c.ID, Owner: owner, Boot: boot, Host: c.Host.String(), HostPath: c.hostPath(), Since: time.Now().UTC(),
		PluginID: c.MadeAs, Warm: c.Warm,
	}
	if before := c.Record; before != nil {
		rec.Since, rec.Generation, rec.PluginID = before.Since, before.Generation, before.PluginID
		for _, n := range before.Attachments {
			if n.State != record.Deleted {
				rec.Attachments = append(rec.Attachments, n)
			}
		}
		if len(rec.Attachments) > 0 {
			rec.Owner = before.Owner // earlier versions know no other
		}
	}
	if rec.NetNS, err = c.identify(); err != nil {
		return nil, err
	}
	if c.Record != nil {
		rec.Inherit(c.Record)
	}
	return rec, nil
}

// Erase stops keeping the namespace alive and deletes the record, in this order, so
// that a crash or a failure in between leaves a record, and never a pin without one.
func (c *Container) Erase() error {
	if c.kept == nil {
		if err := c.letGo(); err != nil {
			return err
		}
	}
	rec := c.Record
	if rec == nil {
		rec = &record.Record{ContainerID: c.ID}
	}
	if err := c.in.DeleteRecord(rec); err != nil {
		return err
	}
	// A pool's container was on record under that ID until this record was on the
	// disk.
	if id := record.ID(c.PluginID()); id != c.ID {
		return c.in.DeleteRecord(&record.Record{ContainerID: id})
	}
	return nil
}

// KeepNetNS has Erase keep the recorded namespace, if this library has made it and it is
// the one at a place: the caller attaches the container there again, and its processes
// may be in it. The next record has it as this one does.
func (c *Container) KeepNetNS(at Place) {
	if c.Record != nil && !c.Damaged && !c.Rebooted && c.Record.NetNS.Ours && at.NetNS != nil && at.NetNS.ID() == c.Record.NetNS.ID() {
		ns := c.Record.NetNS
		c.kept = &ns
	}
}

// letGo stops keeping the namespace alive, and deletes one that was made for the
// container.
func (c *Container) letGo() error {
	if err := c.Unpin(); err != nil {
		return err
	}
	if c.Record != nil && c.Record.NetNS.Ours {
		boot, err := c.in.BootID()
		if err == nil {
			err = removeOurs(c.Record.NetNS, c.Record.Boot == boot)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// DeleteRecord deletes a record with its entry in the index of host ports. The record of
// a container that nobody has yet claims none, so its ID is enough.
func (s *Store) DeleteRecord(r *record.Record) error {
	if err := s.Records.Delete(r.ContainerID); err != nil {
		return err
	}
	s.Ports.Forget(r)
	return nil
}
