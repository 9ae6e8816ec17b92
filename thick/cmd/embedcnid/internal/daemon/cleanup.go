package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/thick/server"
)

// recoverFirst is how long a daemon recovers before it serves. The first calls then find free
// what the dead had, and no half-made attachment of a call that was cut off, which would be in
// the way of an ADD that is repeated. A plugin that hangs must not keep the node waiting: Recover
// goes on beside the calls, and excludes them for one container at a time.
const recoverFirst = 5 * time.Second

// await waits until removals end, or ctx does.
func (d *daemon) await(ctx context.Context, ended <-chan struct{}) {
	select {
	case <-ended:
	case <-ctx.Done():
		d.log.Warn("dead containers are still being removed")
	}
}

// removeDead removes the containers that are dead, and begins with none after ctx has ended. It
// returns the attachments that were on record before.
func (d *daemon) removeDead(ctx context.Context) (before []cni.Attachment) {
	defer close(d.recovered)
	before, err := d.runtime.Attachments()
	var report *cni.Report
	if err == nil {
		report, err = d.runtime.Recover(ctx)
	}
	if ctx.Err() != nil {
		return before // the rest is the next daemon's
	}
	if err != nil {
		d.log.Error("records and host could not be compared", "error", err)
		d.conditions.set("recovered", doubtful, err.Error())
		return before
	}
	d.forget(before)
	d.metrics.Report(report)
	d.log.Info("recovered", "adopted", len(report.Adopted), "removed", len(report.Removed), "repaired", len(report.Repaired))
	for id, why := range report.Kept {
		d.log.Warn("a container is kept that is not healthy", "container", id, "error", why)
	}
	for id, why := range report.Failed {
		d.log.Warn("a dead container could not be removed", "container", id, "error", why)
	}
	for id, why := range report.Skipped {
		d.log.Warn("a container was left as it is", "container", id, "reason", why)
	}
	d.conditions.set("recovered", met, "")
	return before
}

// forget removes the files of devices of the containers that have been removed.
func (d *daemon) forget(before []cni.Attachment) {
	if err := d.backend.ForgetGone(before); err != nil {
		d.log.Warn("files of devices are left", "error", err)
	}
}

// retryRemovals repeats the removals that have failed at the start, until none is left: the
// runtime of a dead container does not. before has the attachments that were on record at the start.
func (d *daemon) retryRemovals(ctx context.Context, before []cni.Attachment) {
	for pause := time.Second; ; pause = min(2*pause, mostPause) {
		report, err := d.runtime.RetryRemovals(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			d.log.Error("removals that failed are not repeated", "error", err)
		default:
			d.forget(before)
			d.metrics.Retried(report)
			for _, id := range report.Removed {
				d.log.Info("a removal that failed was repeated", "container", id)
			}
			if len(report.Failed)+len(report.Skipped) == 0 {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// measureHealth counts the verdicts on all containers, again and again until ctx ends.
func (d *daemon) measureHealth(ctx context.Context) {
	tick := time.NewTicker(d.config.Load().HealthInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			all, err := d.runtime.Health(ctx, cni.HealthOptions{})
			if err == nil {
				d.metrics.Health(all)
			} else if ctx.Err() == nil {
				d.log.Warn("containers are not compared with their records", "error", err)
			}
		}
	}
}

// mostPause is the longest time after which DELs and removals are tried again that have failed.
const mostPause = 10 * time.Minute

// awaitDrained logs the outcome of each queued DEL. It drains the queue again until none
// fails, or ctx ends: no runtime repeats a DEL that the shim has queued.
func (d *daemon) awaitDrained(ctx context.Context, drained <-chan *server.DrainReport) {
	for pause := time.Second; ; pause = min(2*pause, mostPause) {
		if drained != nil {
			select {
			case <-ctx.Done():
				return
			case r := <-drained:
				d.logDrained(r)
				if len(r.Failed) == 0 {
					d.conditions.set("drained", met, "")
					return
				}
				d.conditions.set("drained", doubtful, fmt.Sprintf("%d DELs failed, and are tried again in %v", len(r.Failed), pause))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		var err error
		if drained, err = d.drain(ctx); err != nil {
			d.log.Error("queued DELs are not tried again", "error", err)
			d.conditions.set("drained", doubtful, err.Error())
		}
	}
}

// drain begins to carry out the queued DELs. A Shutdown ends it.
func (d *daemon) drain(ctx context.Context) (<-chan *server.DrainReport, error) {
	return d.server.Drain(context.WithoutCancel(ctx), d.config.Load().QueueDir)
}

func (d *daemon) logDrained(r *server.DrainReport) {
	d.metrics.Drained(r)
	for _, outcome := range []struct {
		name string
		dels []server.QueuedDel
	}{{"ended", r.Ended}, {"dropped", r.Dropped}, {"failed", r.Failed}} {
		for _, q := range outcome.dels {
			log := d.log.Info
			if outcome.name == "failed" {
				log = d.log.Warn
			}
			log("queued DEL", "outcome", outcome.name, "container", q.ContainerID, "interface", q.IfName, "network", q.Network, "reason", q.Err)
		}
	}
	if r.Unreadable != nil {
		d.log.Error("queued DELs that cannot be read", "error", r.Unreadable)
	}
}
