package engine

import (
	"context"
	"fmt"
	"reflect"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// Replacing returns a context in which a Setup first removes all that its container has on
// record. seen is the record when that was decided; nil if there was none. The Setup makes
// no namespace: the container's task lives in the one that it has.
func Replacing(ctx context.Context, seen *record.Record) context.Context {
	return context.WithValue(ctx, replacing{}, &replacement{seen})
}

type replacing struct{}

// replacement is what a Setup in the context of Replacing does before its ADDs.
type replacement struct{ seen *record.Record }

// errChanged: the decision was about another state of the container.
var errChanged = fmt.Errorf("it has changed since the verdict; call reconcile.Run again: %w", outcome.ErrBusy)

// clear removes all attachments of the container. It removes nothing if the container is
// not as it was seen, or if the Setup that follows could not succeed.
func (r *replacement) clear(ctx context.Context, s *setup, wanted container.Place, all attachments) error {
	op := s.op
	if op.c.Recorded.Damaged {
		return fmt.Errorf("its record is damaged; call Remove if the container is gone: %w", record.ErrBad)
	}
	if attached := op.c.Recorded.Record != nil && !op.c.Recorded.Record.IsEmpty(); (attached || r.seen != nil) && !reflect.DeepEqual(op.c.Recorded.Record, r.seen) {
		return errChanged
	}
	if op.c.Recorded.Record == nil {
		if len(all) > 0 {
			return fmt.Errorf("interface %s of network %q is in libcni's cache and not on record, since another program attached it: %w; call Remove first",
				all[0].plan.IfName, all[0].plan.Network.Config.Name, outcome.ErrAlreadyAttached)
		}
		return nil
	}
	if err := s.refuseReplacement(all, &wanted); err != nil {
		return err
	}
	if kept, err := op.c.KeepNetNS(wanted); err != nil || kept && len(all) == 0 {
		return err
	}
	op.log().Info("replacing the attachments of a container")
	if err := op.tearDown(context.WithoutCancel(ctx), all); err != nil {
		return fmt.Errorf("remove its attachments: %w", err)
	}
	r.seen = nil
	return nil
}

// refuseReplacement refuses to remove attachments of a container if they are another
// owner's, or if a wanted interface is there and not among them.
func (s *setup) refuseReplacement(all attachments, wanted *container.Place) error {
	for _, a := range all {
		if !a.own() {
			return fmt.Errorf("interface %s of network %q is of owner %q: %w",
				a.plan.IfName, a.plan.Network.Config.Name, s.op.c.Recorded.Record.OwnerOf(a.entry()), outcome.ErrAlreadyAttached)
		}
	}
	var going map[string]bool
	if s.op.c.Recorded.SameNetNS(wanted.Path) == nil {
		going = all.names()
	}
	return s.refuseTaken(wanted, going)
}
