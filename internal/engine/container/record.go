package container

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/store/record"
)

// Recorded is a container's record, in memory and on the disk.
type Recorded struct {
	ID      record.ID
	Record  *record.Record // nil: there is none, or not yet
	Damaged bool           // Record is only the legible part
	Keeps   bool           // Erase keeps the recorded namespace; see KeepNetNS

	pending *record.Pending    // Record, on its way to the disk
	coming  *plainfile.Unnamed // for the first Record
	in      *Store
}

// Load reads the record. It keeps the legible part of a damaged one, and returns that
// error as damage. A record that is newer or cannot be read is an error.
func (r *Recorded) Load() (damage, err error) {
	rec, err := r.in.Records.Load(r.ID)
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

// PrepareRecord begins to make the file of the container's first record.
func (r *Recorded) PrepareRecord() { r.coming = r.in.Records.Prepare() }

// Begin writes a record before the first plugin runs.
func (r *Recorded) Begin(rec *record.Record, survives record.Survival) (err error) {
	if r.pending, err = r.in.Records.BeginAs(rec, survives, r.coming); err == nil {
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
	return r.in.Records.Append(r.Record, e)
}

// EnterRecorded opens the recorded namespaces where they are found now, if they are.
// After a reboot they are gone, wherever the path leads: another namespace may have
// been given the same number. For mustStop see [Container.EnterHost].
func (c *Container) EnterRecorded(mustStop bool) error {
	c.Leave()
	c.Place.Path, c.Place.Reached = "", NotReached
	now, err := c.in.BootID()
	if err != nil {
		return err
	}
	if c.Place.Rebooted = c.Recorded.Record.Boot != now; c.Place.Rebooted {
		return nil
	}
	if err := c.Place.reach(c.in.Pins.openPath(c.Recorded.ID)); err != nil {
		return err
	}
	if err := c.EnterHost(mustStop); err != nil {
		return err
	}
	if err := c.Place.Settle(); err != nil {
		return err
	}
	if unknown := c.Place.Uncertain(); unknown != nil {
		c.in.Logger.Warn("nothing is done inside the container's network namespace", "container", c.Recorded.ID, "reason", unknown)
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
		ContainerID: c.Recorded.ID, Owner: owner, Boot: boot, Host: c.Place.Host.String(), HostPath: c.in.hostPath(c.Place.Host), Since: time.Now().UTC(),
	}
	if before := c.Recorded.Record; before != nil {
		rec.Generation, rec.PluginID = before.Generation, before.PluginID
		if !before.IsEmpty() {
			rec.Since = before.Since
		}
		for n := range before.Present() {
			rec.Attachments = append(rec.Attachments, *n)
		}
		if len(rec.Attachments) > 0 {
			rec.Owner = before.Owner // earlier versions know no other
		}
	}
	if rec.NetNS, err = c.identify(); err != nil {
		return nil, err
	}
	if c.Recorded.Record != nil {
		rec.Inherit(c.Recorded.Record)
	}
	return rec, nil
}

// Erase stops keeping the namespace alive and deletes the record, in this order, so
// that a crash or a failure in between leaves a record, and never a pin without one. If
// the namespace outlives the attachments, the record stays for it alone; see KeepNetNS.
func (r *Recorded) Erase() error {
	if r.Keeps {
		return r.empty()
	}
	if err := r.letGo(); err != nil {
		return err
	}
	if err := r.in.Records.Delete(r.ID); err != nil {
		return err
	}
	return r.eraseOrigin()
}

// eraseOrigin deletes the record under the ID that plugins know, if that is another: a
// pool's container was on record under it until its own record was on the disk.
func (r *Recorded) eraseOrigin() error {
	if id := record.ID(r.PluginID()); id != r.ID {
		return r.in.Records.Delete(id)
	}
	return nil
}

// empty replaces the record by one without attachments.
func (r *Recorded) empty() error {
	rec := *r.Record
	rec.PluginID, rec.Warm, rec.LetGo, rec.Attachments = "", false, nil, nil
	if err := r.in.Records.Begin(&rec); err != nil {
		return err
	}
	err := r.eraseOrigin()
	r.Record = &rec
	return err
}

// KeepNetNS has Erase keep the recorded namespace, and a record of it without
// attachments, if this library has made it and it is the one at a place: the caller
// attaches the container there again, and its processes may be in it. The record says so
// from then on. kept is false if it is another namespace.
func (c *Container) KeepNetNS(at Place) (kept bool, err error) {
	if !c.Recorded.isOurs() || c.MakesNetNS() || at.NetNS == nil || at.NetNS.ID() != c.Recorded.Record.NetNS.ID() {
		return false, nil
	}
	c.Recorded.Keeps = true
	return true, c.Recorded.setInUse(true)
}

// KeepInhabited is KeepNetNS for a namespace that the record says is in use, if that is so:
// a process is in it, or may be.
func (c *Container) KeepInhabited() (kept bool) {
	c.Recorded.Keeps = c.Recorded.KeepInUse() && c.Place.NetNS != nil && c.Place.isInhabited()
	return c.Recorded.Keeps
}

// KeepInUse is KeepNetNS for a namespace that the record says is in use.
func (r *Recorded) KeepInUse() (kept bool) {
	r.Keeps = r.isOurs() && r.Record.NetNS.InUse
	return r.Keeps
}

// EndUse notes that the namespace goes with the attachments.
func (r *Recorded) EndUse() error {
	if !r.isOurs() {
		return nil
	}
	return r.setInUse(false)
}

// isOurs reports whether this library has made the recorded namespace, in this boot.
func (r *Recorded) isOurs() bool {
	boot, err := r.in.BootID()
	return err == nil && r.Record != nil && !r.Damaged && r.Record.Boot == boot && r.Record.NetNS.Ours
}

func (r *Recorded) setInUse(yes bool) error {
	if r.Record.NetNS.InUse == yes {
		return nil
	}
	if err := r.Note(record.Entry{InUse: &yes}); err != nil {
		return err
	}
	r.Record.NetNS.InUse = yes
	return nil
}

// letGo stops keeping the namespace alive, and deletes one that was made for the
// container.
func (r *Recorded) letGo() error {
	if err := r.Unpin(); err != nil {
		return err
	}
	if r.Record != nil && r.Record.NetNS.Ours {
		boot, err := r.in.BootID()
		if err == nil {
			err = removeOurs(r.Record.NetNS, r.Record.Boot == boot)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ByAddress finds the records of the containers that have an address. The records alone
// decide; it remembers the addresses in each, and decodes those that have changed. It is
// safe for concurrent use.
type ByAddress struct {
	records *record.Store
	files   *record.Files[[]netip.Addr]
}

// NewByAddress touches nothing. A record changes with each entry of its log, so nobody
// watches the directory.
func NewByAddress(records *record.Store) *ByAddress {
	return &ByAddress{records, record.NewFiles[[]netip.Addr](records.Dir(), record.FileExt, nil)}
}

// Find returns the records, of all hosts and boots, that have the address in a result.
// They are read after the call has begun. Of a record that cannot be used, the legible part
// counts.
func (b *ByAddress) Find(addr netip.Addr) (found []record.Found, err error) {
	addr = addr.WithZone("").Unmap()
	var files []string
	err = b.files.Each(b.read, func(name string, addrs []netip.Addr) {
		if slices.Contains(addrs, addr) {
			files = append(files, name)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("attachment records: %w", err)
	}
	slices.Sort(files)
	for _, file := range files {
		rec, err := b.records.LoadFile(file)
		if rec != nil { // else it was removed meanwhile
			found = append(found, record.Found{Record: rec, File: file, Err: err})
		}
	}
	return found, nil
}

// read returns the addresses in a record's results, those of the host's interfaces included.
func (b *ByAddress) read(name string) (addrs []netip.Addr, sure bool) {
	rec, err := b.records.LoadFile(name)
	if rec == nil {
		return nil, true // removed meanwhile, or not a record
	}
	for n := range rec.Present() {
		if result := chain.Decode(n.Result); result != nil {
			for _, ip := range result.IPs {
				if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
					addrs = append(addrs, addr.Unmap())
				}
			}
		}
	}
	return addrs, !errors.Is(err, record.ErrUnread)
}
