package engine

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"

	"github.com/embedcni/cni/internal/kernel/parallel"
	"github.com/embedcni/cni/internal/run/compare"
	"github.com/embedcni/cni/internal/store/record"
)

// examination compares containers with their records.
type examination struct {
	records  *record.Store
	isLocked func(record.ID) (bool, error)
	// examine compares one container with its record, by views from looks. It fills in
	// State and what follows from it; with an error the container is unknown. It is called
	// by several goroutines, and may panic.
	examine func(e *examined, looks *compare.Looks) error
	logger  *slog.Logger
	// brief has a suspect settled by the first look, for a caller that looks at suspects
	// again itself. Otherwise a suspect is looked at twice: what others take away for a
	// moment, as a reload of a firewall does, is not missing.
	brief bool
}

// mostLooks limits how often a container is looked at that other calls change
// meanwhile.
const mostLooks = 3

// all looks at the containers of records. A container that seems to differ is looked at
// again, until its record was the same before and after, and no other call was in
// progress: the ADDs and DELs of a call change the record before they change anything
// else, and while the container is locked. A container that changes all the time is
// unknown, with ErrBusy.
//
// The second look is another one at the whole host, rather than one for each container,
// so that a thousand containers that lack their masquerading take two looks.
func (x *examination) all(ctx context.Context, found []record.Found) []*examined {
	all := x.once(found)
	if x.brief {
		for _, c := range all {
			c.Settled = c.Suspect() && x.isUnchanged(c.Found)
		}
	}
	for n := 1; n < mostLooks && ctx.Err() == nil; n++ {
		var again []record.Found
		var at []int
		for i, c := range all {
			if c.Settled || !c.Suspect() {
				continue
			}
			now := x.records.Reload(c.Found)
			if now.Record == nil {
				*c = examined{Found: c.Found, State: stateNotAttached, Settled: true}
				continue
			}
			again, at = append(again, now), append(at, i)
		}
		if len(again) == 0 {
			break
		}
		for n, c := range x.once(again) {
			c.Settled = x.isUnchanged(c.Found)
			all[at[n]] = c
		}
	}
	for _, c := range all {
		if c.Suspect() && !c.Settled && ctx.Err() == nil {
			c.State, c.Reason = stateUnknown, fmt.Errorf("it changes: %w", ErrBusy)
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
	looks := compare.Dumps()
	defer func() {
		if err := looks.Close(); err != nil {
			x.logger.Error("close network namespace", "error", err)
		}
	}()
	all := make([]*examined, len(found))
	parallel.Each(len(found), runtime.GOMAXPROCS(0), func(i int) { all[i] = x.one(found[i], looks) })
	return all
}

func (x *examination) one(f record.Found, looks *compare.Looks) *examined {
	c := &examined{Found: f}
	if err := parallel.Try(func() error { return x.examine(c, looks) }); err != nil {
		c.State, c.Reason = stateUnknown, err
	}
	return c
}
