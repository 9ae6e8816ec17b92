package daemon

import (
	"context"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/thick/server"
)

// cleanUp does what came due while no daemon ran: the DELs that shims have queued, and the
// removal of containers that are dead.
func (d *daemon) cleanUp(ctx context.Context, queue string) error {
	drained, err := d.server.Drain(ctx, queue)
	if err != nil {
		return err
	}
	d.logDrained(drained)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	d.conditions.set("drained", met, "")
	before, err := d.runtime.Attachments()
	if err != nil {
		return err
	}
	report, err := d.runtime.Recover(ctx)
	if err != nil {
		return err
	}
	if err := d.backend.ForgetGone(before); err != nil {
		return err
	}
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
	return nil
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

func (d *daemon) logDrained(r *server.DrainReport) {
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
