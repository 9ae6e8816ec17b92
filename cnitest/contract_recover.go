package cnitest

import (
	"context"
	"errors"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
)

func (c *contract) recovers() {
	_, result := c.attach("lives")
	gone, _ := c.attach("gone")
	other := c.start(cni.WithOwner("other"))
	_, err := other.Setup(c.ctx, "others", c.NetNS(), onPods)
	expect.NoError(c, err)
	c.EndNetNS(gone)

	c.Runtime = c.start()
	report, err := c.Recover(c.ctx)
	c.wantReport("Recover", report, err, want{adopted: []string{"lives"}, removed: []string{"gone"}})
	c.wantRecorded("after Recover", "lives/eth0 pods attached", "lives/eth1 tiny attached", "others/eth0 pods attached")
	again, err := c.Lookup("lives")
	expect.NoError(c, err)
	expect.Same(c, "result after Recover", c.asText(again), c.asText(result))
	c.detach("lives", "others")
}

func (c *contract) recoversBroken() {
	for _, action := range []struct {
		opts []cni.RecoverOption
		want want
		then cni.HealthState
	}{
		{nil, want{adopted: []string{"c1"}, repaired: []string{"c1"}}, cni.StateHealthy},
		{[]cni.RecoverOption{cni.OnBroken(cni.RepairBroken)}, want{adopted: []string{"c1"}, repaired: []string{"c1"}}, cni.StateHealthy},
		{[]cni.RecoverOption{cni.OnBroken(cni.ReportBroken)}, want{adopted: []string{"c1"}, kept: []string{"c1"}}, cni.StateBroken},
		{[]cni.RecoverOption{cni.OnBroken(cni.RemoveBroken)}, want{removed: []string{"c1"}}, cni.StateNotAttached},
	} {
		c.attach("c1", onPods)
		c.Break("c1")
		report, err := c.Recover(c.ctx, action.opts...)
		c.wantReport("Recover", report, err, action.want)
		expect.Same(c, "verdict", c.state("c1"), action.then)
		c.detach("c1")
	}
	c.attach("c1", onPods)
	c.FailAt("CHECK", "pods", errScripted)
	report, err := c.Recover(c.ctx, cni.OnBroken(cni.RemoveBroken))
	c.wantReport("Recover after a failed CHECK", report, err, want{adopted: []string{"c1"}, kept: []string{"c1"}})
	c.is("the reason", report.Kept["c1"], errScripted)
	c.detach("c1")
}

// recoversFailed: a removal that failed is tried again after a time.
func (c *contract) recoversFailed() {
	c.attach("c1", onPods)
	c.failRemovals("c1", "pods")
	report, err := c.Recover(c.ctx)
	c.wantReport("Recover at once", report, err, want{failed: []string{"c1"}})
	expect.Same(c, "leftovers", c.left(report.Failed["c1"]).ContainerID, "c1")
	c.wantAdoptedWithFailure()
	collected, err := c.GC(c.ctx, cni.GCOptions{KeepNone: true})
	c.wantReport("GC at once", collected, err, want{failed: []string{"c1"}})
	c.wantRecorded("after that", "c1/eth0 pods failed")
	c.detach("c1")
}

// failRemovals fails to remove a container from a network, so often that it is tried again
// in half a minute only, which is longer than a busy machine needs for what follows.
func (c *contract) failRemovals(id, network string) {
	c.Helper()
	c.FailAt("DEL", network, errScripted)
	for range 6 {
		c.left(c.Remove(c.ctx, id, "", cni.WithNetwork(network)))
	}
	c.FailAt("DEL", network, nil)
}

// wantAdoptedWithFailure: a container lives on one network, and its removal from the
// other has failed.
func (c *contract) wantAdoptedWithFailure() {
	c.Helper()
	c.attach("both")
	c.failRemovals("both", "tiny")
	report, err := c.Recover(c.ctx)
	c.wantReport("Recover of a part", report, err, want{adopted: []string{"both"}, failed: []string{"both", "c1"}})
	collected, err := c.GC(c.ctx, cni.GCOptions{Keep: []string{"both", "c1"}})
	c.wantReport("GC that keeps it", collected, err, want{adopted: []string{"both", "c1"}, failed: []string{"both", "c1"}})
	c.detach("both")
}

func (c *contract) collects() {
	for _, id := range []string{"a", "b", "d"} {
		c.attach(id, onPods)
	}
	other := c.start(cni.WithOwner("other"))
	_, err := other.Setup(c.ctx, "others", c.NetNS(), onPods)
	expect.NoError(c, err)
	_, err = c.GC(c.ctx, cni.GCOptions{})
	c.is("an empty Keep", err, cni.ErrInvalidArgument)

	dry, err := c.GC(c.ctx, cni.GCOptions{Keep: []string{"a", "never"}, DryRun: true})
	expect.NoError(c, err)
	expect.Same(c, "removed by a dry run", sorted(dry.Removed), []string{"b", "d"})
	c.wantRecorded("after a dry run", "a/eth0 pods attached", "b/eth0 pods attached", "d/eth0 pods attached", "others/eth0 pods attached")
	c.FailAt("DEL", "pods", errScripted)
	failed, err := c.GC(c.ctx, cni.GCOptions{Keep: []string{"a", "d"}})
	c.wantReport("GC with a plugin that fails", failed, err, want{adopted: []string{"a", "d"}, failed: []string{"b"}})
	expect.Same(c, "leftovers", c.left(failed.Failed["b"]).ContainerID, "b")
	c.FailAt("DEL", "pods", nil)
	c.detach("b")
	report, err := c.GC(c.ctx, cni.GCOptions{Keep: []string{"never", "a"}})
	c.wantReport("GC", report, err, want{adopted: []string{"a"}, removed: []string{"d"}})
	c.attach("e")
	keep := func(a cni.Attachment) bool { return a.ContainerID == "e" && a.IfName == "eth0" }
	_, err = c.GC(c.ctx, cni.GCOptions{KeepIf: keep, KeepNone: true})
	c.is("two rules", err, cni.ErrInvalidArgument)
	report, err = c.GC(c.ctx, cni.GCOptions{KeepIf: keep})
	c.wantReport("GC by interface", report, err, want{adopted: []string{"e"}, removed: []string{"a"}})
	c.wantRecorded("after GC by interface", "e/eth0 pods attached", "others/eth0 pods attached")
	report, err = c.GC(c.ctx, cni.GCOptions{KeepNone: true})
	c.wantReport("GC of all", report, err, want{removed: []string{"e"}})
	c.wantRecorded("after GC", "others/eth0 pods attached")
	c.collectsIf()
	c.detach("others")
}

// collectsIf: the caller decides about each attachment.
func (c *contract) collectsIf() {
	c.attach("part")
	c.attach("whole")
	keep := func(a cni.Attachment) bool { return a.ContainerID == "part" && a.IfName == "eth0" }
	_, err := c.GC(c.ctx, cni.GCOptions{KeepIf: keep, KeepNone: true})
	c.is("KeepIf beside KeepNone", err, cni.ErrInvalidArgument)
	for _, dry := range []bool{true, false} {
		report, err := c.GC(c.ctx, cni.GCOptions{KeepIf: keep, DryRun: dry})
		c.wantReport("GC with KeepIf", report, err, want{adopted: []string{"part"}, removed: []string{"whole"}})
	}
	c.wantRecorded("after GC with KeepIf", "others/eth0 pods attached", "part/eth0 pods attached")
	c.detach("part")
}

func (c *contract) healthAndRepair() {
	_, result := c.attach("c1")
	gone, _ := c.attach("c2", onPods)
	report, err := c.Health(c.ctx, cni.HealthOptions{})
	expect.NoError(c, err)
	expect.Same(c, "healthy containers", report.Count(cni.StateHealthy), 2)
	whole, err := c.Repair(c.ctx, "c1", cni.RepairOptions{})
	expect.NoError(c, err, whole.Err())
	expect.Same(c, "repaired", len(whole.Repaired), 0)

	c.Break("c1")
	c.EndNetNS(gone)
	c.Runtime = c.start()
	report, err = c.Health(c.ctx, cni.HealthOptions{Containers: []string{"c2", "c1", "never"}})
	expect.NoError(c, err)
	var states []cni.HealthState
	for _, h := range report.Containers {
		states = append(states, h.State)
	}
	expect.Same(c, "verdicts on c1, c2, never", states, []cni.HealthState{cni.StateBroken, cni.StateGone, cni.StateNotAttached})
	broken, _ := report.Of("c1")
	if len(broken.Differences) == 0 || broken.Err() == nil {
		c.Fatalf("verdict %v", broken)
	}
	for _, d := range broken.Differences {
		if d.Kind == cni.KindCheck { // an executable says it too
			continue
		}
		if d.Network != "pods" || d.IfName != "eth0" || d.Plugin == "" || d.Kind == "" || d.Object == "" || !d.Repairable || d.Err == nil {
			c.Errorf("difference %+v", d)
		}
	}
	repaired, err := c.Repair(c.ctx, "c1", cni.RepairOptions{})
	expect.NoError(c, err, repaired.Err())
	if len(repaired.Repaired) == 0 || repaired.ContainerID != "c1" || repaired.Repaired[0].Kind != broken.Differences[0].Kind {
		c.Errorf("repaired %v", repaired)
	}
	expect.Same(c, "verdict", c.state("c1"), cni.StateHealthy)
	again, err := c.Lookup("c1")
	expect.NoError(c, err)
	expect.Same(c, "result", c.asText(again), c.asText(result))

	_, err = c.Repair(c.ctx, "c2", cni.RepairOptions{})
	c.is("Repair of a container that is gone", err, cni.ErrNotRepairable)
	_, err = c.Refresh(c.ctx, "c2", cni.RefreshOptions{})
	c.is("Refresh of a container that is gone", err, cni.ErrNotAttached)
	c.FailAt("CHECK", "pods", errScripted)
	expect.Same(c, "verdict after a failed CHECK", c.state("c1"), cni.StateBroken)
	report, err = c.Health(c.ctx, cni.HealthOptions{Containers: []string{"c1"}, WithoutCheck: true})
	expect.NoError(c, err)
	expect.Same(c, "verdict without CHECK", report.Count(cni.StateHealthy), 1)
	c.detach("c1", "c2")
}

func (c *contract) holds() {
	path, _ := c.attach("c1", onPods)
	c.is("a hold of nothing", c.Hold(c.ctx, cni.Hold{}), cni.ErrInvalidArgument)
	c.is("an attachment that is not there", c.Hold(c.ctx, cni.Hold{ContainerID: "c1", Network: "tiny"}), cni.ErrNotAttached)
	c.is("Unhold of nothing", c.Unhold(c.ctx, cni.Hold{ContainerID: "c1"}), cni.ErrNotHeld)
	expect.NoError(c, c.Hold(c.ctx, cni.Hold{ContainerID: "c1", Reason: "because"}))
	expect.NoError(c, c.Hold(c.ctx, cni.Hold{Network: "tiny"}))
	held, err := c.Holds()
	expect.NoError(c, err)
	if len(held) != 2 || held[0].ContainerID != "c1" || held[0].Reason != "because" || held[0].Owner != contractOwner || held[0].Since.IsZero() || held[1].Network != "tiny" {
		c.Errorf("holds %+v", held)
	}
	c.Break("c1")
	report, err := c.Recover(c.ctx)
	c.wantReport("Recover of what is held", report, err, want{adopted: []string{"c1"}, kept: []string{"c1"}})
	repaired, err := c.Repair(c.ctx, "c1", cni.RepairOptions{})
	expect.NoError(c, err, repaired.Err())
	c.Break("c1")
	expect.NoError(c, c.Unhold(c.ctx, cni.Hold{ContainerID: "c1"}))
	report, err = c.Recover(c.ctx)
	c.wantReport("Recover after Unhold", report, err, want{adopted: []string{"c1"}, repaired: []string{"c1"}})
	expect.NoError(c, c.Hold(c.ctx, cni.Hold{ContainerID: "c1"}), c.Remove(c.ctx, "c1", path))
	held, err = c.Holds()
	if err != nil || len(held) != 1 || !errors.Is(c.Unhold(c.ctx, cni.Hold{ContainerID: "c1"}), cni.ErrNotHeld) {
		c.Errorf("holds after Remove: %+v, %v", held, err)
	}
	expect.NoError(c, c.Unhold(c.ctx, cni.Hold{Network: "tiny"}))
}

func (c *contract) guards() {
	c.is("an unknown class", c.Guard(c.ctx, cni.GuardOptions{Classes: 0x80}), cni.ErrInvalidArgument)
	c.is("no options for GC", c.Guard(c.ctx, cni.GuardOptions{GCInterval: time.Hour}), cni.ErrInvalidArgument)
	c.attach("c1", onPods)
	ctx, cancel := context.WithCancel(c.ctx)
	events, ended := make(chan cni.GuardEvent, 100), make(chan error, 1)
	go func() {
		ended <- c.Guard(ctx, cni.GuardOptions{Report: func(e cni.GuardEvent) {
			if e.Kind != cni.GuardLooked && e.Kind != cni.GuardUnguarded {
				events <- e
			}
		}})
	}()
	next := func(kind cni.GuardEventKind) cni.GuardEvent {
		c.Helper()
		e := expect.Await(c.T, "an event", events)
		if e.Kind != kind || e.Time.IsZero() {
			c.Errorf("event %v, want one that is %s", e, kind)
		}
		return e
	}
	next(cni.GuardBegun)
	c.Break("c1")
	if e := next(cni.GuardRepaired); e.ContainerID != "c1" || e.Difference == nil || e.Difference.Network != "pods" {
		c.Errorf("event %+v", e)
	}
	expect.Same(c, "verdict", c.state("c1"), cni.StateHealthy)
	expect.NoError(c, c.Hold(c.ctx, cni.Hold{ContainerID: "c1"}))
	c.Break("c1")
	next(cni.GuardHeld)
	expect.NoError(c, c.Unhold(c.ctx, cni.Hold{ContainerID: "c1"}))
	next(cni.GuardRepaired)
	cancel()
	expect.NoError(c, expect.Await(c.T, "the end of the Guard", ended))
	c.detach("c1")
}
