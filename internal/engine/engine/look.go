package engine

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"

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
	Records  *record.Store
	IsLocked func(record.ID) (bool, error)
	// Examine compares one container with its record, by views from looks. It fills in
	// State and what follows from it; with an error the container is Unknown. It is called
	// by several goroutines, and may panic.
	Examine func(c *examined, looks *contract.Looks) error
	Logger  *slog.Logger
	// Brief has a suspect settled by the first look, for a caller that looks at suspects
	// again itself. Otherwise a suspect is looked at twice: what others take away for a
	// moment, as a reload of a firewall does, is not missing.
	Brief bool
}

// mostLooks limits how often a container is looked at that other calls change
// meanwhile.
const mostLooks = 3

// all looks at the containers of records. A container that seems to differ is looked at
// again, until its record was the same before and after, and no other call was in
// progress: the ADDs and DELs of a call change the record before they change anything
// else, and while the container is locked. A container that changes all the time is
// Unknown, with outcome.ErrBusy.
//
// The second look is another one at the whole host, rather than one for each container,
// so that a thousand containers that lack their masquerading take two looks.
func (l *examination) all(ctx context.Context, found []record.Found) []*examined {
	all := l.once(found)
	if l.Brief {
		for _, c := range all {
			c.Settled = c.Suspect() && l.isUnchanged(c.Found)
		}
	}
	for n := 1; n < mostLooks && ctx.Err() == nil; n++ {
		var again []record.Found
		var at []int
		for i, c := range all {
			if c.Settled || !c.Suspect() {
				continue
			}
			now := l.Records.Reload(c.Found)
			if now.Record == nil {
				*c = examined{Found: c.Found, State: outcome.StateNotAttached, Settled: true}
				continue
			}
			again, at = append(again, now), append(at, i)
		}
		if len(again) == 0 {
			break
		}
		for n, c := range l.once(again) {
			c.Settled = l.isUnchanged(c.Found)
			all[at[n]] = c
		}
	}
	for _, c := range all {
		if c.Suspect() && !c.Settled && ctx.Err() == nil {
			c.State, c.Reason = outcome.StateUnknown, fmt.Errorf("it changes: %w", outcome.ErrBusy)
		}
	}
	return all
}

// isUnchanged reports whether no other call has changed a container since its record
// was read.
func (l *examination) isUnchanged(f record.Found) bool {
	if locked, err := l.IsLocked(f.Record.ContainerID); locked || err != nil {
		return false
	}
	now := l.Records.Reload(f)
	return now.Record != nil && reflect.DeepEqual(f.Record, now.Record) && (f.Err == nil) == (now.Err == nil)
}

// once looks at the containers of records, at several at the same time, from one look at
// the host.
func (l *examination) once(found []record.Found) []*examined {
	looks := contract.Dumps()
	defer func() {
		if err := looks.Close(); err != nil {
			l.Logger.Error("close network namespace", "error", err)
		}
	}()
	all := make([]*examined, len(found))
	thread.Each(len(found), runtime.GOMAXPROCS(0), func(i int) { all[i] = l.one(found[i], looks) })
	return all
}

func (l *examination) one(f record.Found, looks *contract.Looks) *examined {
	c := &examined{Found: f}
	if err := thread.Try(func() error { return l.Examine(c, looks) }); err != nil {
		c.State, c.Reason = outcome.StateUnknown, err
	}
	return c
}
