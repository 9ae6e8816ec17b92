package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/internal/store/ports"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// reservation writes the record of a Setup, and thereby reserves the ports of the host that
// its attachments ask for. It refuses those that another container on record has, and
// chooses those that are left open.
type reservation struct {
	op       *operation
	rec      *record.Record
	survives record.Survival
	picked   *ports.Picked // the range from which ports are chosen
	chosen   []uint16
	warnings []*outcome.PortError // about ports that are forwarded nevertheless
}

func (r *reservation) begin(ctx context.Context) error {
	all := r.op.attachments
	sets, open, protocols := all.openPorts()
	for _, set := range sets {
		set.given = set.Asked // somebody else may have those that an earlier attempt has chosen
	}
	if err := all.mapPorts(nil); err != nil {
		return err
	}
	wanted := all.hostPorts()
	if open == 0 && len(wanted) == 0 {
		return r.op.c.Recorded.Begin(r.rec, r.survives)
	}
	if err := r.lookAt(wanted); err != nil {
		return err
	}
	if open == 0 {
		_, err := r.try(ctx)
		return err
	}
	kernel, err := r.op.c.Place.Host.LocalPorts()
	if err != nil {
		return fmt.Errorf("choose host ports: %w", err)
	}
	r.picked = ports.Pick(r.op.eng.opts.PortRange, protocols, kernel)
	r.picked.Leave(wanted)
	warnings := r.warnings
	for {
		if r.chosen, err = r.choose(open); err != nil {
			return err
		}
		rest := r.chosen
		for _, set := range sets {
			rest = set.give(rest)
		}
		if err := all.mapPorts(r.rec); err != nil {
			return err
		}
		// No socket has the chosen ports, but an address may be none of the host's.
		r.warnings = slices.Clone(warnings)
		chosen := slices.DeleteFunc(all.hostPorts(), func(c ports.Claim) bool { return slices.Contains(wanted, c) })
		if err := r.judge(nil, nil, chosen); err != nil {
			return err
		}
		taken, err := r.try(ctx)
		if err != nil || len(taken) == 0 {
			return err
		}
		r.picked.Avoid(taken) // another call was faster
	}
}

// try writes the record unless another container on record has one
// of its ports. From the search until the record is visible, no other call can do the
// same for one of the ports. A call that holds them waits for no other key, and no plugin
// runs meanwhile. It returns the chosen ports that are taken, by sockets too; others are
// refused.
func (r *reservation) try(ctx context.Context) (taken []uint16, err error) {
	wanted := r.op.attachments.hostPorts()
	held, err := r.op.eng.Store.Locks.LockAll(ctx, portKeys(r.op.c.Place.Host.String(), wanted))
	if err != nil {
		return nil, fmt.Errorf("host ports: %w", err)
	}
	defer func() { err = Join(err, held.Release()) }() // after a panic too
	if taken, err = r.use(r.chosen); len(taken) > 0 || err != nil {
		return taken, err
	}
	conflicts, err := r.op.eng.ports.Conflicts(r.rec, wanted)
	if err != nil {
		return nil, err
	}
	var refused []ports.Conflict
	for _, c := range conflicts {
		if slices.Contains(r.chosen, c.Wanted.Port) {
			taken = append(taken, c.Wanted.Port)
		} else {
			refused = append(refused, c)
		}
	}
	if len(refused) > 0 {
		return nil, takenBy(refused)
	}
	if len(taken) == 0 {
		taken, err = r.refuseCached(wanted)
	}
	if len(taken) > 0 || err != nil {
		return taken, err
	}
	return nil, r.op.c.Recorded.Begin(r.rec, r.survives)
}

// portKeys returns the keys by which calls for the same ports of a host exclude each other.
func portKeys(host string, wanted []ports.Claim) (keys []lock.Key) {
	for _, c := range wanted {
		keys = append(keys, lock.Key{Name: fmt.Sprintf("port/%s/%s/%d", host, c.Protocol, c.Port)})
	}
	return keys
}

// use takes those of the ports that sockets have, this process's own included, out of
// the range, and returns them.
func (r *reservation) use(candidates []uint16) (used []uint16, err error) {
	if len(candidates) == 0 {
		return nil, nil
	}
	bound, err := r.op.c.Place.Host.Bound(r.picked.Claims(candidates), r.op.log())
	for _, c := range bound {
		used = append(used, c.Port)
	}
	used = slices.Compact(used) // one may have several protocols
	r.picked.Use(used)
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

// choose returns n ports of the range that nobody seems to have. The index of
// records may name ports that nobody has, so it is read exactly before none is left.
func (r *reservation) choose(n int) ([]uint16, error) {
	chosen, err := r.op.eng.ports.Free(r.picked, n)
	if err != nil || len(chosen) == n {
		return chosen, err
	}
	holders, err := r.op.eng.ports.Within(r.rec, r.picked)
	if err != nil {
		return nil, err
	}
	held := make(map[uint16]bool)
	for _, h := range holders {
		held[h.Claim.Port] = true
	}
	var free []uint16
	for port := int(r.picked.First); port <= int(r.picked.Last); port++ {
		if p := uint16(port); !held[p] && !r.picked.Avoids(p) {
			free = append(free, p)
		}
	}
	if len(free) >= n {
		return free[:n], nil
	}
	used, err := r.use(free)
	if err != nil {
		return nil, err
	}
	return nil, r.noneLeft(holders, n, len(free)-len(used))
}

// noneLeft returns the error for a range with too few free ports. Containers that are
// gone and have some of them may be removed.
func (r *reservation) noneLeft(holders []ports.Holder, n, free int) error {
	e := &portRangeError{
		First: int(r.picked.First), Last: int(r.picked.Last), Wanted: n, Free: free,
		Processes: r.picked.InUse, Excluded: r.picked.Excluded,
	}
	byOwner := make(map[string]map[uint16]bool)
	gone := &takenPorts{error: e}
	for _, port := range r.picked.Refused() {
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
			leftovers.IsAbandoned(h.Record, r.op.eng.opts.Owner, r.op.eng.Store.Boot) {
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
