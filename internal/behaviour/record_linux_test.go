package behaviour_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/proc"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

func TestDuty_R26_TheRecordIsWholeBeforeTheFirstPluginRuns(t *testing.T) {
	s := newStage(t)
	gate := s.Gate("p")
	s.On("p", "ADD", scripted.Action{Block: gate})
	r := s.Runtime(cni.WithOwner("tester"), cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q")))
	path := s.Container("c1")
	began := time.Now().Add(-time.Second)
	done := testhost.Begin(testhost.SetUp(t.Context(), r, "c1", path, cni.WithArgs("K", "v"), cni.WithConfigArgs("k", 1),
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 80, ContainerPort: 8080}})))
	letGo := s.Arrive(gate)
	got := expect.Value(s.Records().Load("c1"))(t)
	pin := expect.Value(netns.Open(s.Pin("c1")))(t)
	letGo()
	expect.NoError(t, expect.Await(t, "Setup", done))

	bootID := expect.Value(proc.BootID())(t)
	expect.That(t, !got.Since.Before(began) && !got.Since.After(time.Now()) && strings.HasPrefix(got.Runtime, fmt.Sprint(os.Getpid(), ":")),
		"recorded at %v by process %s", got.Since, got.Runtime)
	lives, known, err := lock.Open(s.Path("state", "embedcni", "locks")).Lives(got.Life)
	expect.That(t, lives && known && err == nil, "the process lives by %q: %v, known %v, %v", got.Life, lives, known, err)
	expect.Contains(t, "configuration", string(got.Attachments[0].Config), `"script":"`+s.Path("script-q")+`"`)
	host := expect.Value(netns.Open(s.Path("netns", "host")))(t)
	expect.Same(t, "PID namespace", got.PIDNS, proc.PIDNS())
	expect.Same(t, "it is recorded from where the path leads to the namespace", got.NetNS.View != "", true)
	got.NetNS.View = ""
	since := got.Attachments[0].Since
	expect.That(t, !since.Before(began) && !since.After(time.Now()), "the attachment was recorded at %v", since)
	got.Attachments[0].Since = time.Time{}
	got.Since, got.Runtime, got.Life, got.PIDNS, got.Attachments[0].Config = time.Time{}, "", "", 0, nil
	expect.Same(t, "record", *got, record.Record{
		ContainerID: "c1", Owner: "tester", Boot: bootID, Host: host.ID().String(), HostPath: s.Path("netns", "host"), Generation: 1,
		NetNS: record.NetNS{Path: path, Dev: pin.ID().Dev, Ino: pin.ID().Ino, Pin: s.Pin("c1")},
		Attachments: []record.Attachment{{Network: "net", IfName: "eth0", Call: 1, Args: [][2]string{{"K", "v"}},
			Capabilities: map[string]json.RawMessage{"portMappings": json.RawMessage(`[{"hostPort":80,"containerPort":8080,"protocol":"tcp"}]`)},
			ConfigArgs:   map[string]json.RawMessage{"k": json.RawMessage("1")},
			Plugins: []record.Plugin{
				{Type: "p", Kind: string("executable"), Path: s.Path("bin", "p")},
				{Type: "q", Kind: string("executable"), Path: s.Path("bin", "q")}}}},
	})
	expect.NoError(t, pin.Close())
	expect.NoError(t, host.Close())
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
}

// TestFault_F6_RealRemoveKnowsNothingButTheID: the caller of Remove passes nothing but
// the ID, and no port mappings.
func TestFault_F6_RealRemoveKnowsNothingButTheID(t *testing.T) {
	testhost.LeavesNothingRunning(t)
	h := newRealHost(t)
	path := h.Container("c1")
	before := h.Audit()
	write(h.Host, "net.d/10-podnet.conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "podnet", "plugins": [
		{"type": "bridge", "bridge": "br-podnet", "isDefaultGateway": true, "ipMasq": true,
		 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.22.1.0/24"}]]}},
		{"type": "firewall"},
		{"type": "portmap", "capabilities": {"portMappings": true}}]}`, h.Path("ipam")))
	testhost.MustSetUp(t, h.Real(cni.WithLoNetwork, cni.WithDefaultConf), "c1", path, onePort)
	expect.Same(t, "kept", h.Pinned("c1"), true)
	left, _ := audit.Diff(before, h.Audit())
	expect.Contains(t, "the host, with a port", strings.Join(left, "\n"), "CNI-HOSTPORT-DNAT")
	expect.NoError(t, os.RemoveAll(h.Path("net.d")))
	empty := h.Real()
	expect.Same(t, "on record", testhost.Recorded(t, empty), []string{"c1/lo attached", "c1/eth0 attached"})
	for range 2 { // the second time the ID is unknown
		expect.NoError(t, empty.Remove(t.Context(), "c1", ""))
	}
	expect.Same(t, "on record", testhost.Recorded(t, empty), []string{})
	expect.Same(t, "kept", h.Pinned("c1"), false)
	h.WantClean(before)
}

func TestFault_F7_RemoveAfterTheNetworksHaveChanged(t *testing.T) {
	for what, now := range map[string]func(s *stage) []cni.Opt{
		"renamed": func(s *stage) []cni.Opt {
			return []cni.Opt{cni.WithConfListBytes(s.Network("uno", "1.0.0", "p")), cni.WithConfListBytes(s.Network("dos", "1.0.0", "q"))}
		},
		"reordered": func(s *stage) []cni.Opt {
			return []cni.Opt{cni.WithConfListBytes(s.Network("two", "1.0.0", "q")), cni.WithConfListBytes(s.Network("one", "1.0.0", "p"))}
		},
		"other plugins": func(s *stage) []cni.Opt { return []cni.Opt{cni.WithConfListBytes(s.Network("one", "1.1.0", "x"))} },
		"gone":          func(*stage) []cni.Opt { return nil },
	} {
		s, r, path := attached(t)
		expect.NoError(t, r.Load(now(s)...))
		expect.NoError(t, r.Remove(t.Context(), "c1", path))
		calls := s.TakeCalls()
		expect.Same(t, what, testhost.Rendered(calls), []string{"DEL q c1/eth1", "DEL p c1/eth0"})
		expect.Same(t, what, prevResults(t, calls), []string{"DEL q 10.9.0.2/24", "DEL p 10.9.0.2/24"})
		expect.Same(t, what, testhost.Request(t, calls[1])["name"], `"one"`)
		expect.Same(t, what+": cache", s.Cached(), []string{})
	}
}

func TestDuty_R17_R19_R20_R28_DELAndCHECKAsTheADDWas(t *testing.T) {
	s := newStage(t)
	script := s.Plugin(scripted.Script{}, "p")
	list := func(more string) cni.Opt {
		return cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net",
			"plugins": [{"type": "p", "script": %q, "capabilities": {"portMappings": true}, "args": {"cni": {"x": 1}}, "mtu": %s}]}`, script, more))
	}
	r := s.Runtime(list("1400"))
	path := s.Container("c1")
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", path, cni.WithArgs("K", "v"), cni.WithConfigArgs("k", int64(1)<<60+1),
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 80, ContainerPort: 8080}}))())
	expect.NoError(t, r.Load(list("9000")))
	expect.NoError(t, os.RemoveAll(s.Path("state", "results")))
	expect.NoError(t, r.Check(t.Context(), "c1", path))
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	var got []string
	for _, c := range s.TakeCalls()[1:] {
		keys := testhost.Request(t, c)
		got = append(got, strings.Join([]string{c.Verb, c.NetNS, c.Args, keys["mtu"], expect.JSON(t, keys["args"]), expect.JSON(t, keys["runtimeConfig"])}, " "))
		expect.Same(t, "prevResult", expect.JSON(t, keys["prevResult"]), expect.JSON(t, fmt.Sprintf(`{"cniVersion": "1.0.0",
			"interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": %q}],
			"ips": [{"interface": 0, "address": "10.9.0.2/24", "gateway": "10.9.0.1"}],
			"routes": [{"dst": "0.0.0.0/0", "gw": "10.9.0.1"}]}`, path)))
	}
	const same = ` K=v 1400 {"cni":{"k":1152921504606846977,"x":1}} {"portMappings":[{"containerPort":8080,"hostPort":80,"protocol":"tcp"}]}`
	expect.Same(t, "CHECK and DEL", got, []string{"CHECK " + path + same, "DEL " + path + same})
}

func TestFault_F11_AnotherNamespaceAtTheSamePathIsNeverTouched(t *testing.T) {
	s, r, path := attached(t)
	s.RemoveNetNS("c1")
	s.Container("c1") // another container's, with the same path
	s.AddLink("c1", "eth0")
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	calls := s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"DEL q c1/eth1", "DEL p c1/eth0"})
	expect.Same(t, "CNI_NETNS", []string{calls[0].NetNS, calls[1].NetNS}, []string{s.Pin("c1"), s.Pin("c1")})
	s.DelLink("c1", "eth0") // fails if it was swept
}

func TestRecordOfAnotherBootLeadsToNoNamespace(t *testing.T) {
	s, r, path := attached(t)
	s.ChangeRecord("c1", func(rec *record.Record) { rec.Boot = "another" })
	// By chance its number and path match a namespace of this boot.
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	calls := s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"DEL q c1/eth1", "DEL p c1/eth0"})
	expect.Same(t, "CNI_NETNS", []string{calls[0].NetNS, calls[1].NetNS}, []string{"", ""})
}

func TestWithoutARecordRemoveAsksLibcnisCache(t *testing.T) {
	s, r, _ := attached(t)
	s.Unrecord("c1")
	expect.NoError(t, r.Load())
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	calls := s.TakeCalls()
	expect.Same(t, "calls", prevResults(t, calls), []string{"DEL q 10.9.0.2/24", "DEL p 10.9.0.2/24"})
	expect.Same(t, "arguments", []string{calls[0].Args, calls[1].Args}, []string{"K=v", "K=v"})
	expect.Same(t, "cache", s.Cached(), []string{})
}

// TestOneContainerInTwoSetupsRemovedInPartsAndWhole: the record says which attachments are
// gone, so that a restarted program has only the others.
func TestOneContainerInTwoSetupsRemovedInPartsAndWhole(t *testing.T) {
	for _, parts := range []bool{true, false} {
		s, r, path := attached(t)
		testhost.MustSetUp(t, r, "c1", path, cni.WithNetwork("one", cni.WithInterfaceName("eth7")))
		s.AddLink("c1", "eth7")
		expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached", "c1/eth1 attached", "c1/eth7 attached"})
		s.TakeCalls()
		want := []string{"DEL p c1/eth7", "DEL q c1/eth1", "DEL p c1/eth0"}
		if parts {
			expect.NoError(t, r.Remove(t.Context(), "c1", path, cni.WithNetwork("one", cni.WithInterfaceName("eth7"))))
			expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached", "c1/eth1 attached"})
			expect.NoError(t, r.Check(t.Context(), "c1", path))
			expect.Is(t, r.Check(t.Context(), "c1", path, cni.WithNetwork("one", cni.WithInterfaceName("eth7"))), cni.ErrNotAttached)
			expect.NoError(t, r.Remove(t.Context(), "c1", path, cni.WithNetwork("one")))
			expect.Same(t, "kept", s.Pinned("c1"), true)
			r = s.Runtime()
			expect.Same(t, "attachments", testhost.Recorded(t, r), []string{"c1/eth1 attached"})
			want = []string{"DEL p c1/eth7", "CHECK p c1/eth0", "CHECK q c1/eth1", "DEL p c1/eth0", "DEL q c1/eth1"}
		}
		expect.NoError(t, r.Remove(t.Context(), "c1", ""))
		expect.Same(t, "calls", s.Took(), want)
		expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
		expect.Same(t, "kept", s.Pinned("c1"), false)
	}
}

func TestASecondSetupInAnotherNamespaceIsRefused(t *testing.T) {
	s, r, _ := attached(t)
	other := s.Container("c2")
	before := testhost.Recorded(t, r)
	expect.Is(t, testhost.SetUp(t.Context(), r, "c1", other, cni.WithNetwork("one", cni.WithInterfaceName("eth7")))(), cni.ErrInvalidNetNS)
	expect.Same(t, "on record", testhost.Recorded(t, r), before)
	expect.Same(t, "calls", s.Took(), []string{})
}

func TestDuty_R16_LoopbackLivesWithTheOtherAttachments(t *testing.T) {
	s := newStage(t)
	s.Network("unused", "1.0.0", "loopback")
	r := s.Runtime(cni.WithLoNetwork, cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	path := s.Container("c1")
	testhost.MustSetUp(t, r, "c1", path)
	s.AddLink("c1", "eth1")
	s.TakeCalls()
	expect.Is(t, testhost.SetUp(t.Context(), r, "c1", path, cni.WithNetwork("cni-loopback"))(), cni.ErrAlreadyAttached)
	expect.Same(t, "calls", s.Took(), []string{})
}

func TestFault_F20_NamesThatJoinToTheSame(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithOwner("tester"),
		cni.WithConfListBytes(s.Network("a", "1.0.0", "p")), cni.WithConfListBytes(s.Network("a-b", "1.0.0", "q")))
	s.On("p", "ADD", gives("10.0.0.1/24"))
	s.On("q", "ADD", gives("10.0.0.2/24"))
	testhost.MustSetUp(t, r, "b-c", s.Container("b-c"), cni.WithNetwork("a", cni.WithInterfaceName("eth0")))
	testhost.MustSetUp(t, r, "c", s.Container("c"), cni.WithNetwork("a-b", cni.WithInterfaceName("eth0")))
	expect.NoError(t, r.Remove(t.Context(), "b-c", ""))
	expect.NoError(t, r.Check(t.Context(), "c", s.Path("netns", "c"), cni.WithNetwork("a-b", cni.WithInterfaceName("eth0"))))
	expect.NoError(t, r.Remove(t.Context(), "c", ""))
	expect.Same(t, "calls", prevResults(t, s.TakeCalls()), []string{"ADD p none", "ADD q none",
		"DEL p 10.0.0.1/24", "CHECK q 10.0.0.2/24", "DEL q 10.0.0.2/24"})
}

func TestAttachmentsAndLookupReturnTheRecord(t *testing.T) {
	s, r, path := threeNetworks(t)
	expect.Is(t, errOf(r.Lookup("c1")), cni.ErrNotAttached)
	expect.NoError(t, r.Load(cni.WithOwner("tester"), cni.WithConfListBytes(s.Network("one", "1.0.0", "p"))))
	set := testhost.MustSetUp(t, r, "c1", path)
	s.TakeCalls()
	expect.NoError(t, r.Load()) // nothing
	all := expect.Value(r.Attachments())(t)
	since := time.Since(all[0].Since)
	expect.That(t, since >= 0 && since <= expect.Patience, "attached since %v", all[0].Since)
	want := cni.Attachment{ContainerID: "c1", Network: "one", IfName: "eth0", NetNS: path, Owner: "tester", Since: all[0].Since,
		State: cni.Attached, Addresses: []cni.Address{{Prefix: netip.MustParsePrefix("10.0.0.1/24")}},
		Plugins: map[string]string{"p": "executable"}}
	expect.Same(t, "attachments", all, []cni.Attachment{want})
	found := expect.Value(r.Lookup("c1"))(t)
	expect.Same(t, "result", jsonOf(t, found), jsonOf(t, set))
	expect.Same(t, "raw results", jsonOf(t, found.Raw()), jsonOf(t, set.Raw()))
	expect.Is(t, errOf(r.Lookup("../c1")), cni.ErrInvalidArgument)
	expect.Same(t, "calls", s.Took(), []string{})

	s.On("p", "DEL", testhost.Says(5, "stuck"))
	removal := r.Remove(t.Context(), "c1", "")
	all = expect.Value(r.Attachments())(t)
	ago := time.Since(all[0].LastTry)
	expect.That(t, ago >= 0 && ago <= expect.Patience, "last tried %v", all[0].LastTry)
	want.State, want.Failures, want.LastTry, want.LastError = cni.Failed, 1, all[0].LastTry, errors.Unwrap(removal).Error()
	expect.Same(t, "attachments after a failure", all, []cni.Attachment{want})
}

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	return string(expect.Value(json.Marshal(v))(t))
}
