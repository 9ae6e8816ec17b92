package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/record"
)

// Remove detaches the container.
func (eng *Engine) Remove(ctx context.Context, c *Call) error {
	ctx = context.WithoutCancel(ctx)
	host, err := validateRemove(eng, c)
	if err != nil {
		return fmt.Errorf("remove container %q: %w", c.ID, err)
	}
	op, err := eng.open(ctx, c.ID, host, container.Access{})
	if err != nil {
		return fmt.Errorf("remove container %q: %w", c.ID, leftover(c.ID, err))
	}
	defer op.end()
	reaper{eng}.request(op.c.Host, false)
	damage, err := op.load()
	if err == nil {
		err = op.recall(c, damage, true)
	}
	if err != nil {
		return fmt.Errorf("remove container %q: %w", c.ID, leftover(c.ID, err))
	}
	if err := op.c.EndUse(); err != nil { // a full disk must not keep a container attached
		op.log().Warn("note in the record that the network namespace goes too", "error", err)
	}
	return op.tearDown(ctx, op.attachments)
}

// validateRemove checks the caller's parameters before anything is touched, the
// lock file included, and opens the namespace in which plugins run. A whole
// record lists the container's attachments; otherwise they are planned here.
func validateRemove(eng *Engine, c *Call) (*hostns.NetNS, error) {
	rec, err := LoadRecord(eng.Store.Records, c.ID)
	switch {
	case errors.As(err, new(*RecordError)):
		err = nil // recall returns it
	case rec != nil && err == nil:
		err = c.validateSelected(rec)
	default:
		err = c.Err
	}
	if err != nil {
		return nil, err
	}
	host, err := eng.openHost()
	if err != nil {
		return nil, err
	}
	if _, err := host.Validate(c.Path, "DEL"); err != nil {
		return nil, Join(err, host.Close())
	}
	return host, nil
}

// validateSelected refuses a network that is neither on the container's record
// nor loaded.
func (c *Call) validateSelected(rec *record.Record) error {
	for _, sel := range c.Selected {
		recorded := slices.ContainsFunc(rec.Attachments, func(n record.Attachment) bool { return n.Network == sel.Network })
		if sel.Unknown != nil && !recorded {
			return sel.Unknown
		}
	}
	return nil
}

// errNotYet: a removal failed not long ago.
var errNotYet = errors.New("not tried again yet")

// finish removes attachments whose removal has failed before, unless that was
// just now.
func (op *operation) finish(ctx context.Context, going attachments) error {
	for _, a := range going {
		n := a.entry()
		if n == nil {
			continue
		}
		if wait := n.RetryIn(time.Now()); wait > 0 {
			return fmt.Errorf("%w: in %v, after %d failures: %s", errNotYet, wait.Round(time.Second), n.Failures, n.LastError)
		}
	}
	return op.tearDown(context.WithoutCancel(ctx), going)
}
