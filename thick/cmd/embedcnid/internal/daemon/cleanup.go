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

// awaitRecovered waits until the dead are removed, or ctx ends.
func (d *daemon) awaitRecovered(ctx context.Context) {
	select {
	case <-d.recovered:
	case <-ctx.Done():
		d.log.Warn("dead containers are still being removed")
	}
}

// removeDead removes the containers that are dead, and begins with none after ctx has ended.
func (d *daemon) removeDead(ctx context.Context) {
	defer close(d.recovered)
	report, err := d.runtime.Recover(ctx)
	if ctx.Err() != nil {
		return // the rest is the next daemon's
	}
	if err != nil {
		d.log.Error("records and host could not be compared", "error", err)
		d.conditions.set("recovered", doubtful, err.Error())
		return
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

// awaitDrained logs what has become of the queued DELs, unless ctx ends before.
func (d *daemon) awaitDrained(ctx context.Context, drained <-chan *server.DrainReport) {
	select {
	case r := <-drained:
		d.logDrained(r)
		d.conditions.set("drained", met, "")
		if n := len(r.Failed); n > 0 {
			d.conditions.set("drained", doubtful, fmt.Sprintf("%d DELs failed, and stay in the queue for the next start", n))
		}
	case <-ctx.Done():
	}
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
