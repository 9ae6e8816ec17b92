package behaviour_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// wholeLife sets up, checks and removes container c1, and returns the calls.
func (s *stage) wholeLife(r *cni.Runtime, opts ...cni.NamespaceOpts) []scripted.Call {
	s.T.Helper()
	path := s.Container("c1")
	ctx := s.T.Context()
	expect.Value(r.Setup(ctx, "c1", path, opts...))(s.T)
	expect.NoError(s.T, r.Check(ctx, "c1", path, opts...))
	expect.NoError(s.T, r.Remove(ctx, "c1", path, opts...))
	return s.TakeCalls()
}

// only returns a list of version 1.0.0 with one scripted plugin and additional
// configuration.
func (s *stage) only(more string) cni.Opt {
	s.T.Helper()
	script := s.Plugin(s.Scripts["p"], "p")
	return cni.WithConfListBytes(fmt.Appendf(nil,
		`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type":"p","script":%q,%s}]}`, script, more))
}

func TestDuty_R10_UnknownFieldsReachThePluginToTheByte(t *testing.T) {
	s := newStage(t)
	const more = `"z":{"b":1,"a":[1.0,1e3,  9007199254740993]},"big":18446744073709551617,"html":"<>&\u00e9","none":null`
	calls := s.wholeLife(s.Runtime(s.only(more)))
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"ADD p c1/eth0", "CHECK p c1/eth0", "DEL p c1/eth0"})
	config := fmt.Sprintf(`{"type":"p","script":%q,%s,`, s.Path("script-p"), more)
	for _, c := range calls {
		expect.That(t, strings.HasPrefix(c.Exact, config), "%s read\n%s\nwant it to begin with\n%s", c.Verb, c.Exact, config)
	}
	expect.Same(t, "ADD's request", calls[0].Exact, config+`"cniVersion":"1.0.0","name":"net"}`)
}

// TestDuty_R11_R38_R39_KeysThatDoNotReachThePlugin: those of the runtime in the configuration,
// capabilities, and a result before the first ADD.
func TestDuty_R11_R38_R39_KeysThatDoNotReachThePlugin(t *testing.T) {
	for _, more := range []string{
		`"runtimeConfig":{"portMappings":[{"hostPort":1}]},"cni.dev/valid-attachments":[],"cni.dev/position":7,"cni.dev/x":1`,
		`"capabilities":{"portMappings":true}`,
		`"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"6.6.6.6/24"}]}`,
	} {
		s := newStage(t)
		keys := slices.Sorted(maps.Keys(testhost.Request(t, s.wholeLife(s.Runtime(s.only(more + `,"kept":1`)))[0])))
		expect.Same(t, "keys", keys, []string{"cniVersion", "kept", "name", "script", "type"})
	}
}

func TestDuty_R36_EveryRequestHasTheNetworksNameAndVersion(t *testing.T) {
	s := newStage(t)
	script := s.Plugin(scripted.Script{}, "p", "q")
	r := s.Runtime(cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "net", "plugins": [
		{"type": "p", "script": %q, "name": "other", "cniVersion": "0.1.0"}, {"type": "q", "script": %q}]}`, script, script)))
	expect.NoError(t, r.Status())
	calls := append(s.TakeCalls(), s.wholeLife(r)...)
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"STATUS p /", "STATUS q /", "ADD p c1/eth0", "ADD q c1/eth0",
		"CHECK p c1/eth0", "CHECK q c1/eth0", "DEL q c1/eth0", "DEL p c1/eth0"})
	for _, c := range calls {
		keys := testhost.Request(t, c)
		expect.Same(t, c.Verb+" "+c.Type, []string{keys["name"], keys["cniVersion"]}, []string{`"net"`, `"1.1.0"`})
	}
}

// protocol returns the CNI_* variables of a call.
func protocol(c scripted.Call) []string {
	return slices.DeleteFunc(slices.Clone(c.Env), func(kv string) bool { return !strings.HasPrefix(kv, "CNI_") })
}

func TestDuty_R14_VariablesOfEachVerb(t *testing.T) {
	s := newStage(t)
	t.Setenv("CNI_IFNAME", "of-another-request")
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.1.0", "p")))
	expect.NoError(t, r.Status())
	calls := append(s.TakeCalls(), s.wholeLife(r, cni.WithArgs("K", "v"))...)
	about := func(verb string) []string {
		return []string{"CNI_ARGS=K=v", "CNI_COMMAND=" + verb, "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0",
			"CNI_NETNS=" + s.Path("netns", "c1"), "CNI_PATH=" + s.Path("bin")}
	}
	want := [][]string{
		{"CNI_ARGS=", "CNI_COMMAND=STATUS", "CNI_CONTAINERID=", "CNI_IFNAME=", "CNI_NETNS=", "CNI_PATH=" + s.Path("bin")},
		about("ADD"), about("CHECK"), about("DEL"),
	}
	var got [][]string
	for _, c := range calls {
		got = append(got, protocol(c))
	}
	expect.Same(t, "variables", got, want)
}

func TestDuty_R15_ArgumentsHaveAStableOrder(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	const want = "A=2;EMPTY=;K8S_POD_NAME=x;Z=1;b=the network's own;ignored=true;k.1/2=v v: ü"
	for range 3 {
		calls := s.wholeLife(r, cni.WithArgs("b", "4"), cni.WithArgs("Z", "0"), cni.WithNetwork("net", cni.WithArgs("b", "the network's own")),
			cni.WithLabels(map[string]string{"Z": "1", "A": "2", "EMPTY": "", "K8S_POD_NAME": "x", "ignored": "true", "k.1/2": "v v: ü"}))
		for _, c := range calls {
			expect.Same(t, c.Verb, c.Args, want)
		}
		s.RemoveNetNS("c1")
	}
}

func TestDuty_R15_UnencodableArgumentsAreRefusedBeforeAnythingRuns(t *testing.T) {
	s, r, path := oneNetwork(t, "p")
	for _, kv := range [][2]string{{"x", "x;IP=10.0.0.9"}, {"x;y", "1"}, {"x", "a=b"}, {"x=", ""},
		{"x", "a\x00b"}, {"x", "a\nb"}, {"x", "a\rb"}, {"x\n", "1"}, {"", "v"}} {
		for where, opt := range map[string]cni.NamespaceOpts{
			"WithArgs": cni.WithArgs(kv[0], kv[1]), "WithLabels": cni.WithLabels(map[string]string{kv[0]: kv[1]}),
			"WithNetwork": cni.WithNetwork("net", cni.WithArgs(kv[0], kv[1])),
		} {
			for verb, err := range s.everyVerb(r, "c1", path, opt) {
				expect.Fails(t, fmt.Sprintf("%s with %s of %q: no error", verb, where, kv), err)
				expect.Is(t, err, cni.ErrInvalidArgument)
			}
		}
	}
	expect.Same(t, "calls", s.Took(), []string{})
}

// everyVerb calls Setup, SetupSerially, Check and Remove.
func (s *stage) everyVerb(r *cni.Runtime, id, path string, opts ...cni.NamespaceOpts) map[string]error {
	ctx := s.T.Context()
	_, setup := r.Setup(ctx, id, path, opts...)
	_, serially := r.SetupSerially(ctx, id, path, opts...)
	return map[string]error{"Setup": setup, "SetupSerially": serially,
		"Check": r.Check(ctx, id, path, opts...), "Remove": r.Remove(ctx, id, path, opts...)}
}

func TestDuty_R30_PluginsAreFoundAlongThePathThatTheyAreTold(t *testing.T) {
	s := newStage(t)
	conf := s.Network("net", "1.0.0", "p")
	write(s.Host, "first/other", "not a plugin")
	expect.NoError(t, os.MkdirAll(s.Path("third"), 0o755))
	expect.NoError(t, os.Symlink(refplugins.Scripted(), s.Path("third", "p")))
	dirs := []string{s.Path("first"), s.Path("missing"), s.Path("bin"), s.Path("third")}
	for _, c := range s.wholeLife(s.Runtime(cni.WithPluginDir(dirs), cni.WithConfListBytes(conf))) {
		expect.Same(t, c.Verb+": CNI_PATH", c.Path, strings.Join(dirs, ":"))
	}
	expect.NoError(t, os.Remove(s.Path("bin", "p")))
	_, err := s.Runtime(cni.WithPluginDir(dirs[:3]), cni.WithConfListBytes(conf)).Setup(t.Context(), "c2", s.Container("c2"))
	expect.Is(t, err, cni.ErrPluginNotFound)
	fails(t, err, fmt.Sprintf("failed to find plugin %q in path %s", "p", dirs[:3]))
}

// gives is an ADD whose result is one address, in version 1.0.0.
func gives(address string) scripted.Action {
	out := fmt.Sprintf(`{"cniVersion":"1.0.0","ips":[{"address":%q}],"dns":{}}`, address)
	return scripted.Action{Stdout: &out}
}

// prevResults returns the first address of each call's prevResult.
func prevResults(t testing.TB, calls []scripted.Call) []string {
	t.Helper()
	var got []string
	for _, c := range calls {
		var prev struct {
			IPs []struct{ Address string }
		}
		address := "none"
		if raw, ok := testhost.Request(t, c)["prevResult"]; ok {
			expect.NoError(t, json.Unmarshal([]byte(raw), &prev))
			address = prev.IPs[0].Address
		}
		got = append(got, c.Verb+" "+c.Type+" "+address)
	}
	return got
}

func TestDuty_R31_ADDInOrderWithTheResultBefore(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q", "r")))
	s.On("p", "ADD", gives("10.0.0.1/24"))
	s.On("q", "ADD", gives("10.0.0.2/24"))
	s.On("r", "ADD", gives("10.0.0.3/24"))
	calls := s.wholeLife(r)
	expect.Same(t, "prevResults", prevResults(t, calls), []string{"ADD p none", "ADD q 10.0.0.1/24", "ADD r 10.0.0.2/24",
		"CHECK p 10.0.0.3/24", "CHECK q 10.0.0.3/24", "CHECK r 10.0.0.3/24",
		"DEL r 10.0.0.3/24", "DEL q 10.0.0.3/24", "DEL p 10.0.0.3/24"})
}

func TestDuty_R27_AFailedADDIsFollowedByADELInTheSameCall(t *testing.T) {
	s, r, path := oneNetwork(t, "p", "q")
	s.On("p", "ADD", testhost.Says(7, "half done"))
	_, err := r.Setup(t.Context(), "c1", path)
	got := testhost.AsError(t, err)
	got.Err = nil
	expect.Same(t, "error", *got, cni.Error{Op: "ADD", Network: "net", Plugin: "p", PluginKind: "executable", ContainerID: "c1", IfName: "eth0",
		Code: 7, Msg: "half done"})
	expect.Same(t, "calls", s.Took(), []string{"ADD p c1/eth0", "DEL q c1/eth0", "DEL p c1/eth0"})
}

func TestDuty_R33_F9_PluginsBehindAnErrorAreAskedAndAllErrorsReturned(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithTimeouts(cni.Timeouts{Del: 3 * time.Second}),
		cni.WithConfListBytes(s.Network("one", "1.0.0", "p", "q")), cni.WithConfListBytes(s.Network("two", "1.0.0", "r", "s", "t", "u")))
	path := s.Container("c1")
	testhost.MustSetUp(t, r, "c1", path)
	s.TakeCalls()
	s.On("t", "DEL", scripted.Action{Hang: true})
	s.On("s", "DEL", scripted.Action{Signal: 9})
	s.On("q", "DEL", scripted.Action{Exit: 2})
	s.On("p", "DEL", testhost.Says(5, "one"))
	expect.NoError(t, os.Remove(s.Path("bin", "r")))
	for range 2 { // an unclean container is removed again, with all the arguments of its ADD
		err := expect.Await(t, "Remove", testhost.Begin(func() error { return r.Remove(t.Context(), "c1", path) }))
		expect.Is(t, err, context.DeadlineExceeded, cni.ErrPluginNotFound)
		expect.Same(t, "errors", testhost.Messages(err), []string{"t: ", "s: ", "r: ", "q: ", "p: one"})
		calls := s.TakeCalls()
		expect.Same(t, "calls", testhost.Rendered(calls), []string{"DEL u c1/eth1", "DEL t c1/eth1", "DEL s c1/eth1", "DEL q c1/eth0", "DEL p c1/eth0"})
		for _, c := range calls {
			_, ok := testhost.Request(t, c)["prevResult"]
			expect.That(t, ok, "DEL %s without prevResult", c.Type)
		}
		expect.Same(t, "cache", s.Cached(), []string{"one-c1-eth0", "two-c1-eth1"})
	}
	for _, typ := range []string{"p", "q", "r", "s", "t"} {
		s.On(typ, "DEL", scripted.Action{})
	}
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.Same(t, "calls", s.Took(), []string{"DEL u c1/eth1", "DEL t c1/eth1", "DEL s c1/eth1", "DEL r c1/eth1", "DEL q c1/eth0", "DEL p c1/eth0"})
	expect.Same(t, "cache", s.Cached(), []string{})
}

func TestDuty_R34_CHECKInOrderUntilTheFirstErrorWithLoopbackLoaded(t *testing.T) {
	s := newStage(t)
	s.Plugin(scripted.Script{}, "loopback") // its configuration has no script
	r := s.Runtime(cni.WithLoNetwork, cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q", "r")))
	path := s.Container("c1")
	testhost.MustSetUp(t, r, "c1", path)
	s.TakeCalls()
	expect.NoError(t, r.Check(t.Context(), "c1", path))
	expect.Same(t, "calls", s.Took(), []string{"CHECK p c1/eth1", "CHECK q c1/eth1", "CHECK r c1/eth1"})
	s.On("q", "CHECK", testhost.Says(100, "gone"))
	expect.Same(t, "errors", testhost.Messages(r.Check(t.Context(), "c1", path)), []string{"q: gone"})
	expect.Same(t, "calls", s.Took(), []string{"CHECK p c1/eth1", "CHECK q c1/eth1"})
}

func TestDuty_R6_ANetworkThatDisablesCHECKIsPassedOver(t *testing.T) {
	s := newStage(t)
	script := s.Plugin(scripted.Script{}, "p")
	r := s.Runtime(cni.WithConfListBytes(fmt.Appendf(nil,
		`{"cniVersion": "1.0.0", "name": "net", "disableCheck": true, "plugins": [{"type": "p", "script": %q}]}`, script)),
		cni.WithConfListBytes(s.Network("two", "1.0.0", "q")))
	calls := s.wholeLife(r)
	checks := slices.DeleteFunc(calls, func(c scripted.Call) bool { return c.Verb != "CHECK" })
	expect.Same(t, "checks", testhost.Rendered(checks), []string{"CHECK q c1/eth1"})
}

func TestDuty_R42_UnknownContainerAtDELMeansNothingToClean(t *testing.T) {
	s, r, path := oneNetwork(t, "p", "q")
	testhost.MustSetUp(t, r, "c1", path)
	s.On("p", "DEL", testhost.Says(3, "never heard of it"))
	s.On("q", "DEL", testhost.Says(3, "never heard of it"))
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.Is(t, r.Check(t.Context(), "c1", path), cni.ErrNotAttached)
	s.On("p", "CHECK", testhost.Says(3, "never heard of it"))
	testhost.MustSetUp(t, r, "c1", path)
	expect.Same(t, "code at CHECK", testhost.AsError(t, r.Check(t.Context(), "c1", path)).Code, 3)
}

func TestDuty_R43_StderrIsInTheErrorAndInTheLogAndBounded(t *testing.T) {
	s := newStage(t)
	var log testhost.Log
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")), log.Logger())
	path := s.Container("c1")
	s.On("p", "ADD", scripted.Action{StderrBytes: 1 << 20, Stderr: "\nnext to last\nlast", Exit: 1, Stdout: testhost.Says(5, "no").Stdout})
	_, err := r.Setup(t.Context(), "c1", path)
	want := strings.Repeat("x", 64<<10-len("\nnext to last\nlast")) + "\nnext to last\nlast"
	if got := testhost.AsError(t, err).Stderr; got != want {
		t.Errorf("stderr of %d bytes that ends in %q, want %d bytes", len(got), got[max(0, len(got)-30):], len(want))
	}
	s.On("p", "ADD", scripted.Action{Stderr: "worth a look\n"})
	testhost.MustSetUp(t, r, "c1", path)
	lines := log.Lines("INFO")
	expect.Same(t, "lines at level info", len(lines), 2)
	expect.Same(t, "second", lines[len(lines)-1], `msg="plugin call" operation=ADD network=net plugin=p kind=executable container=c1 interface=eth0 stderr="worth a look\n"`)
	n := len(lines[0])
	expect.That(t, n <= 200<<10, "a line of %d bytes", n)
}
