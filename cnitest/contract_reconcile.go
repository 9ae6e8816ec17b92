package cnitest

import (
	"net/netip"
	"strings"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
)

// reconciled returns the outcome of a Reconcile that must know all containers.
func (c *contract) reconciled(o cni.ReconcileOptions, expected ...cni.Expected) *cni.ReconcileReport {
	c.Helper()
	report, err := c.Reconcile(c.ctx, expected, o)
	expect.NoError(c, err)
	if len(report.Containers) != len(expected) {
		c.Fatalf("report on %d containers, want %d:\n%v", len(report.Containers), len(expected), report)
	}
	for i, e := range expected {
		expect.Same(c, "order", report.Containers[i].Health.ContainerID, e.ContainerID)
	}
	return report
}

func (c *contract) reconciles() {
	at := map[string]string{"never": c.NetNS()}
	for _, id := range []string{"healthy", "broken", "held", "gone", "moved", "surplus"} {
		at[id], _ = c.attach(id, onPods)
	}
	_, err := c.start(cni.WithOwner("other")).Setup(c.ctx, "others", c.NetNS(), onPods)
	expect.NoError(c, err)
	c.Break("broken")
	c.Break("held")
	expect.NoError(c, c.Hold(c.ctx, cni.Hold{ContainerID: "held"}))
	c.EndNetNS(at["gone"])
	at["moved"] = c.NetNS()
	before := c.recorded()

	c.Runtime = c.start()
	for _, bad := range [][]cni.Expected{{{ContainerID: "a/b"}}, {{ContainerID: "c"}, {ContainerID: "c"}}} {
		_, err := c.Reconcile(c.ctx, bad, cni.ReconcileOptions{})
		c.is("bad IDs", err, cni.ErrInvalidArgument)
	}
	var all []cni.Expected
	wants := []struct {
		id       string
		state    cni.HealthState
		decision cni.Decision
		err      error
	}{
		{"moved", cni.StateElsewhere, cni.DecideReport, cni.ErrInvalidNetNS},
		{"broken", cni.StateBroken, cni.DecideRepair, nil},
		{"healthy", cni.StateHealthy, "", nil},
		{"held", cni.StateBroken, cni.DecideReport, nil},
		{"gone", cni.StateGone, cni.DecideReport, nil},
		{"never", cni.StateNotAttached, cni.DecideReport, cni.ErrNotAttached},
	}
	for _, w := range wants {
		all = append(all, cni.Expected{ContainerID: w.id, NetNS: at[w.id]})
	}
	report := c.reconciled(cni.ReconcileOptions{}, all...)
	expect.Same(c, "unexpected", report.Unexpected, []string{"surplus"})
	for i, w := range wants {
		got := report.Containers[i]
		if got.Health.State != w.state || got.Decision != w.decision || got.Result != nil || got.Lost != nil || (got.Repair != nil) != (w.decision == cni.DecideRepair) {
			c.Errorf("outcome %+v, want %s and %q", got, w.state, w.decision)
		}
		if failed := w.id != "healthy" && w.id != "broken"; (got.Err != nil) != failed {
			c.Errorf("error %v", got.Err)
		}
		if w.err != nil {
			c.is(w.id, got.Err, w.err)
		}
	}
	expect.Same(c, "on record", c.recorded(), before)
	expect.Same(c, "verdicts", []cni.HealthState{c.state("broken"), c.state("held")}, []cni.HealthState{cni.StateHealthy, cni.StateBroken})

	c.decides(all[0], all[3])
	c.detach("healthy", "broken", "held", "gone", "moved", "surplus", "others")
}

// decides: a caller's decision counts for held containers too.
func (c *contract) decides(moved, held cni.Expected) {
	c.Helper()
	one := c.reconciled(cni.ReconcileOptions{Decide: func(cni.Health) cni.Decision { return cni.DecideRepair }}, held, moved)
	expect.NoError(c, one.Containers[0].Err)
	c.is("repair of what is elsewhere", one.Containers[1].Err, cni.ErrNotRepairable)
	one = c.reconciled(cni.ReconcileOptions{Decide: func(cni.Health) cni.Decision { return "x" }}, moved)
	c.is("an unknown decision", one.Containers[0].Err, cni.ErrInvalidArgument)
}

// replacing has Reconcile replace whatever is not healthy.
var replacing = cni.ReconcileOptions{Decide: func(cni.Health) cni.Decision { return cni.DecideReplace }}

func (c *contract) reconcileReplaces() {
	all := []cni.Expected{{ContainerID: "never"}, {ContainerID: "healthy"}, {ContainerID: "broken"}, {ContainerID: "gone"}, {ContainerID: "moved"}}
	had := map[string][]netip.Addr{}
	for i := range all {
		e := &all[i]
		if e.NetNS = c.NetNS(); e.ContainerID == "never" {
			continue
		}
		path, result := c.attach(e.ContainerID, onPods)
		had[e.ContainerID] = []netip.Addr{result.IPv4().IP(), result.IPv6().IP()}
		e.Options = []cni.NamespaceOpts{onPods}
		switch e.ContainerID {
		case "healthy", "broken":
			e.NetNS = path
		case "gone":
			c.EndNetNS(path)
		}
	}
	c.Break("broken")
	c.Runtime = c.start()
	report := c.reconciled(replacing, all...)
	expect.NoError(c, report.Err())
	for i, e := range all {
		got := report.Containers[i]
		if e.ContainerID == "healthy" {
			if got.Decision != "" || got.Result != nil {
				c.Errorf("a healthy container: %+v", got)
			}
			continue
		}
		if got.Decision != cni.DecideReplace || got.Result == nil || got.Lost != nil {
			c.Fatalf("%s: %+v", e.ContainerID, got)
		}
		expect.NoError(c, c.Check(c.ctx, e.ContainerID, e.NetNS, e.Options...))
		if want := had[e.ContainerID]; want != nil {
			expect.Same(c, "addresses of "+e.ContainerID, []netip.Addr{got.Result.IPv4().IP(), got.Result.IPv6().IP()}, want)
		}
		again, err := c.Lookup(e.ContainerID)
		expect.NoError(c, err)
		expect.Same(c, "result of Lookup", c.asText(again), c.asText(got.Result))
	}
	report = c.reconciled(replacing, all...)
	for _, one := range report.Containers {
		expect.Same(c, "verdict after the replacement", one.Health.State, cni.StateHealthy)
	}
	c.detach("never", "healthy", "broken", "gone", "moved")
	c.losesAddress()
}

// losesAddress: the network has other addresses by now.
func (c *contract) losesAddress() {
	_, result := c.attach("c1", onTiny)
	c.Runtime = c.startWith(contractPods, strings.ReplaceAll(contractTiny, "10.62.0.", "10.63.0."))
	path := c.NetNS()
	one := c.reconciled(replacing, cni.Expected{ContainerID: "c1", NetNS: path, Options: []cni.NamespaceOpts{onTiny}}).Containers[0]
	expect.NoError(c, one.Err)
	tiny := func(r *cni.Result) netip.Addr { return r.Networks[0].Interfaces[1].Addresses[0].IP() }
	expect.Same(c, "lost", one.Lost, []netip.Addr{tiny(result)})
	if got := tiny(one.Result); !netip.MustParsePrefix("10.63.0.0/29").Contains(got) {
		c.Errorf("address %v", got)
	}
	c.detach("c1")
}

func (c *contract) reconcileRefuses() {
	path, _ := c.attach("c1", onPods)
	_, err := c.start(cni.WithOwner("other")).Setup(c.ctx, "others", c.NetNS(), onPods)
	expect.NoError(c, err)
	before, there := c.recorded(), c.NetNS()
	gone := c.NetNS()
	c.EndNetNS(gone)
	for what, bad := range map[string]struct {
		e    cni.Expected
		kind error
	}{
		"an unknown network":       {cni.Expected{ContainerID: "c1", NetNS: there, Options: []cni.NamespaceOpts{cni.WithNetwork("none")}}, cni.ErrNotFound},
		"a namespace that is gone": {cni.Expected{ContainerID: "c1", NetNS: gone}, cni.ErrInvalidNetNS},
		"another's container":      {cni.Expected{ContainerID: "others", NetNS: there}, cni.ErrAlreadyAttached},
		"another's interface":      {cni.Expected{ContainerID: "c2", NetNS: path}, cni.ErrAlreadyAttached},
	} {
		one := c.reconciled(replacing, bad.e).Containers[0]
		c.is(what, one.Err, bad.kind)
		if one.Result != nil {
			c.Errorf("%s: a result beside the error", what)
		}
		expect.Same(c, "on record after "+what, c.recorded(), before)
	}
	bare, err := c.New(cni.WithOwner(contractOwner), cni.WithPluginConfDir("/nonexistent"))
	expect.NoError(c, err)
	report, err := bare.Reconcile(c.ctx, []cni.Expected{{ContainerID: "c1", NetNS: there}}, replacing)
	expect.NoError(c, err)
	c.is("no networks", report.Containers[0].Err, cni.ErrCNINotInitialized)

	c.FailAt("DEL", "pods", errScripted)
	one := c.reconciled(replacing, cni.Expected{ContainerID: "c1", NetNS: there, Options: []cni.NamespaceOpts{onPods}}).Containers[0]
	c.left(one.Err)
	c.wantRecorded("after a removal that failed", "c1/eth0 pods failed", "others/eth0 pods attached")
	c.FailAt("DEL", "pods", nil)
	c.FailAt("ADD", "pods", errScripted)
	one = c.reconciled(replacing, cni.Expected{ContainerID: "c1", NetNS: there, Options: []cni.NamespaceOpts{onPods}}).Containers[0]
	c.is("a Setup that fails", one.Err, errScripted)
	c.wantRecorded("after a Setup that failed", "others/eth0 pods attached")
	c.FailAt("ADD", "pods", nil)
	c.detach("others")
}
