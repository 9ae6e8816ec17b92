package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/store/record"
)

// unguardedEvery is the interval at which a guard that has no LegacyInterval looks whether
// anything is there to guard.
const unguardedEvery = 10 * time.Second

// unannounced are what a guard follows beside the kernel's announcements.
func (g *guard) unannounced() []source {
	switch {
	case g.options.Classes&Rules == 0:
		return []source{g.followHolds}
	case g.options.LegacyInterval > 0:
		return []source{g.followHolds, g.lookAtIntervals}
	}
	return []source{g.followHolds, g.tellUnguarded}
}

// lookAtIntervals has all containers looked at for the sake of the legacy tables.
func (g *guard) lookAtIntervals(ctx context.Context) error {
	for pause(ctx, g.options.LegacyInterval) {
		g.hear()
	}
	return nil
}

// pause waits, and reports whether ctx has not ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// tellUnguarded looks whether containers have rules in legacy tables, and reports each
// time that this has become so.
func (g *guard) tellUnguarded(ctx context.Context) error {
	var told, now Event // the last two
	for again := true; again; again = pause(ctx, unguardedEvery) {
		told, now = now, Event{}
		switch used, err := g.host.usesLegacyTables(ctx); {
		case err != nil:
			now = Event{Kind: Failed, Err: fmt.Errorf("read the legacy tables: %w", err)}
		case used:
			now = Event{Kind: Unguarded, Err: ErrUnguarded}
		}
		if now.Err != nil && now.String() != told.String() {
			g.tell(now)
		}
	}
	return nil
}

// ErrUnguarded is the error of an Unguarded event.
var ErrUnguarded = errors.New("containers have rules in legacy tables of iptables, which are not guarded without a LegacyInterval")

// followHolds has all containers looked at once the holds are followed, which is the
// guard's first look, and after each change of them: after the end of one, its parts may
// be repaired.
func (g *guard) followHolds(ctx context.Context) (err error) {
	dir := record.HoldsIn(g.config.StateDir).Dir
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer func() { err = joined.Errors(err, w.Close()) }()
	for fresh := true; ; {
		if fresh {
			if err := joined.Errors(os.MkdirAll(dir, 0o700), w.Add(dir)); err != nil {
				return fmt.Errorf("follow the holds: %w", err)
			}
		}
		g.hear()
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.Events:
			fresh = e.Name == dir // which may be gone
		case <-w.Errors: // some changes are lost
		}
	}
}
