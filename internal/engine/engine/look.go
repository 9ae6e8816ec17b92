package engine

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"slices"

	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// examination looks at containers. It locks none, and repairs nothing:
//
//	records ─► all ─► one look at the host, all containers compared ─► examined
//	            ▲                                                         │
//	            └─ suspects: looked at again until nothing changed meanwhile
type examination struct {
	records  *record.Store
	isLocked func(record.ID) (bool, error)
	// examine compares one container with its record, by views from looks. It fills in
	// state and what follows from it; with an error the container is unknown. It is called
	// by several goroutines, and may panic.
	examine func(c *examined, looks *contract.Looks) error
	logger  *slog.Logger
	// brief has a suspect settled by the first look, for a caller that looks at suspects
	// again itself. Otherwise a suspect is looked at twice: what others take away for a
	// moment, as a reload of a firewall does, is not missing.
	brief bool
}

// stateCompared is the state of a container without a verdict: its parts decide.
const stateCompared outcome.HealthState = ""

// examined is a container that was looked at. It was not locked meanwhile, so a look
// only suspects; see [examination.all].
type examined struct {
	found   record.Found // its record
	state   outcome.HealthState
	reason  error // for a state that is not stateCompared
	parts   []*comparison
	settled bool // it is certain that no other call has changed the container meanwhile
}

// suspect reports whether anything is wrong with the container, as far as was seen.
func (c *examined) suspect() bool {
	return c.state != stateCompared || slices.ContainsFunc(c.parts, func(p *comparison) bool { return !p.isWhole() })
}

// isRepairable reports whether a repair can make a part on the host again.
func (c *examined) isRepairable() bool {
	return slices.ContainsFunc(c.parts, func(p *comparison) bool {
		return slices.ContainsFunc(p.differences, func(d contract.Difference) bool { return d.Fix != nil && !d.Inside })
	})
}

// wantsCheck reports whether a CHECK can say more about a part than the comparison.
func (c *examined) wantsCheck() bool { return slices.ContainsFunc(c.parts, (*comparison).wantsCheck) }

// mostLooks limits how often a container is looked at that other calls change
// meanwhile.
const mostLooks = 3

// all looks at the containers of records. A container that seems to differ is looked at
// again, until its record was the same before and after, and no other call was in
// progress: the ADDs and DELs of a call change the record before they change anything
// else, and while the container is locked. A container that changes all the time is
// unknown, with outcome.ErrBusy.
//
// The second look is another one at the whole host, rather than one for each container,
// so that a thousand containers that lack their masquerading take two looks.
func (x *examination) all(ctx context.Context, found []record.Found) []*examined {
	all := x.once(found)
	if x.brief {
		for _, c := range all {
			c.settled = c.suspect() && x.isUnchanged(c.found)
		}
	}
	for n := 1; n < mostLooks && ctx.Err() == nil; n++ {
		var again []record.Found
		var at []int
		for i, c := range all {
			if c.settled || !c.suspect() {
				continue
			}
			now := x.records.Reload(c.found)
			if now.Record == nil {
				*c = examined{found: c.found, state: outcome.StateNotAttached, settled: true}
				continue
			}
			again, at = append(again, now), append(at, i)
		}
		if len(again) == 0 {
			break
		}
		for n, c := range x.once(again) {
			c.settled = x.isUnchanged(c.found)
			all[at[n]] = c
		}
	}
	for _, c := range all {
		if c.suspect() && !c.settled && ctx.Err() == nil {
			c.state, c.reason = outcome.StateUnknown, fmt.Errorf("it changes: %w", outcome.ErrBusy)
		}
	}
	return all
}

// isUnchanged reports whether no other call has changed a container since its record
// was read.
func (x *examination) isUnchanged(f record.Found) bool {
	if locked, err := x.isLocked(f.Record.ContainerID); locked || err != nil {
		return false
	}
	now := x.records.Reload(f)
	return now.Record != nil && reflect.DeepEqual(f.Record, now.Record) && (f.Err == nil) == (now.Err == nil)
}

// once looks at the containers of records, at several at the same time, from one look at
// the host.
func (x *examination) once(found []record.Found) []*examined {
	looks := contract.Dumps()
	defer func() {
		if err := looks.Close(); err != nil {
			x.logger.Error("close network namespace", "error", err)
		}
	}()
	all := make([]*examined, len(found))
	thread.Each(len(found), runtime.GOMAXPROCS(0), func(i int) { all[i] = x.one(found[i], looks) })
	return all
}

func (x *examination) one(f record.Found, looks *contract.Looks) *examined {
	c := &examined{found: f}
	if err := thread.Try(func() error { return x.examine(c, looks) }); err != nil {
		c.state, c.reason = outcome.StateUnknown, err
	}
	return c
}
