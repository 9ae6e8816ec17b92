package behaviour_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/reconcile"
)

// threeConfigs returns the configurations of threeNetworks, of which only "one" is
// loaded.
func threeConfigs(t *testing.T) (s *stage, r *cni.Runtime, path string, two, three []byte) {
	t.Helper()
	s = newStage(t)
	for i, typ := range []string{"p", "q", "r"} {
		s.On(typ, "ADD", gives(fmt.Sprintf("10.0.%d.1/24", i)))
	}
	r = s.Runtime(cni.WithConfListBytes(s.Network("one", "1.1.0", "p")))
	return s, r, s.Container("c1"), s.Network("two", "1.1.0", "q"), s.Network("three", "1.1.0", "r")
}

func TestNetworksOfOneCallStandBesideLoadedOnes(t *testing.T) {
	s, r, path, two, three := threeConfigs(t)
	opts := []cni.NamespaceOpts{cni.WithNetworkConfig(two, cni.WithInterfaceName("net0")), cni.WithNetwork("one"), cni.WithNetworkConfig(three)}
	res := expect.Value(r.SetupSerially(t.Context(), "c1", path, opts...))(t)
	want := []string{"two net0 10.0.1.1/24", "one eth0 10.0.0.1/24", "three eth2 10.0.2.1/24"}
	expect.Same(t, "results", addresses(res), want)
	expect.Same(t, "looked up", addresses(expect.Value(r.Lookup("c1"))(t)), want)
	s.Took()

	expect.NoError(t, r.Check(t.Context(), "c1", path, opts...))
	expect.Same(t, "checked as they were named", s.Took(), []string{"CHECK q c1/net0", "CHECK p c1/eth0", "CHECK r c1/eth2"})
	expect.NoError(t, r.Check(t.Context(), "c1", path))
	expect.Same(t, "checked by the record", s.Took(), []string{"CHECK p c1/eth0", "CHECK q c1/net0", "CHECK r c1/eth2"})
	expect.NoError(t, r.Check(t.Context(), "c1", path, cni.WithNetwork("three")))
	expect.Same(t, "checked by name", s.Took(), []string{"CHECK r c1/eth2"})
	expect.Is(t, r.Check(t.Context(), "c1", path, cni.WithNetwork("three", cni.WithInterfaceName("eth3"))), cni.ErrNotFound)

	expect.NoError(t, r.Remove(t.Context(), "c1", path, cni.WithNetworkConfig(two, cni.WithInterfaceName("net0"))))
	expect.NoError(t, r.Remove(t.Context(), "c1", path, cni.WithNetwork("three")))
	expect.Same(t, "detached one by one", s.Took(), []string{"DEL q c1/net0", "DEL r c1/eth2"})
	expect.NoError(t, r.Check(t.Context(), "c1", path))
	expect.Same(t, "the rest is attached", s.Took(), []string{"CHECK p c1/eth0"})
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.Same(t, "attachments", len(testhost.Recorded(t, r)), 0)
}

// TestNetworksOfOneCallNeedNoneLoaded, and another process removes and recovers them by
// the record alone.
func TestNetworksOfOneCallNeedNoneLoaded(t *testing.T) {
	s, _, path, two, three := threeConfigs(t)
	r := s.Runtime()
	expect.Is(t, errOf(r.Setup(t.Context(), "c1", path)), cni.ErrCNINotInitialized)
	testhost.MustSetUp(t, r, "c1", path, cni.WithNetworkConfig(two), cni.WithNetworkConfig(three))
	s.AddLink("c1", "eth0")
	s.AddLink("c1", "eth1")
	s.Took()

	later := s.Runtime(cni.WithConfListBytes(s.Network("other", "1.1.0", "x")))
	wantRecover(t, later, cni.Report{Adopted: []string{"c1"}})
	expect.Same(t, "Recover", s.Took(), []string{"CHECK q c1/eth0", "CHECK r c1/eth1"})
	health := expect.Value(later.Health(t.Context(), cni.HealthOptions{}))(t)
	expect.Same(t, "health", []int{len(health), testhost.Healthy(health)}, []int{1, 1})
	expect.NoError(t, s.repaired(later, "c1").Err())
	got := expect.Value(reconcile.Run(t.Context(), later, []reconcile.Expected{{ContainerID: "c1", NetNS: path}}, reconcile.Options{}))(t)
	expect.Same(t, "unexpected", len(got.Unexpected), 0)
	expect.Same(t, "verdict", got.Containers[0].Health.State, cni.StateHealthy)
	s.Took()
	report := expect.Value(later.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}}))(t)
	expect.Same(t, "GC", *report, cni.Report{Adopted: []string{"c1"}})
	expect.Same(t, "GC asks the loaded network alone", s.Took(), []string{"GC x /"})
	expect.Is(t, later.Check(t.Context(), "c1", path, cni.WithNetwork("other")), cni.ErrNotAttached)
	expect.NoError(t, later.Check(t.Context(), "c1", path, cni.WithNetwork("two")))
	// Both have eth0: it is that of the record.
	expect.NoError(t, later.Check(t.Context(), "c1", path))
	expect.Same(t, "calls", s.Took(), []string{"CHECK q c1/eth0", "CHECK q c1/eth0", "CHECK r c1/eth1"})

	said := <-s.Elsewhere(s.Network("other", "1.1.0", "x"), "DEL", "c1", "")
	expect.Same(t, "another process", said, "")
	expect.Same(t, "DEL", s.Took(), []string{"DEL r c1/eth1", "DEL q c1/eth0"})
	expect.Same(t, "attachments", len(testhost.Recorded(t, r)), 0)
}

func TestNetworksOfOneCallAreRolledBackTogether(t *testing.T) {
	s, r, path, two, three := threeConfigs(t)
	expect.Value(r.SetupSerially(t.Context(), "c1", path, cni.WithNetworkConfig(two)))(t)
	s.AddLink("c1", "eth0")
	s.Took()
	s.On("r", "ADD", testhost.Says(7, "no"))
	_, err := r.SetupSerially(t.Context(), "c1", path, cni.WithNetworkConfig(two, cni.WithInterfaceName("net1")),
		cni.WithNetworkConfig(three, cni.WithInterfaceName("net2")))
	expect.Same(t, "errors", testhost.Messages(err), []string{"r: no"})
	expect.Same(t, "code", engine.AsCNIError(err).Code, uint(7))
	expect.Same(t, "calls", s.Took(), []string{"ADD q c1/net1", "ADD r c1/net2", "DEL r c1/net2", "DEL q c1/net1"})
	expect.NoError(t, r.Check(t.Context(), "c1", path, cni.WithNetwork("two")))
	expect.Same(t, "the living container keeps its own", s.Took(), []string{"CHECK q c1/eth0"})
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
}

func TestConfigurationsOfOneCallAreRefusedBeforeAnythingRuns(t *testing.T) {
	s, r, path, two, three := threeConfigs(t)
	result := []byte(`{"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.1/24"}]}`)
	for what, tt := range map[string]struct {
		opts []cni.NamespaceOpts
		kind error
	}{
		"no JSON":              {[]cni.NamespaceOpts{cni.WithNetworkConfig([]byte("{"))}, cni.ErrInvalidConfig},
		"no plugins":           {[]cni.NamespaceOpts{cni.WithNetworkConfig([]byte(`{"cniVersion": "1.0.0", "name": "x"}`))}, cni.ErrInvalidConfig},
		"no name":              {[]cni.NamespaceOpts{cni.WithNetworkConfig([]byte(`{"cniVersion": "1.0.0", "type": "p"}`))}, cni.ErrInvalidConfig},
		"unknown version":      {[]cni.NamespaceOpts{cni.WithNetworkConfig([]byte(`{"cniVersion": "9.0.0", "name": "x", "type": "p"}`))}, cni.ErrInvalidConfig},
		"nested":               {[]cni.NamespaceOpts{cni.WithNetwork("one", cni.WithNetworkConfig(two))}, cni.ErrInvalidArgument},
		"nested in itself":     {[]cni.NamespaceOpts{cni.WithNetworkConfig(two, cni.WithNetworkConfig(three))}, cni.ErrInvalidArgument},
		"one interface twice":  {[]cni.NamespaceOpts{cni.WithNetwork("one"), cni.WithNetworkConfig(two, cni.WithInterfaceName("eth0"))}, cni.ErrInvalidArgument},
		"wrong interface":      {[]cni.NamespaceOpts{cni.WithNetworkConfig(two, cni.WithInterfaceName("a/b"))}, cni.ErrInvalidArgument},
		"result outside":       {[]cni.NamespaceOpts{cni.WithPrevResult(result)}, cni.ErrInvalidArgument},
		"result of a loaded":   {[]cni.NamespaceOpts{cni.WithNetwork("one", cni.WithPrevResult(result))}, cni.ErrInvalidArgument},
		"result is no JSON":    {[]cni.NamespaceOpts{cni.WithNetworkConfig(two, cni.WithPrevResult([]byte("{")))}, cni.ErrInvalidArgument},
		"result is null":       {[]cni.NamespaceOpts{cni.WithNetworkConfig(two, cni.WithPrevResult([]byte("null")))}, cni.ErrInvalidArgument},
		"result's index":       {[]cni.NamespaceOpts{cni.WithNetworkConfig(two, cni.WithPrevResult([]byte(`{"cniVersion": "1.0.0", "ips": [{"interface": 1, "address": "10.9.0.1/24"}]}`)))}, cni.ErrInvalidArgument},
		"result, version 9":    {[]cni.NamespaceOpts{cni.WithNetworkConfig(two, cni.WithPrevResult([]byte(`{"cniVersion": "9.0.0"}`)))}, cni.ErrInvalidArgument},
		"result, empty":        {[]cni.NamespaceOpts{cni.WithNetworkConfig(two, cni.WithPrevResult(nil))}, cni.ErrInvalidArgument},
		"name of a file":       {[]cni.NamespaceOpts{cni.WithNetworkConfig([]byte(`{"cniVersion": "1.0.0", "name": "../x", "type": "p"}`))}, cni.ErrInvalidConfig},
		"plugin is a path":     {[]cni.NamespaceOpts{cni.WithNetworkConfig([]byte(`{"cniVersion": "1.0.0", "name": "x", "type": "../p"}`))}, cni.ErrInvalidConfig},
		"an option is invalid": {[]cni.NamespaceOpts{cni.WithNetworkConfig(two, cni.WithArgs("a;b", "c"))}, cni.ErrInvalidArgument},
	} {
		s.refusedByAll(r, what, "c1", path, tt.kind, tt.opts...)
	}
	expect.Is(t, errOf(s.Runtime().Setup(t.Context(), "c1", path, cni.WithNetworkConfig([]byte("{")))), cni.ErrInvalidConfig) // rather than that no network is loaded
}

// given is the previous result that a plugin got, in short.
func given(t *testing.T, request map[string]string) string {
	t.Helper()
	raw, ok := request["prevResult"]
	if !ok {
		return "none"
	}
	var r types100.Result
	expect.NoError(t, json.Unmarshal([]byte(raw), &r))
	text := r.CNIVersion
	for _, ip := range r.IPs {
		text += " " + ip.Address.String()
	}
	return text
}

// TestAPrevResultOfTheCaller: the first plugin gets it in the version of its
// configuration, and so does the DEL of a failed ADD. CHECK and DEL get the result of the ADD
// in that version too, whatever the plugins have printed.
func TestAPrevResultOfTheCaller(t *testing.T) {
	s := newStage(t)
	r, path := s.Runtime(), s.Container("c1")
	link := s.Network("link", "0.4.0", "p", "q")
	prev := cni.WithPrevResult([]byte(`{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "x"}],
		"ips": [{"interface": 0, "address": "10.9.0.1/24"}]}`))
	got := func() (all []string) {
		for _, c := range s.TakeCalls() {
			all = append(all, c.Verb+" "+c.Type+" "+given(t, testhost.Request(t, c)))
		}
		return all
	}
	s.On("p", "ADD", testhost.Says(7, "no"))
	_, err := r.Setup(t.Context(), "c1", path, cni.WithNetworkConfig(link, prev))
	expect.Same(t, "errors", testhost.Messages(err), []string{"p: no"})
	expect.Same(t, "a failed ADD", got(), []string{"ADD p 0.4.0 10.9.0.1/24", "DEL q 0.4.0 10.9.0.1/24", "DEL p 0.4.0 10.9.0.1/24"})

	s.On("p", "ADD", gives("10.9.0.7/24"))
	res := testhost.MustSetUp(t, r, "c1", path, cni.WithNetworkConfig(link, prev))
	expect.Same(t, "result", addresses(res), []string{"link eth0 10.9.0.7/24"})
	later := s.Runtime()
	expect.NoError(t, later.Check(t.Context(), "c1", path))
	expect.NoError(t, later.Remove(t.Context(), "c1", path))
	expect.Same(t, "an ADD", got(), []string{"ADD p 0.4.0 10.9.0.1/24", "ADD q 1.0.0 10.9.0.7/24", "CHECK p 0.4.0 10.9.0.7/24",
		"CHECK q 0.4.0 10.9.0.7/24", "DEL q 0.4.0 10.9.0.7/24", "DEL p 0.4.0 10.9.0.7/24"})

	expect.NoError(t, later.Remove(t.Context(), "c1", path, cni.WithNetworkConfig(link, prev)))
	expect.Same(t, "a DEL without a record", got(), []string{"DEL q 0.4.0 10.9.0.1/24", "DEL p 0.4.0 10.9.0.1/24"})
}

// TestRealInterfacesOfAPrevResultAreOthers: the plugins before made them, and their own
// DEL deletes them. A link's DEL must not, nor the sweep after its failure.
func TestRealInterfacesOfAPrevResultAreOthers(t *testing.T) {
	h := newRealHost(t)
	h.VethPair("vethhost", "peer")
	path := h.Container("c1")
	h.MoveLink("peer", path)
	prev := fmt.Sprintf(`{"cniVersion": "1.0.0", "interfaces": [{"name": "vethhost", "mac": %q}, {"name": "peer", "sandbox": %q}],
		"ips": [{"interface": 1, "address": "10.9.0.1/24"}]}`, h.Link("", "vethhost").Attrs().HardwareAddr, path)
	before := h.Audit()
	for _, tt := range []struct {
		sysctl string
		fails  bool
	}{{"net.ipv4.no_such_thing", true}, {"net.ipv4.ip_forward", false}} {
		link := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "link", "plugins": [
			{"type": "tuning", "dataDir": %q, "sysctl": {%q: "1"}}, {"type": "firewall"}]}`, h.Path("tuning"), tt.sysctl)
		r := h.Real()
		_, err := r.Setup(t.Context(), "c1", path, cni.WithNetworkConfig(link, cni.WithInterfaceName("peer"), cni.WithPrevResult([]byte(prev))))
		expect.Must(t, (err != nil) == tt.fails, "%s: %v", tt.sysctl, err)
		expect.NoError(t, r.Remove(t.Context(), "c1", path))
		h.Link("", "vethhost")
	}
	h.WantClean(before)
}

// TestRealNetworksOfOneCallAreRepaired by their record, in a process that has not loaded
// them.
func TestRealNetworksOfOneCallAreRepaired(t *testing.T) {
	h := newRealHost(t)
	c := testhost.Case{Plugins: []string{testhost.BridgeConf(testhost.HostLocal(testhost.V4Range)), `{"type": "firewall"}`}}
	config := c.Conf("podnet", "1.0.0", h.Path("ipam"))
	before := h.Audit()
	path := h.Container("c1")
	result := testhost.MustSetUp(t, h.Real(), "c1", path, cni.WithNetworkConfig(config, cni.WithInterfaceName("net1")))
	h.sh("iptables -F CNI-FORWARD")
	later := h.Real()
	report := expect.Value(later.Repair(t.Context(), "c1", cni.RepairOptions{}))(t)
	expect.NoError(t, report.Err())
	expect.Same(t, "something was repaired", len(report.Repaired) > 0, true)
	expect.NoError(t, later.Check(t.Context(), "c1", path))
	h.Serve(path, 80)
	h.WantAnswers(testhost.Both("", testhost.HostPort(result.IPv4().IP().String(), 80), "10.77.0.1"))
	expect.NoError(t, later.Remove(t.Context(), "c1", path))
	left, _ := h.Left(before)
	left = slices.DeleteFunc(left, func(line string) bool { return strings.Contains(line, "cni0") || strings.Contains(line, "CNI-") })
	expect.Same(t, "left", left, nil)

}

// The pairs that a GC keeps, as KeepIf.
func keeping(pairs ...string) func(cni.Attachment) bool {
	return func(a cni.Attachment) bool { return slices.Contains(pairs, a.ContainerID+"/"+a.IfName) }
}

// TestGCOfACallsNetworksAsksTheirPluginsAlone: the loaded ones are asked if it has none.
func TestGCOfACallsNetworksAsksTheirPluginsAlone(t *testing.T) {
	s, r, _, two, _ := threeConfigs(t)
	for _, c := range []struct {
		configs [][]byte
		want    []string
	}{
		{nil, []string{"GC p /"}},
		{[][]byte{two}, []string{"GC q /"}},
		{[][]byte{two, s.Network("one", "1.1.0", "p")}, []string{"GC q /", "GC p /"}},
	} {
		for _, o := range []cni.GCOptions{{KeepNone: true}, {KeepIf: keeping()}} {
			o.Configs = c.configs
			expect.Value(r.GC(t.Context(), o))(t)
			expect.Same(t, "calls", testhost.Rendered(s.TakeCalls()), c.want)
		}
	}
}

func TestGCByPairsRemovesSingleInterfaces(t *testing.T) {
	s, _, path, two, three := threeConfigs(t)
	r := s.Runtime(cni.WithOwner("us"))
	others := s.Runtime(cni.WithOwner("them"))
	path2 := s.Container("c2")
	both := []cni.NamespaceOpts{cni.WithNetworkConfig(two), cni.WithNetworkConfig(three)}
	for id, path := range map[string]string{"c1": path, "c2": path2} {
		expect.Value(r.SetupSerially(t.Context(), id, path, both...))(t)
		s.AddLink(id, "eth0")
		s.AddLink(id, "eth1")
	}
	testhost.MustSetUp(t, others, "c2", path2, cni.WithNetworkConfig(two, cni.WithInterfaceName("net9")))
	s.AddLink("c2", "net9")
	s.Took()

	report := expect.Value(r.GC(t.Context(), cni.GCOptions{KeepIf: keeping("c1/eth0"), DryRun: true}))(t)
	expect.Same(t, "a dry run", *report, cni.Report{Adopted: []string{"c1"}, Removed: []string{"c2"}})
	expect.Same(t, "a dry run's calls", s.Took(), []string{})

	report = expect.Value(r.GC(t.Context(), cni.GCOptions{KeepIf: keeping("c1/eth0"), Configs: [][]byte{two}}))(t)
	expect.Same(t, "report", *report, cni.Report{Adopted: []string{"c1"}, Removed: []string{"c2"}})
	calls := s.TakeCalls()
	got := testhost.Rendered(calls)
	slices.Sort(got)
	expect.Same(t, "calls", got, []string{"DEL q c2/eth0", "DEL r c1/eth1", "DEL r c2/eth1", "GC q /"})
	expect.Same(t, "valid attachments", valid(t, calls), []string{"c1/eth0 c2/net9"})
	expect.NoError(t, others.Check(t.Context(), "c2", path2, cni.WithNetwork("two", cni.WithInterfaceName("net9"))))

	report = expect.Value(r.GC(t.Context(), cni.GCOptions{KeepIf: keeping("c1/eth0")}))(t)
	expect.Same(t, "again", *report, cni.Report{Adopted: []string{"c1"}})
	report = expect.Value(r.GC(t.Context(), cni.GCOptions{KeepIf: keeping()}))(t)
	expect.Same(t, "none is wanted", *report, cni.Report{Removed: []string{"c1"}})
	expect.NoError(t, others.Remove(t.Context(), "c2", path2))
	expect.Same(t, "attachments", len(testhost.Recorded(t, r)), 0)
}

func TestStatusOfNetworksThatAreNotLoaded(t *testing.T) {
	s, _, _, two, three := threeConfigs(t)
	r := s.Runtime()
	expect.NoError(t, r.StatusOf(t.Context(), two, three, s.Network("old", "1.0.0", "p")))
	expect.Same(t, "calls", s.Took(), []string{"STATUS q /", "STATUS r /"})
	s.On("q", "STATUS", testhost.Says(50, "no"))
	err := r.StatusOf(t.Context(), two, three)
	expect.Same(t, "error", err.Error(), `status network "two": plugin type="q" failed (status): no (code 50)`)
	expect.Same(t, "code", engine.AsCNIError(err).Code, uint(50))
	expect.Same(t, "calls", s.Took(), []string{"STATUS q /"})
	err = r.StatusOf(t.Context(), two, []byte("{"))
	expect.Is(t, err, cni.ErrInvalidConfig)
	fails(t, err, "status: ")
	expect.Same(t, "calls", s.Took(), []string{})
}

func TestGCByPairsLeavesWhatItCannotRead(t *testing.T) {
	s, _, path, two, _ := threeConfigs(t)
	r := s.Runtime(cni.WithOwner("us"))
	testhost.MustSetUp(t, r, "c1", path, cni.WithNetworkConfig(two))
	s.AddLink("c1", "eth0")
	spoilBase(s.Host, "c1", "not a record\n")
	s.Took()
	expect.Same(t, "skipped", len(expect.Value(r.GC(t.Context(), cni.GCOptions{KeepIf: keeping()}))(t).Skipped), 1)
	expect.Same(t, "calls", s.Took(), []string{})
	for _, o := range []cni.GCOptions{
		{KeepIf: keeping(), Keep: []string{"c1"}}, {KeepIf: keeping(), KeepNone: true},
	} {
		expect.Is(t, errOf(r.GC(t.Context(), o)), cni.ErrInvalidArgument)
	}
	expect.Is(t, errOf(r.GC(t.Context(), cni.GCOptions{KeepIf: keeping(), Configs: [][]byte{[]byte("{")}})), cni.ErrInvalidConfig)
	expect.Same(t, "calls", s.Took(), []string{})
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
}
