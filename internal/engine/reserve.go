package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/embedcni/cni/internal/leftovers"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/record"
)

// beginRecord writes the record. It refuses ports of the host that another
// container on record has, and chooses those that are left open.
func (op *operation) beginRecord(ctx context.Context, rec *record.Record, survives record.Survival) error {
	op.portWarnings = nil
	sets, open, protocols := op.attachments.openPorts()
	if err := op.attachments.reopenPorts(sets); err != nil {
		return err
	}
	wanted := op.attachments.hostPorts()
	if open == 0 && len(wanted) == 0 {
		return op.c.Begin(rec, survives)
	}
	if err := op.lookAtPorts(wanted); err != nil {
		return err
	}
	if open == 0 {
		_, err := op.beginWithPorts(ctx, rec, survives, nil, nil)
		return err
	}
	kernel, err := op.c.Host.LocalPorts()
	if err != nil {
		return fmt.Errorf("choose host ports: %w", err)
	}
	picked := ports.Pick(op.eng.opts.PortRange, protocols, kernel)
	picked.Leave(wanted)
	warnings := op.portWarnings
	for {
		chosen, err := op.choosePorts(rec, picked, open)
		if err != nil {
			return err
		}
		if err := op.givePorts(rec, sets, chosen); err != nil {
			return err
		}
		op.portWarnings = slices.Clone(warnings)
		if err := op.lookAtChosen(wanted); err != nil {
			return err
		}
		taken, err := op.beginWithPorts(ctx, rec, survives, picked, chosen)
		if err != nil || len(taken) == 0 {
			return err
		}
		picked.Avoid(taken) // another call was faster
	}
}

// beginWithPorts writes the record unless another container on record has one
// of its ports. From the search until the record is visible, no other call can do the
// same for one of the ports. A call that holds them waits for no other key, and no plugin
// runs meanwhile. It returns the chosen ports that are taken, by sockets too; others are
// refused.
func (op *operation) beginWithPorts(
	ctx context.Context, rec *record.Record, survives record.Survival, picked *ports.Picked, chosen []uint16,
) (taken []uint16, err error) {
	wanted := op.attachments.hostPorts()
	held, err := op.eng.Store.Locks.LockAll(ctx, portKeys(op.c.Host.String(), wanted))
	if err != nil {
		return nil, fmt.Errorf("host ports: %w", err)
	}
	defer func() { err = Join(err, held.Release()) }() // after a panic too
	if taken, err = op.usePorts(picked, chosen); len(taken) > 0 || err != nil {
		return taken, err
	}
	conflicts, err := op.eng.ports.Conflicts(rec, wanted)
	if err != nil {
		return nil, err
	}
	var refused []ports.Conflict
	for _, c := range conflicts {
		if slices.Contains(chosen, c.Wanted.Port) {
			taken = append(taken, c.Wanted.Port)
		} else {
			refused = append(refused, c)
		}
	}
	if len(refused) > 0 {
		return nil, takenBy(refused)
	}
	if len(taken) == 0 {
		taken, err = op.refuseCached(rec, wanted, chosen)
	}
	if len(taken) > 0 || err != nil {
		return taken, err
	}
	return nil, op.c.Begin(rec, survives)
}

// portKeys returns the keys by which calls for the same ports of a host exclude each other.
func portKeys(host string, wanted []ports.Claim) (keys []lock.Key) {
	for _, c := range wanted {
		keys = append(keys, lock.Key{Name: fmt.Sprintf("port/%s/%s/%d", host, c.Protocol, c.Port)})
	}
	return keys
}

// usePorts takes those of the ports that sockets have, this process's own included, out of
// the range, and returns them.
func (op *operation) usePorts(picked *ports.Picked, candidates []uint16) (used []uint16, err error) {
	if len(candidates) == 0 {
		return nil, nil
	}
	bound, err := op.c.Host.Bound(picked.Claims(candidates), op.log())
	for _, c := range bound {
		used = append(used, c.Port)
	}
	used = slices.Compact(used) // one may have several protocols
	picked.Use(used)
	return used, err
}

// takenBy returns a PortError for each conflict.
func takenBy(conflicts []ports.Conflict) error {
	var errs []error
	e := &takenPorts{}
	for _, c := range conflicts {
		errs = append(errs, heldBy(c.Holder, c.Wanted))
		e.holders = append(e.holders, c.Record)
	}
	e.error = Join(errs...)
	return e
}

// openPorts returns the sets of ports that attachments ask for, with the number of host
// ports to choose and their protocols.
func (all attachments) openPorts() (sets []*askedPorts, open int, protocols []string) {
	for _, a := range all {
		if a.plan.Ports == nil || slices.Contains(sets, a.plan.Ports) {
			continue
		}
		n, of := a.plan.Ports.open()
		sets, open, protocols = append(sets, a.plan.Ports), open+n, Union(protocols, of)
	}
	return sets, open, protocols
}

// reopenPorts takes back the ports that an earlier attempt has chosen: somebody else may
// have them by now.
func (all attachments) reopenPorts(sets []*askedPorts) error {
	for _, set := range sets {
		set.given = set.Asked
	}
	return all.mapPorts(nil)
}

// mapPorts has the attachments ask for the ports that they were given, and notes them in a
// record, if there is one.
func (all attachments) mapPorts(rec *record.Record) error {
	for _, a := range all {
		if a.plan.Ports == nil {
			continue
		}
		err := a.plan.mapPorts()
		if err == nil && rec != nil {
			err = a.plan.recordPorts(rec.Find(a.plan.IfName))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lookAtChosen is lookAtPorts for the ports that were chosen, those beside the wanted ones.
// No socket has them, but an address may be none of the host's.
func (op *operation) lookAtChosen(wanted []ports.Claim) error {
	chosen := slices.DeleteFunc(op.attachments.hostPorts(), func(c ports.Claim) bool { return slices.Contains(wanted, c) })
	return op.judgePorts(nil, nil, chosen)
}

// givePorts gives the sets the ports that were chosen, and notes them in a record that is
// not on the disk yet.
func (op *operation) givePorts(rec *record.Record, sets []*askedPorts, chosen []uint16) error {
	for _, set := range sets {
		chosen = set.give(chosen)
	}
	return op.attachments.mapPorts(rec)
}

// choosePorts returns n ports of the range that nobody seems to have. The index of
// records may name ports that nobody has, so it is read exactly before none is left.
func (op *operation) choosePorts(rec *record.Record, picked *ports.Picked, n int) ([]uint16, error) {
	chosen, err := op.eng.ports.Free(picked, n)
	if err != nil || len(chosen) == n {
		return chosen, err
	}
	holders, err := op.eng.ports.Within(rec, picked)
	if err != nil {
		return nil, err
	}
	held := make(map[uint16]bool)
	for _, h := range holders {
		held[h.Claim.Port] = true
	}
	var free []uint16
	for port := int(picked.First); port <= int(picked.Last); port++ {
		if p := uint16(port); !held[p] && !picked.Avoids(p) {
			free = append(free, p)
		}
	}
	if len(free) >= n {
		return free[:n], nil
	}
	used, err := op.usePorts(picked, free)
	if err != nil {
		return nil, err
	}
	return nil, op.noneLeft(picked, holders, n, len(free)-len(used))
}

// noneLeft returns the error for a range with too few free ports. Containers that are
// gone and have some of them may be removed.
func (op *operation) noneLeft(picked *ports.Picked, holders []ports.Holder, n, free int) error {
	e := &portRangeError{
		First: int(picked.First), Last: int(picked.Last), Wanted: n, Free: free,
		Processes: picked.InUse, Excluded: picked.Excluded,
	}
	byOwner := make(map[string]map[uint16]bool)
	gone := &takenPorts{error: e}
	for _, port := range picked.Refused() {
		if !slices.ContainsFunc(holders, func(h ports.Holder) bool { return h.Claim.Port == port }) {
			e.Unrecorded++
		}
	}
	for _, h := range holders {
		owner := h.Record.OwnerOf(h.Attachment)
		if byOwner[owner] == nil {
			byOwner[owner] = make(map[uint16]bool)
		}
		byOwner[owner][h.Claim.Port] = true
		if len(gone.holders) < n && !slices.ContainsFunc(gone.holders, func(rec *record.Record) bool { return rec.ContainerID == h.Record.ContainerID }) &&
			leftovers.IsAbandoned(h.Record, op.eng.opts.Owner, op.eng.Store.Boot) {
			gone.holders = append(gone.holders, h.Record)
		}
	}
	for _, owner := range slices.Sorted(maps.Keys(byOwner)) {
		e.Containers = append(e.Containers, ownedPorts{owner, len(byOwner[owner])})
	}
	if len(gone.holders) > 0 {
		return gone
	}
	return e
}
