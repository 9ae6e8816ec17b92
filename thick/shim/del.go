package shim

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/thick/internal/delqueue"
	"github.com/embedcni/cni/thick/internal/wire"
)

// del carries out a DEL. If there is no daemon, it is queued, and then tried once more:
// a daemon listens first and then drains the queue, so either the second attempt reaches
// it, or it finds the entry.
func (c *call) del(ctx context.Context, d *daemon) error {
	// Taken before anything else, so that no later ADD can be older.
	entry, notTaken := c.entry()
	_, err := d.call(ctx, c.body)
	if !errors.Is(err, errGone) {
		return err
	}
	if c.QueueDir == "" {
		return fmt.Errorf("%w; no directory is configured to queue the DEL in", err)
	}
	if notTaken != nil {
		return notQueued(err, notTaken)
	}
	queue := delqueue.Open(c.QueueDir)
	if qerr := queue.Put(entry); qerr != nil {
		return notQueued(err, qerr)
	}
	_, again := d.call(ctx, c.body)
	if errors.Is(again, errGone) {
		if d.listens(ctx) {
			// The daemon is alive and hangs up on this request. It may never come to drain
			// the queue.
			return joined.Errors(again, queue.Remove(entry))
		}
		c.note("DEL of container %s, interface %s, network %s is queued in %s: %v",
			c.args.ContainerID, c.args.IfName, c.network, c.QueueDir, again)
		return nil
	}
	if rerr := queue.Remove(entry); rerr != nil {
		// It is for an attachment that is gone or goes on being asked for, so it does no
		// harm there.
		c.note("%v", rerr)
	}
	return again
}

// entry returns what is queued of this call.
func (c *call) entry() (*delqueue.Entry, error) {
	now, err := delqueue.Now()
	if err != nil {
		return nil, err
	}
	e := &delqueue.Entry{Env: wire.Environ(c.Env), Config: c.config, Network: c.network, At: now, Trace: traceFields(c.Env)}
	if ns, err := netns.Open(c.args.NetNS); err == nil { // else it is gone, or was never there
		e.NetNS = ns.ID()
		err = ns.Close()
		return e, err
	}
	return e, nil
}

func notQueued(gone, why error) error {
	return types.NewError(types.ErrTryAgainLater, gone.Error(), why.Error())
}
