package behaviour_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/reconcile"
)

// always decides the same about each container.
func always(d reconcile.Decision) reconcile.Options {
	return reconcile.Options{Decide: func(cni.Health) reconcile.Decision { return d }}
}

// reconciled returns the outcome for c1 with its task in the namespace of that name.
func reconciled(h *realHost, r *cni.Runtime, name string, o reconcile.Options, opts ...cni.NamespaceOpts) reconcile.Container {
	h.T.Helper()
	expected := []reconcile.Expected{{ContainerID: "c1", NetNS: h.Path("netns", name), Options: opts}}
	report := expect.Value(reconcile.Run(h.T.Context(), r, expected, o))(h.T)
	h.T.Log(report)
	one := report.Containers[0]
	expect.Same(h.T, "of c1", []any{one.Health.ContainerID, len(report.Containers)}, []any{"c1", 1})
	expect.Same(h.T, "an error", report.Err() != nil, one.Err != nil)
	return one
}

// asking is a network with addresses of both families that declares capabilities.
func asking(h *realHost, capabilities, subnet string) cni.Opt {
	return cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [
		{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "forceAddress": true, "ipMasq": true, "capabilities": {%s},
		 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}], [{"subnet": "fd00:77::/64"}]]}},
		{"type": "firewall"}]}`, capabilities, h.Path("ipam"), subnet))
}

// TestReconcile: the verdict on a container for each thing that can have happened to it,
// and what a repair and a replacement make of it. A replacement leaves nothing of the former
// attachment, and lists its addresses.
func TestReconcile(t *testing.T) {
	again := func(h *realHost, r *cni.Runtime) { // in a new namespace, while the task lives in the old one
		expect.NoError(h.T, r.Remove(h.T.Context(), "c1", ""))
		testhost.MustSetUp(h.T, r, "c1", h.Container("new"))
	}
	for what, tt := range map[string]struct {
		happens        func(h *realHost, r *cni.Runtime)
		state          cni.HealthState
		repaired       error // of a repair; nil if it succeeds
		replaced       error // of a replacement
		withoutAddress bool  // it is not on record which address it had
	}{
		"nothing": {happens: func(*realHost, *cni.Runtime) {}, state: cni.StateHealthy},
		"a flushed firewall": {happens: func(h *realHost, _ *cni.Runtime) { h.sh("nft flush ruleset") },
			state: cni.StateBroken},
		"a lost interface": {happens: func(h *realHost, _ *cni.Runtime) { h.DelLink("c1", "eth0") },
			state: cni.StateBroken, repaired: cni.ErrNotRepairable},
		"attached again elsewhere": {happens: again, state: cni.StateElsewhere, repaired: cni.ErrNotRepairable},
		"another namespace at its path": {happens: func(h *realHost, _ *cni.Runtime) {
			expect.NoError(h.T, netns.Remove(h.Path("netns", "c1")))
			h.Container("c1")
		}, state: cni.StateElsewhere, repaired: cni.ErrNotRepairable},
		"its task is gone": {happens: func(h *realHost, _ *cni.Runtime) { expect.NoError(h.T, netns.Remove(h.Path("netns", "c1"))) },
			state: cni.StateElsewhere, repaired: cni.ErrNotRepairable, replaced: cni.ErrInvalidNetNS},
		"a reboot": {happens: func(h *realHost, _ *cni.Runtime) {
			expect.NoError(h.T, netns.Remove(h.Path("netns", "c1")))
			h.Container("c1")
			h.ChangeRecord("c1", func(rec *record.Record) { rec.Boot = "another" })
		}, state: cni.StateGone, repaired: cni.ErrNotRepairable},
		"a Remove": {happens: func(h *realHost, r *cni.Runtime) { expect.NoError(h.T, r.Remove(h.T.Context(), "c1", "")) },
			state: cni.StateNotAttached, repaired: cni.ErrNotAttached, withoutAddress: true},
		"a damaged record": {happens: func(h *realHost, _ *cni.Runtime) { spoilBase(h.Host, "c1", "{") },
			state: cni.StateUnknown, repaired: cni.ErrNotRepairable, replaced: record.ErrBad},
		"go-cni's": {happens: func(h *realHost, _ *cni.Runtime) { h.Unrecord("c1") }, // as for Setup, only libcni's cache knows it
			state: cni.StateUnknown, repaired: cni.ErrNotAttached, replaced: cni.ErrAlreadyAttached},
		"another owner's": {happens: func(h *realHost, r *cni.Runtime) {
			again(h, r)
			h.ChangeRecord("c1", func(rec *record.Record) { rec.Owner = "other" })
		}, state: cni.StateElsewhere, repaired: cni.ErrNotRepairable, replaced: cni.ErrAlreadyAttached},
		"an interface that is not its own": {happens: func(h *realHost, r *cni.Runtime) {
			again(h, r)
			h.Inside(h.Path("netns", "c1"), func() error {
				return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}})
			})
		}, state: cni.StateElsewhere, repaired: cni.ErrNotRepairable, replaced: cni.ErrAlreadyAttached},
	} {
		t.Run(what, func(t *testing.T) {
			h := newRealHost(t)
			opts := []cni.Opt{cni.WithPluginDir(nil), cni.WithoutReaping(), asking(h, "", "10.77.0.0/24")}
			r := h.Runtime(opts...)
			expect.Value(r.Setup(t.Context(), "neighbour", h.Container("neighbour")))(t) // so that c1 has not the first address
			path, before := h.Container("c1"), h.Audit()
			result := testhost.MustSetUp(t, r, "c1", path)
			tt.happens(h, r)
			if again, err := r.Lookup("c1"); err == nil {
				result = again
			}

			happened := h.Audit()
			reported := reconciled(h, h.Runtime(opts...), "c1", always(reconcile.Report))
			expect.Same(t, "state", reported.Health.State, tt.state)
			expect.Same(t, "reported", reported.Err != nil, tt.state != cni.StateHealthy)
			h.WantClean(happened)

			repaired := reconciled(h, h.Runtime(opts...), "c1", always(reconcile.Repair))
			if tt.repaired != nil {
				expect.Is(t, repaired.Err, tt.repaired)
				h.WantClean(happened)
			} else {
				expect.NoError(t, repaired.Err)
			}

			happened = h.Audit()
			replaced := reconciled(h, h.Runtime(opts...), "c1", always(reconcile.Replace))
			switch {
			case tt.replaced != nil:
				expect.Is(t, replaced.Err, tt.replaced)
				h.WantClean(happened) // nothing was removed
				return
			case tt.repaired == nil:
				expect.Same(t, "healthy now", replaced.Decision, reconcile.Decision(""))
				h.WantClean(happened)
			default:
				expect.NoError(t, replaced.Err)
				lost := []netip.Addr{result.IPv4().IP(), result.IPv6().IP()}
				if tt.withoutAddress {
					lost = nil
				}
				expect.Same(t, "lost", replaced.Lost, lost)
			}
			after := reconciled(h, h.Runtime(opts...), "c1", always(reconcile.Report))
			expect.Same(t, "state after", after.Health.State, cni.StateHealthy)
			expect.Same(t, "in its namespace", hasLinkAt(h.T, h.Path("netns", "c1"), "eth0"), true)
			if strings.Contains(what, "elsewhere") {
				expect.Same(t, "in the other namespace", hasLinkAt(h.T, h.Path("netns", "new"), "eth0"), false)
			}
			expect.NoError(t, r.Remove(t.Context(), "c1", ""))
			if what != "a flushed firewall" && what != "a reboot" { // a real one would have ended what is on the host
				left, gone := h.Left(before)
				// Each program makes its mark of the network again.
				expect.Unchanged(t, "host", left, gone.Without(func(line string) bool { return strings.Contains(line, h.Path("state", "embedcni", "networks")) }))
			}
			expect.NoError(t, r.Remove(t.Context(), "neighbour", ""))
		})
	}
}

// TestReconcileRepairsByDefault, and leaves alone what a repair does not help.
func TestReconcileRepairsByDefault(t *testing.T) {
	h := newRealHost(t)
	opts := []cni.Opt{cni.WithPluginDir(nil), asking(h, "", "10.77.0.0/24")}
	r := h.Runtime(opts...)
	var expected []reconcile.Expected
	for _, id := range []string{"broken", "healthy", "moved", "unexpected"} {
		testhost.MustSetUp(t, r, id, h.Container(id))
		if id != "unexpected" {
			expected = append(expected, reconcile.Expected{ContainerID: id, NetNS: h.Path("netns", id)})
		}
	}
	testhost.MustSetUp(t, h.Runtime(append(opts, cni.WithOwner("other"))...), "others", h.Container("others"))
	expected[2].NetNS = h.Container("old")
	expected = append(expected, reconcile.Expected{ContainerID: "never", NetNS: h.Container("never")})

	h.Inside(h.Path("netns", "broken"), func() error { return nil })
	h.Change("", hostEnd(t, r, "broken"), (*netlink.Handle).LinkSetNoMaster)
	report := expect.Value(reconcile.Run(t.Context(), r, expected, reconcile.Options{}))(t)
	t.Log(report)
	var got []string
	for _, c := range report.Containers {
		got = append(got, fmt.Sprintf("%s %s, %q, ok %v", c.Health.ContainerID, c.Health.State, c.Decision, c.Err == nil))
	}
	expect.Same(t, "outcomes", got, []string{
		`broken broken, "repair", ok true`, `healthy healthy, "", ok true`, `moved elsewhere, "report", ok false`, `never not attached, "report", ok false`,
	})
	expect.Same(t, "repaired", report.Containers[0].Repair.Repaired[0].Kind, "bridge port")
	expect.Same(t, "unexpected", report.Unexpected, []string{"unexpected"})
	expect.Is(t, report.Err(), cni.ErrInvalidNetNS, cni.ErrNotAttached)

	var encoded struct {
		Containers []struct{ Err string }
		Unexpected []string
	}
	data := expect.Value(json.Marshal(report))(t)
	expect.NoError(t, json.Unmarshal(data, &encoded))
	expect.Same(t, "encoded", []string{encoded.Containers[1].Err, encoded.Containers[2].Err}, []string{"", report.Containers[2].Err.Error()})
	expect.Contains(t, "printed", report.String(), "unexpected: on record, and not expected")
}

// hostEnd returns the name of a container's interface on the host.
func hostEnd(t *testing.T, r *cni.Runtime, id string) string {
	t.Helper()
	result := expect.Value(r.Lookup(id))(t)
	for _, i := range result.Networks[0].Interfaces {
		if i.Sandbox == "" && i.Name != "cni0" {
			return i.Name
		}
	}
	t.Fatal("the result names no interface on the host")
	return ""
}

// TestAReplacementSaysWhatItLost, unless its options ask for the addresses that it had.
func TestAReplacementSaysWhatItLost(t *testing.T) {
	for what, tt := range map[string]struct {
		capabilities string
		ask          func(ips []string) cni.NamespaceOpts
	}{
		"by the argument":   {ask: func(ips []string) cni.NamespaceOpts { return cni.WithConfigArgs("ips", ips) }},
		"by the capability": {capabilities: `"ips": true`, ask: func(ips []string) cni.NamespaceOpts { return cni.WithCapability("ips", ips) }},
	} {
		t.Run(what, func(t *testing.T) {
			h := newRealHost(t)
			r := h.Runtime(cni.WithPluginDir(nil), asking(h, tt.capabilities, "10.77.0.0/24"))
			testhost.MustSetUp(t, r, "neighbour", h.Container("neighbour"))
			result := testhost.MustSetUp(t, r, "c1", h.Container("c1"))
			expect.NoError(t, r.Remove(t.Context(), "neighbour", ""))

			h.DelLink("c1", "eth0")
			kept := reconciled(h, r, "c1", always(reconcile.Replace), tt.ask([]string{result.IPv4().Prefix.String(), result.IPv6().Prefix.String()}))
			expect.NoError(t, kept.Err)
			expect.Value(net.InterfaceByName(hostEnd(t, r, "c1")))(t) // it is where the caller is, and not in the process's namespace
			expect.Same(t, "address", kept.Result.IPv4(), result.IPv4())
			expect.Same(t, "lost", kept.Lost, nil)

			h.DelLink("c1", "eth0")
			lost := reconciled(h, r, "c1", always(reconcile.Replace))
			expect.Same(t, "still has one", lost.Result.IPv4().IP().IsValid(), true)
			expect.Same(t, "lost", lost.Lost[0], result.IPv4().IP())
			expect.NoError(t, r.Remove(t.Context(), "c1", ""))
			expect.Same(t, "reservations", expect.Value(filepath.Glob(h.Path("ipam", "net", "[1-9f]*")))(t), nil)
		})
	}
}

// TestAReplacementThatFailsSaysSo: nothing is removed for arguments that are wrong, and
// nothing remains of an ADD that failed.
func TestAReplacementThatFailsSaysSo(t *testing.T) {
	h := newRealHost(t)
	r := h.Runtime(cni.WithPluginDir(nil), asking(h, "", "10.77.0.0/24"))
	path := h.Container("c1")
	before := h.Audit()
	testhost.MustSetUp(t, r, "c1", path)
	h.DelLink("c1", "eth0")
	broken := h.Audit()
	replace := func(r *cni.Runtime, opts ...cni.NamespaceOpts) reconcile.Container {
		report, err := reconcile.Run(t.Context(), r, []reconcile.Expected{{ContainerID: "c1", NetNS: path, Options: opts}}, always(reconcile.Replace))
		expect.NoError(t, err)
		return report.Containers[0]
	}
	expect.Is(t, replace(r, cni.WithNetwork("lacking")).Err, cni.ErrNotFound)
	expect.Is(t, replace(r, cni.WithArgs("a;b", "c")).Err, cni.ErrInvalidArgument)
	expect.Is(t, replace(h.Runtime(cni.WithPluginDir(nil))).Err, cni.ErrCNINotInitialized)
	h.WantClean(broken)

	lacking := h.Runtime(cni.WithPluginDir(nil), cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "lacking"}]}`)))
	failed := replace(lacking)
	expect.Is(t, failed.Err, cni.ErrPluginNotFound)
	expect.Same(t, "lost", len(failed.Lost), 2)
	h.WantClean(before)

	for what, expected := range map[string][]reconcile.Expected{
		"named twice": {{ContainerID: "c1", NetNS: path}, {ContainerID: "c2", NetNS: path}, {ContainerID: "c1", NetNS: path}},
		"an ID":       {{ContainerID: "../c1", NetNS: path}},
	} {
		report, err := reconcile.Run(t.Context(), r, expected, reconcile.Options{})
		expect.Is(t, err, cni.ErrInvalidArgument)
		expect.Same(t, what, report, nil)
	}
	empty := expect.Value(reconcile.Run(t.Context(), r, nil, reconcile.Options{}))(t)
	expect.Same(t, "nothing expected", empty, &reconcile.Result{})
}

// TestReconcileComparesTheNamespace, and not the path: a task's namespace has several.
func TestReconcileComparesTheNamespace(t *testing.T) {
	h := newRealHost(t)
	r := h.Runtime(cni.WithPluginDir(nil), asking(h, "", "10.77.0.0/24"))
	testhost.MustSetUp(t, r, "c1", h.Container("c1"))
	for path, want := range map[string]cni.HealthState{
		h.Pin("c1"): cni.StateHealthy, h.Path("netns", "c1"): cni.StateHealthy,
		"": cni.StateElsewhere, "/proc/thread-self/ns/net": cni.StateElsewhere, h.Path("state"): cni.StateElsewhere,
	} {
		before := h.Audit()
		report := expect.Value(reconcile.Run(t.Context(), r, []reconcile.Expected{{ContainerID: "c1", NetNS: path}}, reconcile.Options{}))(t)
		expect.Same(t, path, report.Containers[0].Health.State, want)
		h.WantClean(before)
	}
}

// TestReconcileDecidesAboutWhatItHasSeen: a container that another call has attached anew
// is not replaced.
func TestReconcileDecidesAboutWhatItHasSeen(t *testing.T) {
	h := newRealHost(t)
	r := h.Runtime(cni.WithPluginDir(nil), asking(h, "", "10.77.0.0/24"))
	testhost.MustSetUp(t, r, "c1", h.Container("c1"))
	h.DelLink("c1", "eth0")
	for what, anew := range map[string]bool{"attached anew": true, "removed": false} {
		again := reconciled(h, r, "c1", reconcile.Options{Decide: func(cni.Health) reconcile.Decision {
			expect.NoError(t, r.Remove(t.Context(), "c1", ""))
			if anew {
				testhost.MustSetUp(t, r, "c1", h.Path("netns", "c1"))
			}
			return reconcile.Replace
		}})
		expect.Is(t, again.Err, cni.ErrBusy)
		expect.Says(t, what, again.Err, `set up container "c1": it has changed since the verdict; call reconcile.Run again: another call for the container is under way`)
		expect.Same(t, what, hasLinkAt(h.T, h.Path("netns", "c1"), "eth0"), anew)
		if _, err := r.Setup(t.Context(), "c1", h.Path("netns", "c1")); err != nil {
			expect.Is(t, err, cni.ErrAlreadyAttached)
		}
		h.DelLink("c1", "eth0")
	}
}

// TestReconcileIsNotInItsOwnWay: a replacement has the Runtime remove no abandoned container
// that is still to be replaced.
func TestReconcileIsNotInItsOwnWay(t *testing.T) {
	h := newRealHost(t)
	for range 10 {
		r := h.Runtime(cni.WithPluginDir(nil), asking(h, "", "10.77.0.0/24"), cni.WithoutReaping())
		testhost.MustSetUp(t, r, "c1", h.Container("c1"))
		expect.NoError(t, netns.Remove(h.Path("netns", "c1")))
		again := h.Runtime(cni.WithPluginDir(nil), asking(h, "", "10.77.0.0/24"))
		expected := []reconcile.Expected{{ContainerID: "c2", NetNS: h.Container("c2")}, {ContainerID: "c3", NetNS: h.Container("c3")}, {ContainerID: "c1", NetNS: h.Container("c1")}}
		expect.NoError(t, expect.Reported(reconcile.Run(t.Context(), again, expected, reconcile.Options{
			Decide: func(cni.Health) reconcile.Decision { return reconcile.Replace },
		})))
		for _, e := range expected {
			expect.NoError(t, r.Remove(t.Context(), e.ContainerID, ""), netns.Remove(e.NetNS))
		}
	}
}

// TestReconcileLeavesWhatIsHeld, unless its caller decides otherwise.
func TestReconcileLeavesWhatIsHeld(t *testing.T) {
	h := newRealHost(t)
	r := h.Runtime(cni.WithPluginDir(nil), asking(h, "", "10.77.0.0/24"))
	testhost.MustSetUp(t, r, "c1", h.Container("c1"))
	h.Change("", hostEnd(t, r, "c1"), (*netlink.Handle).LinkSetNoMaster)
	expect.NoError(t, guard.Hold{Network: "net"}.Begin(t.Context(), r))
	before := h.Audit()
	held := reconciled(h, r, "c1", reconcile.Options{})
	expect.Same(t, "decision", held.Decision, reconcile.Report)
	expect.Says(t, "error", held.Err, "held")
	h.WantClean(before)
	expect.NoError(t, reconciled(h, r, "c1", always(reconcile.Repair)).Err)
	expect.Same(t, "decision", reconciled(h, r, "c1", reconcile.Options{}).Decision, reconcile.Decision(""))
}

const replaceVerb = "REPLACE"

// replaceMain replaces a container in another process.
func replaceMain(ctx context.Context, r *cni.Runtime, j testhost.Job) error {
	report, err := reconcile.Run(ctx, r, []reconcile.Expected{{ContainerID: j.ID, NetNS: j.NetNS}}, always(reconcile.Replace))
	if err != nil {
		return err
	}
	return report.Err()
}

// TestAReplacementThatIsKilled is completed by the next one: the DEL is repeated, whatever
// the ADD had begun is removed first, and no plugin of the dead process goes on.
func TestAReplacementThatIsKilled(t *testing.T) {
	for _, verb := range []string{"DEL", "ADD"} {
		t.Run(verb, func(t *testing.T) {
			s := newStage(t)
			conf, path, gate := s.Network("net", "1.0.0", "p"), s.Container("c1"), s.Gate("p")
			r := s.Runtime(cni.WithConfListBytes(conf))
			testhost.MustSetUp(t, r, "c1", path)
			s.On("p", verb, scripted.Action{Block: gate})
			process, done := s.ProcessFor(testhost.Job{Verb: replaceVerb, ID: "c1", NetNS: path, Conf: conf}, nil)
			letGo := s.Arrive(gate)
			expect.NoError(t, process.Kill())
			expect.Await(t, "the process that is killed", done)
			s.On("p", verb, scripted.Action{})
			s.TakeCalls()

			report, err := reconcile.Run(t.Context(), r, []reconcile.Expected{{ContainerID: "c1", NetNS: path}}, always(reconcile.Replace))
			expect.NoError(t, err)
			t.Log(report)
			expect.Same(t, "state", report.Containers[0].Health.State, cni.StateUnknown)
			expect.NoError(t, report.Err())
			expect.Same(t, "calls", s.Took(), []string{"DEL p c1/eth0", "ADD p c1/eth0"})
			expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
			letGo()
			expect.NoError(t, r.Remove(t.Context(), "c1", ""))
			expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
		})
	}
}
