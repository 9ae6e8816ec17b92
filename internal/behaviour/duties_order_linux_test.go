package behaviour_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

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
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q")))
	s.On("p", "ADD", testhost.Says(7, "half done"))
	_, err := r.Setup(t.Context(), "c1", s.Container("c1"))
	got := testhost.AsError(t, err)
	got.Err = nil
	expect.Same(t, "error", *got, cni.Error{Op: "ADD", Network: "net", Plugin: "p", PluginKind: "executable", ContainerID: "c1", IfName: "eth0",
		Code: 7, Msg: "half done"})
	expect.Same(t, "calls", s.Took(), []string{"ADD p c1/eth0", "DEL q c1/eth0", "DEL p c1/eth0"})
}

func TestDuty_R33_PluginsBehindAnErrorAreAskedAndAllErrorsReturned(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("one", "1.0.0", "p", "q", "r")), cni.WithConfListBytes(s.Network("two", "1.0.0", "s")))
	path := s.Container("c1")
	testhost.MustSetUp(t, r, "c1", path)
	s.TakeCalls()
	s.On("s", "DEL", testhost.Says(5, "four"))
	s.On("r", "DEL", testhost.Says(5, "three"))
	s.On("p", "DEL", testhost.Says(5, "one"))
	all := []string{"DEL s c1/eth1", "DEL r c1/eth0", "DEL q c1/eth0", "DEL p c1/eth0"}
	for range 2 { // an unclean container is removed again, with all the arguments of its ADD
		err := r.Remove(t.Context(), "c1", path)
		expect.Same(t, "errors", testhost.Messages(err), []string{"s: four", "r: three", "p: one"})
		calls := s.TakeCalls()
		expect.Same(t, "calls", testhost.Rendered(calls), all)
		for _, c := range calls {
			if _, ok := testhost.Request(t, c)["prevResult"]; !ok {
				t.Errorf("DEL %s without prevResult", c.Type)
			}
		}
	}
	for _, typ := range []string{"p", "r", "s"} {
		s.On(typ, "DEL", scripted.Action{})
	}
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.Same(t, "calls", s.Took(), all)
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
	err := r.Check(t.Context(), "c1", path)
	expect.Same(t, "errors", testhost.Messages(err), []string{"q: gone"})
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
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q")))
	path := s.Container("c1")
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
	if n := len(lines[0]); n > 200<<10 {
		t.Errorf("a line of %d bytes", n)
	}
}
