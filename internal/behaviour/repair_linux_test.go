package behaviour_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/reconcile"
)

// repaired is the report on a container.
func (s *stage) repaired(r *cni.Runtime, id string) *cni.RepairReport {
	s.T.Helper()
	return expect.Value(r.Repair(s.T.Context(), id, cni.RepairOptions{}))(s.T)
}

// TestRepairOfOtherPluginsOnlyAsks them for CHECK: the specification forbids a second
// ADD. What they say is wrong is reported, with what to do.
func TestRepairOfOtherPluginsOnlyAsks(t *testing.T) {
	s, r, _ := inhabited(t, "c1")
	expect.NoError(t, s.repaired(r, "c1").Err())
	expect.Same(t, "calls", s.Took(), []string{"CHECK p c1/eth0", "CHECK q c1/eth0"})

	s.On("q", "CHECK", testhost.Says(100, "its part is gone"))
	report := s.repaired(r, "c1")
	expect.Is(t, report.Err(), cni.ErrNotRepairable)
	expect.Same(t, "messages", testhost.Messages(report.Err()), []string{"q: its part is gone"})
	expect.Same(t, "error", *testhost.AsError(t, report.Err()), cni.Error{
		Op: "CHECK", Network: "net", Plugin: "q", PluginKind: "executable", ContainerID: "c1", IfName: "eth0",
		Code: 100, Msg: "its part is gone", Err: testhost.AsError(t, report.Err()).Err,
	})
	expect.Same(t, "repaired and remaining", len(report.Repaired)+len(report.Remaining), 0)
	expect.Same(t, "calls", s.Took(), []string{"CHECK p c1/eth0", "CHECK q c1/eth0"})
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}

// TestRepairOfAConfigurationWithoutCheckSaysSo.
func TestRepairOfAConfigurationWithoutCheckSaysSo(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "0.3.1", "p")))
	testhost.MustSetUp(t, r, "c1", s.Container("c1"))
	s.AddLink("c1", "eth0")
	s.TakeCalls()
	expect.Is(t, s.repaired(r, "c1").Err(), libcni.ErrorCheckNotSupp)
	expect.Same(t, "calls", s.Took(), []string{})
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}

// TestRepairRefuses containers that nothing may be added to.
func TestRepairRefuses(t *testing.T) {
	for what, test := range map[string]struct {
		do   func(s *stage, r *cni.Runtime)
		want []error
	}{
		"its namespace is gone":    {func(s *stage, _ *cni.Runtime) { s.RemoveNetNS("c1"); s.Unpin() }, []error{cni.ErrNotRepairable}},
		"its path leads nowhere":   {func(s *stage, _ *cni.Runtime) { s.RemoveNetNS("c1") }, []error{cni.ErrNotRepairable, cni.ErrInvalidNetNS}},
		"its path leads to others": {func(s *stage, _ *cni.Runtime) { s.RemoveNetNS("c1"); s.Container("c1") }, []error{cni.ErrNotRepairable, cni.ErrInvalidNetNS}},
		"its record is damaged":    {func(s *stage, _ *cni.Runtime) { spoilBase(s.Host, "c1", "{") }, []error{cni.ErrNotRepairable}},
		"it is removed":            {func(s *stage, r *cni.Runtime) { expect.NoError(s.T, r.Remove(s.T.Context(), "c1", "")) }, []error{cni.ErrNotAttached}},
	} {
		t.Run(what, func(t *testing.T) {
			s, r, _ := inhabited(t, "c1")
			test.do(s, r)
			s.TakeCalls()
			report, err := r.Repair(t.Context(), "c1", cni.RepairOptions{Inside: true})
			expect.Is(t, err, test.want...)
			expect.Same(t, "report", report, nil)
			expect.Same(t, "calls", s.Took(), []string{})
			expect.NoError(t, r.Remove(t.Context(), "c1", ""))
		})
	}
	s := newStage(t)
	for id, want := range map[string]error{"c1": cni.ErrNotAttached, "": cni.ErrInvalidArgument, "../x": cni.ErrInvalidArgument} {
		expect.Is(t, errOf(s.Runtime().Repair(t.Context(), id, cni.RepairOptions{})), want)
	}
}

// TestRepairLeavesAnAttachmentThatIsBeingRemoved: its removal failed, and the next one
// would remove it again. The container's other attachment is repaired.
func TestRepairLeavesAnAttachmentThatIsBeingRemoved(t *testing.T) {
	s := newStage(t)
	s.On("p", "DEL", testhost.Says(100, "not now"))
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")), cni.WithConfListBytes(s.Network("two", "1.0.0", "q")))
	testhost.MustSetUp(t, r, "c1", s.Container("c1"))
	s.AddLink("c1", "eth0")
	s.AddLink("c1", "eth1")
	fails(t, r.Remove(t.Context(), "c1", "", testhost.OnNet))
	s.TakeCalls()
	report := s.repaired(r, "c1")
	expect.Is(t, report.Err(), cni.ErrNotRepairable)
	e := testhost.AsError(t, report.Err())
	expect.Same(t, "about", fmt.Sprint(e.Op, " ", e.Network, " ", e.IfName, " ", len(report.Unknown)), "REPAIR net eth0 1")
	expect.Same(t, "calls", s.Took(), []string{"CHECK q c1/eth1"})
	s.On("p", "DEL", scripted.Action{})
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}

// TestRepairWaitsForOtherCalls for the container and for GC, as long as its context
// allows.
func TestRepairWaitsForOtherCalls(t *testing.T) {
	s, r, path := oneNetwork(t, "p")
	done, letGo := s.heldUp("p", "ADD", testhost.SetUp(t.Context(), r, "c1", path))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	expect.Is(t, errOf(r.Repair(ctx, "c1", cni.RepairOptions{})), context.DeadlineExceeded)
	repairing := testhost.Begin(func() error { return errOf(r.Repair(t.Context(), "c1", cni.RepairOptions{})) })
	letGo()
	expect.NoError(t, expect.Await(t, "Setup", done))
	s.AddLink("c1", "eth0")
	expect.NoError(t, expect.Await(t, "Repair", repairing))
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}

// TestRepairIsReported to the log and to the observer, with what was missing.
func TestRepairIsReported(t *testing.T) {
	h := newRealHost(t)
	var log bytes.Buffer
	var events []cni.Event
	c := testhost.Case{Plugins: []string{testhost.BridgeConf(`"ipMasq": true, "ipMasqBackend": "nftables", ` + testhost.HostLocal(testhost.V4Range))}}
	r := h.Runtime(cni.WithBuiltinPlugins(), cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))),
		cni.WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
		cni.WithObserver(func(_ context.Context, e cni.Event) { events = append(events, e) }))
	before := h.Audit()
	h.attach(r, "c1")
	h.sh("nft flush ruleset")
	log.Reset()
	events = nil
	report, err := r.Repair(t.Context(), "c1", cni.RepairOptions{})
	expect.NoError(t, err, report.Err())
	expect.That(t, len(report.Repaired) == 1 && report.Repaired[0].Kind == "rule" && report.Repaired[0].Plugin == "bridge", "report %v", report)
	for i := range events {
		events[i].Duration = 0
	}
	expect.Same(t, "events", events, []cni.Event{{
		Operation: "REPAIR", Network: "podnet", Plugin: "bridge", PluginKind: "built in", ContainerID: "c1", IfName: "eth0",
	}})
	expect.Contains(t, "log", log.String(), "level=INFO msg=repaired container=c1 network=podnet interface=eth0 plugin=bridge kind=rule")
	log.Reset()
	expect.NoError(t, h.repairedAgain(r, "c1"))
	expect.Same(t, "log", log.String(), "")
	h.detach(r, "c1")
	h.WantClean(before)
}

// repairedAgain returns an error unless there is nothing to repair.
func (h *realHost) repairedAgain(r *cni.Runtime, id string) error {
	report, err := r.Repair(h.T.Context(), id, cni.RepairOptions{})
	if err == nil && len(report.Repaired)+len(report.Remaining)+len(report.Unknown) > 0 {
		err = fmt.Errorf("there was something to repair: %v", report)
	}
	return err
}

// TestRepairLeavesALongDetectionToTheKernel: an administrator has it look for duplicates
// for minutes. Repair waits for a moment once, whatever is missing; the addresses are
// there, and the next Repair finds nothing to do.
func TestRepairLeavesALongDetectionToTheKernel(t *testing.T) {
	const most = 20 * time.Second // of which the detection may take 3, on a loaded machine
	damages := map[string]func(nl *netlink.Handle, eth0 netlink.Link) error{
		"down": (*netlink.Handle).LinkSetDown,
		"without addresses": func(nl *netlink.Handle, eth0 netlink.Link) error {
			all, err := nl.AddrList(eth0, netlink.FAMILY_ALL)
			for _, a := range all {
				if err == nil && a.IP.IsGlobalUnicast() {
					err = nl.AddrDel(eth0, &a)
				}
			}
			return err
		},
	}
	both := testhost.HostLocal(testhost.V4Range + `, [{"subnet": "fd77::/64"}], [{"subnet": "fd78::/64"}]`)
	for kind, conf := range map[string]string{
		"bridge": testhost.BridgeConf(both), "ptp": testhost.PtpConf(both), "macvlan": `{"type": "macvlan", "master": "up0", ` + both + `}`,
	} {
		for what, damage := range damages {
			t.Run(kind+", "+what, func(t *testing.T) {
				h := newRealHost(t)
				testhost.Uplink(h.RealHost)
				c := testhost.Case{Plugins: []string{conf}}
				r := h.Runtime(cni.WithPluginDir(nil), cni.WithConfListBytes(c.Conf("net", "1.0.0", h.Path("ipam"))))
				path := h.Container("c1")
				testhost.MustSetUp(t, r, "c1", path)
				h.Inside(path, func() error {
					const settings = "/proc/sys/net/ipv6/conf/eth0/"
					return errors.Join(os.WriteFile(settings+"dad_transmits", []byte("1000"), 0o644), os.WriteFile(settings+"accept_dad", []byte("1"), 0o644))
				})
				h.Change(path, "eth0", damage)
				begun := time.Now()
				report := expect.Value(r.Repair(t.Context(), "c1", cni.RepairOptions{Inside: true}))(t)
				t.Logf("%v: %v", time.Since(begun), report)
				expect.Within(t, "Repair", time.Since(begun), most)
				for _, left := range report.Remaining {
					expect.That(t, left.Kind != "address" && left.Kind != "interface", "it remains: %v: %v", left.Difference, left.Reason)
				}
				again := expect.Value(r.Repair(t.Context(), "c1", cni.RepairOptions{Inside: true}))(t)
				expect.Same(t, "repaired the second time", len(again.Repaired), 0)
				expect.NoError(t, r.Remove(t.Context(), "c1", ""))
			})
		}
	}
}

// blind are networks of the reference plugins whose CHECK fails for each healthy container.
var blind = []struct {
	name, plugins, says string
}{
	{name: "bridge without an IPAM plugin", plugins: `{"type": "bridge", "bridge": "br0"}`, says: "without an IPAM plugin"},
	{name: "bridge with an interface that is down", plugins: `{"type": "bridge", "bridge": "br0", "disableContainerInterface": true}`, says: "without an IPAM plugin"},
	{name: "a route in another table", plugins: `{"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": {"type": "static", "addresses": [{"address": "10.77.0.2/24"}],
		"routes": [{"dst": "10.8.0.0/16", "table": 300}]}}`, says: "finds nothing wrong"},
	{name: "ptp with a route in another table", plugins: `{"type": "ptp", "ipam": {"type": "static", "addresses": [{"address": "10.77.0.2/24", "gateway": "10.77.0.1"}],
		"routes": [{"dst": "10.8.0.0/16", "table": 300}]}}`, says: "finds nothing wrong"},
	{name: "macvlan with a single address", plugins: `{"type": "macvlan", "master": "up0", "ipam": {"type": "static", "addresses": [{"address": "10.77.0.2/32"}]}}`, says: "finds nothing wrong"},
	{name: "sysctl of several numbers", plugins: `{"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": {"type": "static", "addresses": [{"address": "10.77.0.2/24"}]}},
		{"type": "tuning", "dataDir": "TUNING", "sysctl": {"net.ipv4.ip_local_port_range": "2000 3000"}}`, says: "finds nothing wrong"},
	{name: "hardware address in capitals", plugins: `{"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": {"type": "static", "addresses": [{"address": "10.77.0.2/24"}]}},
		{"type": "tuning", "dataDir": "TUNING", "mac": "0A:58:0A:4D:00:02"}`, says: "finds nothing wrong"},
	{name: "bandwidth without limits", plugins: `{"type": "macvlan", "master": "up0", "ipam": {"type": "static", "addresses": [{"address": "10.77.0.2/24"}]}},
		{"type": "bandwidth", "capabilities": {"bandwidth": true}}`, says: "finds nothing wrong"},
}

// TestFault_F67_ACheckThatFailsForHealthyContainers makes none of them broken: the state is
// unknown, and nobody is repaired, replaced or removed for it, or kept in doubt.
func TestFault_F67_ACheckThatFailsForHealthyContainers(t *testing.T) {
	for _, tt := range blind {
		t.Run(tt.name, func(t *testing.T) {
			h := newRealHost(t)
			h.VethPair("up0", "up1")
			h.LinkUp("up0", "up1")
			conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "plugins": [%s]}`, strings.ReplaceAll(tt.plugins, "TUNING", h.Path("tuning")))
			r := h.Real(cni.WithConfListBytes([]byte(conf)))
			testhost.MustSetUp(t, r, "c1", h.Container("c1"))
			fails(t, r.Check(t.Context(), "c1", h.Path("netns", "c1")))
			one, report := healthOf(t, r, cni.HealthOptions{})
			t.Log(report)
			expect.Same(t, "state", one.State, cni.StateUnknown)
			expect.Same(t, "differences", len(one.Differences), 0)
			fails(t, one.Reason, tt.says, "failed (check)")
			h.wantLeftAlone(r)
		})
	}
}

// wantLeftAlone: whatever is done about broken containers is not done to c1.
func (h *realHost) wantLeftAlone(r *cni.Runtime) {
	t := h.T
	t.Helper()
	repaired, err := r.Repair(t.Context(), "c1", cni.RepairOptions{})
	expect.NoError(t, err, repaired.Err())
	report := expect.Value(r.Recover(t.Context()))(t)
	expect.Same(t, "recovered", *report, cni.Report{Adopted: []string{"c1"}})
	one := reconciled(h, r, "c1", reconcile.Options{})
	expect.Same(t, "decision", one.Decision, reconcile.Report)
	one = reconciled(h, r, "c1", reconcile.Options{Decide: func(h cni.Health) reconcile.Decision {
		if h.State == cni.StateBroken {
			return reconcile.Replace
		}
		return reconcile.Report
	}})
	expect.Same(t, "replaced", one.Result == nil, true)
	expect.Same(t, "attached", hasLinkAt(h.T, h.Path("netns", "c1"), "eth0"), true)
}

// TestFault_F67_ABrokenContainerIsBroken although its CHECK would fail in any case: the
// comparison finds the damage, and Repair brings the traffic back.
func TestFault_F67_ABrokenContainerIsBroken(t *testing.T) {
	h := newRealHost(t)
	r := h.Real(cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}]}`)))
	for i, id := range []string{"c1", "c2"} {
		path := h.Container(id)
		testhost.MustSetUp(t, r, id, path)
		h.Configure(path, "eth0", fmt.Sprintf("10.77.0.%d/24", i+1)) // nobody gives out addresses
	}
	h.Serve(h.Path("netns", "c1"), 80)
	answer := testhost.Both(h.Path("netns", "c2"), "10.77.0.1:80", "10.77.0.2")
	h.WantAnswers(answer)
	h.Change("", hostEnd(t, r, "c1"), (*netlink.Handle).LinkSetNoMaster)
	one, _ := healthOf(t, r, cni.HealthOptions{Containers: []string{"c1"}})
	expect.Same(t, "state", one.State, cni.StateBroken)
	expect.NoError(t, expect.Reported(r.Repair(t.Context(), "c1", cni.RepairOptions{})))
	h.WantAnswers(answer)
	one, _ = healthOf(t, r, cni.HealthOptions{Containers: []string{"c1"}})
	expect.Same(t, "state after the repair", one.State, cni.StateUnknown)
}
