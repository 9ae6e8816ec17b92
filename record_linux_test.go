package cni_test

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
	"github.com/embedcni/cni/internal/boot"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/orphan"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/netns"
)

// recorded renders what is on record: "c1/eth0 attached".
func recorded(t testing.TB, r *cni.Runtime) []string {
	t.Helper()
	all, err := r.Attachments()
	wantNil(t, err)
	lines := []string{}
	for _, a := range all {
		lines = append(lines, fmt.Sprintf("%s/%s %s", a.ContainerID, a.IfName, a.State))
	}
	return lines
}

func (h *host) records() *record.Store {
	return record.Open(h.path("state", "embedcni", "attachments"))
}

// changeRecord rewrites a container's record.
func (h *host) changeRecord(id string, change func(*record.Record)) {
	h.t.Helper()
	rec, err := h.records().Load(record.ID(id))
	wantNil(h.t, err)
	change(rec)
	wantNil(h.t, h.records().Begin(rec))
}

// pinned tells whether a container's namespace is kept.
func (h *host) pinned(id string) bool {
	h.t.Helper()
	_, err := os.Lstat(h.pin(id))
	if err != nil && !os.IsNotExist(err) {
		h.t.Fatal(err)
	}
	return err == nil
}

func TestDuty_R26_TheRecordIsWholeBeforeTheFirstPluginRuns(t *testing.T) {
	s := newStage(t)
	gate := s.gate("p")
	s.on("p", "ADD", scripted.Action{Block: gate})
	r := s.runtime(cni.WithOwner("tester"), cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q")))
	path := s.container("c1")
	began := time.Now().Add(-time.Second)
	done := begin(setUp(t.Context(), r, "c1", path, cni.WithArgs("K", "v"), cni.WithConfigArgs("k", 1),
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 80, ContainerPort: 8080}})))
	letGo := s.arrive(gate)
	got, err := s.records().Load("c1")
	wantNil(t, err)
	pin, err := netns.Open(s.pin("c1"))
	wantNil(t, err)
	letGo()
	wantNil(t, await(t, "Setup", done))

	bootID, err := boot.ID()
	wantNil(t, err)
	if got.Since.Before(began) || got.Since.After(time.Now()) || !strings.HasPrefix(got.Runtime, fmt.Sprint(os.Getpid(), ":")) {
		t.Errorf("recorded at %v by process %s", got.Since, got.Runtime)
	}
	if lives, known, err := lock.Open(s.path("state", "embedcni", "locks")).Lives(got.Life); !lives || !known || err != nil {
		t.Errorf("the process lives by %q: %v, known %v, %v", got.Life, lives, known, err)
	}
	config := string(got.Networks[0].Config)
	if want := `"script":"` + s.path("script-q") + `"`; !strings.Contains(config, want) {
		t.Errorf("configuration %s, want %s in it", config, want)
	}
	host, err := netns.Open(s.path("netns", "host"))
	wantNil(t, err)
	wantSame(t, "PID namespace", got.PIDNS, orphan.PIDNS())
	if got.NetNS.View == "" {
		t.Error("from where the path leads to the namespace is not recorded")
	}
	got.NetNS.View = ""
	got.Since, got.Runtime, got.Life, got.PIDNS, got.Networks[0].Config = time.Time{}, "", "", 0, nil
	wantSame(t, "record", *got, record.Record{
		ContainerID: "c1", Owner: "tester", Boot: bootID, Host: host.ID().String(), HostPath: s.path("netns", "host"), Generation: 1,
		NetNS: record.NetNS{Path: path, Dev: pin.ID().Dev, Ino: pin.ID().Ino, Pin: s.pin("c1")},
		Networks: []record.Network{{Name: "net", IfName: "eth0", Call: 1, Args: [][2]string{{"K", "v"}},
			Capabilities: map[string]json.RawMessage{"portMappings": json.RawMessage(`[{"hostPort":80,"containerPort":8080,"protocol":"tcp"}]`)},
			ConfigArgs:   map[string]json.RawMessage{"k": json.RawMessage("1")},
			Plugins: []record.Plugin{
				{Type: "p", Kind: string(cni.PluginExecutable), Path: s.path("bin", "p")},
				{Type: "q", Kind: string(cni.PluginExecutable), Path: s.path("bin", "q")}}}},
	})
	wantNil(t, pin.Close())
	wantNil(t, host.Close())
	wantNil(t, r.Remove(t.Context(), "c1", path))
}

func TestAFailedSetupLeavesNoRecordAndNoPin(t *testing.T) {
	s := newStage(t)
	s.on("q", "ADD", says(5, "no"))
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q")))
	path := s.container("c1")
	before := s.audit()
	_, err := r.Setup(t.Context(), "c1", path)
	wantSame(t, "errors", messages(err), []string{"q: no"})
	wantSame(t, "on record", recorded(t, r), []string{})
	wantSame(t, "kept", s.pinned("c1"), false)
	s.wantClean(before)
}

// The issue's own proof: nothing but the id is known to who removes.
func TestRealRemoveKnowsNothingButTheID(t *testing.T) {
	wantProcessAsBefore(t)
	h := newRealHost(t)
	path := h.container("c1")
	before := h.audit()
	h.write("net.d/10-podnet.conflist", string(h.bridgeList("podnet", "10.22.1")))
	r := h.real(cni.WithLoNetwork, cni.WithDefaultConf)
	_, err := r.Setup(t.Context(), "c1", path, onePort)
	wantNil(t, err)
	wantSame(t, "kept", h.pinned("c1"), true)
	wantNil(t, os.RemoveAll(h.path("net.d")))
	empty := h.real()
	wantSame(t, "on record", recorded(t, empty), []string{"c1/lo attached", "c1/eth0 attached"})
	for range 2 { // the second time it is an id never seen
		wantNil(t, empty.Remove(t.Context(), "c1", ""))
	}
	wantSame(t, "on record", recorded(t, empty), []string{})
	wantSame(t, "kept", h.pinned("c1"), false)
	h.wantClean(before)
}

func TestFault_F6_RemoveWithoutThePortMappings(t *testing.T) {
	h := newRealHost(t)
	r := h.real(cni.WithConfListBytes(h.bridgeList("podnet", "10.22.1")))
	path := h.container("c1")
	before := h.audit()
	_, err := r.Setup(t.Context(), "c1", path, onePort)
	wantNil(t, err)
	if left, _ := audit.Diff(before, h.audit()); !strings.Contains(strings.Join(left, "\n"), "CNI-HOSTPORT-DNAT") {
		t.Errorf("no port is mapped:\n%s", strings.Join(left, "\n"))
	}
	wantNil(t, r.Remove(t.Context(), "c1", path))
	h.wantClean(before)
}

func TestFault_F7_RemoveAfterTheNetworksHaveChanged(t *testing.T) {
	for what, now := range map[string]func(s *stage) []cni.Opt{
		"renamed": func(s *stage) []cni.Opt {
			return []cni.Opt{cni.WithConfListBytes(s.network("uno", "1.0.0", "p")), cni.WithConfListBytes(s.network("dos", "1.0.0", "q"))}
		},
		"reordered": func(s *stage) []cni.Opt {
			return []cni.Opt{cni.WithConfListBytes(s.network("two", "1.0.0", "q")), cni.WithConfListBytes(s.network("one", "1.0.0", "p"))}
		},
		"other plugins": func(s *stage) []cni.Opt { return []cni.Opt{cni.WithConfListBytes(s.network("one", "1.1.0", "x"))} },
		"gone":          func(*stage) []cni.Opt { return nil },
	} {
		s, r, path := attached(t)
		wantNil(t, r.Load(now(s)...))
		wantNil(t, r.Remove(t.Context(), "c1", path))
		calls := s.takeCalls()
		wantSame(t, what, rendered(calls), []string{"DEL q c1/eth1", "DEL p c1/eth0"})
		wantSame(t, what, prevResults(t, calls), []string{"DEL q 10.9.0.2/24", "DEL p 10.9.0.2/24"})
		wantSame(t, what, request(t, calls[1])["name"], `"one"`)
		wantSame(t, what+": cache", s.cached(), []string{})
	}
}

func TestDuty_R17_R19_R20_R28_DELAndCHECKAsTheADDWas(t *testing.T) {
	s := newStage(t)
	script := s.plugin(scripted.Script{}, "p")
	list := func(more string) cni.Opt {
		return cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net",
			"plugins": [{"type": "p", "script": %q, "capabilities": {"portMappings": true}, "mtu": %s}]}`, script, more))
	}
	r := s.runtime(list("1400"))
	path := s.container("c1")
	wantNil(t, setUp(t.Context(), r, "c1", path, cni.WithArgs("K", "v"), cni.WithConfigArgs("k", "v"),
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 80, ContainerPort: 8080}}))())
	wantNil(t, r.Load(list("9000")))
	wantNil(t, os.RemoveAll(s.path("state", "results")))
	wantNil(t, r.Check(t.Context(), "c1", path))
	wantNil(t, r.Remove(t.Context(), "c1", path))
	var got []string
	for _, c := range s.takeCalls()[1:] {
		keys := request(t, c)
		got = append(got, strings.Join([]string{c.Verb, c.NetNS, c.Args, keys["mtu"], canonical(t, keys["args"]), canonical(t, keys["runtimeConfig"])}, " "))
		wantSame(t, "prevResult", canonical(t, keys["prevResult"]), canonical(t, fmt.Sprintf(`{"cniVersion": "1.0.0",
			"interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": %q}],
			"ips": [{"interface": 0, "address": "10.9.0.2/24", "gateway": "10.9.0.1"}],
			"routes": [{"dst": "0.0.0.0/0", "gw": "10.9.0.1"}]}`, path)))
	}
	const same = ` K=v 1400 {"cni":{"k":"v"}} {"portMappings":[{"containerPort":8080,"hostPort":80,"protocol":"tcp"}]}`
	wantSame(t, "CHECK and DEL", got, []string{"CHECK " + path + same, "DEL " + path + same})
}

func TestFault_F11_AnotherNamespaceAtTheSamePathIsNeverTouched(t *testing.T) {
	s, r, path := attached(t)
	s.forget("c1")
	s.container("c1") // somebody else's, by the same path
	s.addLink("c1", "eth0")
	wantNil(t, r.Remove(t.Context(), "c1", path))
	calls := s.takeCalls()
	wantSame(t, "calls", rendered(calls), []string{"DEL q c1/eth1", "DEL p c1/eth0"})
	wantSame(t, "CNI_NETNS", []string{calls[0].NetNS, calls[1].NetNS}, []string{s.pin("c1"), s.pin("c1")})
	s.delLink("c1", "eth0") // fails if it was swept
}

func TestRecordOfAnotherBootLeadsToNoNamespace(t *testing.T) {
	s, r, path := attached(t)
	s.changeRecord("c1", func(rec *record.Record) { rec.Boot = "another" })
	// By chance its number and path are those of a namespace of this boot.
	wantNil(t, r.Remove(t.Context(), "c1", path))
	calls := s.takeCalls()
	wantSame(t, "calls", rendered(calls), []string{"DEL q c1/eth1", "DEL p c1/eth0"})
	wantSame(t, "CNI_NETNS", []string{calls[0].NetNS, calls[1].NetNS}, []string{"", ""})
}

func TestWithoutARecordRemoveAsksLibcnisCache(t *testing.T) {
	s, r, _ := attached(t)
	s.unrecord("c1")
	wantNil(t, r.Load())
	wantNil(t, r.Remove(t.Context(), "c1", ""))
	calls := s.takeCalls()
	wantSame(t, "calls", prevResults(t, calls), []string{"DEL q 10.9.0.2/24", "DEL p 10.9.0.2/24"})
	wantSame(t, "arguments", []string{calls[0].Args, calls[1].Args}, []string{"K=v", "K=v"})
	wantSame(t, "cache", s.cached(), []string{})
}

func TestOneContainerInTwoSetupsRemovedInPartsAndWhole(t *testing.T) {
	for _, parts := range []bool{true, false} {
		s, r, path := attached(t)
		wantNil(t, setUp(t.Context(), r, "c1", path, cni.WithNetwork("one", cni.WithInterfaceName("eth7")))())
		s.addLink("c1", "eth7")
		wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 attached", "c1/eth1 attached", "c1/eth7 attached"})
		s.takeCalls()
		want := []string{"DEL p c1/eth7", "DEL q c1/eth1", "DEL p c1/eth0"}
		if parts {
			wantNil(t, r.Remove(t.Context(), "c1", path, cni.WithNetwork("one", cni.WithInterfaceName("eth7"))))
			wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 attached", "c1/eth1 attached"})
			wantNil(t, r.Check(t.Context(), "c1", path))
			wantIs(t, r.Check(t.Context(), "c1", path, cni.WithNetwork("one", cni.WithInterfaceName("eth7"))), cni.ErrNotAttached)
			wantNil(t, r.Remove(t.Context(), "c1", path, cni.WithNetwork("one")))
			wantSame(t, "kept", s.pinned("c1"), true)
			want = []string{"DEL p c1/eth7", "CHECK p c1/eth0", "CHECK q c1/eth1", "DEL p c1/eth0", "DEL q c1/eth1"}
		}
		wantNil(t, r.Remove(t.Context(), "c1", ""))
		wantSame(t, "calls", s.took(), want)
		wantSame(t, "on record", recorded(t, r), []string{})
		wantSame(t, "kept", s.pinned("c1"), false)
	}
}

func TestASecondSetupInAnotherNamespaceIsRefused(t *testing.T) {
	s, r, _ := attached(t)
	other := s.container("c2")
	before := recorded(t, r)
	err := setUp(t.Context(), r, "c1", other, cni.WithNetwork("one", cni.WithInterfaceName("eth7")))()
	wantIs(t, err, cni.ErrInvalidNetNS)
	wantSame(t, "on record", recorded(t, r), before)
	wantSame(t, "calls", s.took(), []string{})
}

func TestDuty_R16_LoopbackLivesWithWhatWasAttachedBesideIt(t *testing.T) {
	s := newStage(t)
	s.network("unused", "1.0.0", "loopback")
	r := s.runtime(cni.WithLoNetwork, cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
	path := s.container("c1")
	wantNil(t, setUp(t.Context(), r, "c1", path)())
	s.addLink("c1", "eth1")
	s.takeCalls()
	wantIs(t, setUp(t.Context(), r, "c1", path, cni.WithNetwork("cni-loopback"))(), cni.ErrAlreadyAttached)
	wantSame(t, "calls", s.took(), []string{})
}

func TestFault_F20_NamesThatJoinToTheSame(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithOwner("tester"),
		cni.WithConfListBytes(s.network("a", "1.0.0", "p")), cni.WithConfListBytes(s.network("a-b", "1.0.0", "q")))
	s.on("p", "ADD", gives("10.0.0.1/24"))
	s.on("q", "ADD", gives("10.0.0.2/24"))
	wantNil(t, setUp(t.Context(), r, "b-c", s.container("b-c"), cni.WithNetwork("a", cni.WithInterfaceName("eth0")))())
	wantNil(t, setUp(t.Context(), r, "c", s.container("c"), cni.WithNetwork("a-b", cni.WithInterfaceName("eth0")))())
	wantNil(t, r.Remove(t.Context(), "b-c", ""))
	wantNil(t, r.Check(t.Context(), "c", s.path("netns", "c"), cni.WithNetwork("a-b", cni.WithInterfaceName("eth0"))))
	wantNil(t, r.Remove(t.Context(), "c", ""))
	wantSame(t, "calls", prevResults(t, s.takeCalls()), []string{"ADD p none", "ADD q none",
		"DEL p 10.0.0.1/24", "CHECK q 10.0.0.2/24", "DEL q 10.0.0.2/24"})
}

func TestAttachmentsAndLookupSayWhatIsOnRecord(t *testing.T) {
	s, r, path := threeNetworks(t)
	_, err := r.Lookup("c1")
	wantIs(t, err, cni.ErrNotAttached)
	wantNil(t, r.Load(cni.WithOwner("tester"), cni.WithConfListBytes(s.network("one", "1.0.0", "p"))))
	set, err := r.Setup(t.Context(), "c1", path)
	wantNil(t, err)
	s.takeCalls()
	wantNil(t, r.Load()) // nothing
	all, err := r.Attachments()
	wantNil(t, err)
	if since := time.Since(all[0].Since); since < 0 || since > patience {
		t.Errorf("attached since %v", all[0].Since)
	}
	want := cni.Attachment{ContainerID: "c1", Network: "one", IfName: "eth0", NetNS: path, Owner: "tester", Since: all[0].Since,
		State: cni.Attached, Addresses: []cni.Address{{Prefix: netip.MustParsePrefix("10.0.0.1/24")}}}
	wantSame(t, "attachments", all, []cni.Attachment{want})
	found, err := r.Lookup("c1")
	wantNil(t, err)
	wantSame(t, "result", jsonOf(t, found), jsonOf(t, set))
	wantSame(t, "raw results", jsonOf(t, found.Raw()), jsonOf(t, set.Raw()))
	_, err = r.Lookup("../c1")
	wantIs(t, err, cni.ErrInvalidArgument)
	wantSame(t, "calls", s.took(), []string{})

	s.on("p", "DEL", says(5, "stuck"))
	removal := r.Remove(t.Context(), "c1", "")
	all, err = r.Attachments()
	wantNil(t, err)
	want.State, want.Failures, want.LastError = cni.Failed, 1, errors.Unwrap(removal).Error()
	wantSame(t, "attachments after a failure", all, []cni.Attachment{want})
}

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	wantNil(t, err)
	return string(data)
}
