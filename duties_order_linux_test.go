package cni_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/scripted"
)

// gives is an ADD whose result has one address and nothing else, in version 1.0.0.
func gives(address string) scripted.Action {
	out := fmt.Sprintf(`{"cniVersion":"1.0.0","ips":[{"address":%q}],"dns":{}}`, address)
	return scripted.Action{Stdout: &out}
}

// prevResults are what calls were given as prevResult: its first address.
func prevResults(t testing.TB, calls []scripted.Call) []string {
	t.Helper()
	var got []string
	for _, c := range calls {
		var prev struct {
			IPs []struct{ Address string }
		}
		address := "none"
		if raw, ok := request(t, c)["prevResult"]; ok {
			wantNil(t, json.Unmarshal([]byte(raw), &prev))
			address = prev.IPs[0].Address
		}
		got = append(got, c.Verb+" "+c.Type+" "+address)
	}
	return got
}

func TestDuty_R31_ADDInOrderWithTheResultBefore(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q", "r")))
	s.on("p", "ADD", gives("10.0.0.1/24"))
	s.on("q", "ADD", gives("10.0.0.2/24"))
	s.on("r", "ADD", gives("10.0.0.3/24"))
	calls := s.wholeLife(r)
	wantSame(t, "prevResults", prevResults(t, calls), []string{"ADD p none", "ADD q 10.0.0.1/24", "ADD r 10.0.0.2/24",
		"CHECK p 10.0.0.3/24", "CHECK q 10.0.0.3/24", "CHECK r 10.0.0.3/24",
		"DEL r 10.0.0.3/24", "DEL q 10.0.0.3/24", "DEL p 10.0.0.3/24"})
}

func TestDuty_R31_ADDHaltsAtTheFirstError(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q", "r")))
	s.on("q", "ADD", says(11, "not now"))
	_, err := r.Setup(t.Context(), "c1", s.container("c1"))
	wantSame(t, "plugin", asError(t, err).Plugin, "q")
	adds := slices.DeleteFunc(s.took(), func(line string) bool { return !strings.HasPrefix(line, "ADD") })
	wantSame(t, "calls", adds, []string{"ADD p c1/eth0", "ADD q c1/eth0"})
}

func TestDuty_R27_AFailedADDIsFollowedByADELInTheSameCall(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q")))
	s.on("p", "ADD", says(7, "half done"))
	_, err := r.Setup(t.Context(), "c1", s.container("c1"))
	got := asError(t, err)
	got.Err = nil
	wantSame(t, "error", *got, cni.Error{Op: "ADD", Network: "net", Plugin: "p", PluginKind: cni.PluginExecutable, ContainerID: "c1", IfName: "eth0",
		Code: 7, Msg: "half done"})
	wantSame(t, "calls", s.took(), []string{"ADD p c1/eth0", "DEL q c1/eth0", "DEL p c1/eth0"})
}

func TestDuty_R33_DELInReverseOrderInAndAcrossNetworks(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("one", "1.0.0", "p", "q")), cni.WithConfListBytes(s.network("two", "1.0.0", "r", "s")))
	path := s.container("c1")
	if _, err := r.SetupSerially(t.Context(), "c1", path); err != nil {
		t.Fatal(err)
	}
	wantNil(t, r.Remove(t.Context(), "c1", path))
	wantSame(t, "calls", s.took(), []string{"ADD p c1/eth0", "ADD q c1/eth0", "ADD r c1/eth1", "ADD s c1/eth1",
		"DEL s c1/eth1", "DEL r c1/eth1", "DEL q c1/eth0", "DEL p c1/eth0"})
}

// messages are the plugins' own words of all errors in err.
func messages(err error) []string {
	var all []string
	if e, ok := err.(*cni.Error); ok {
		return []string{e.Plugin + ": " + e.Msg}
	}
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			all = append(all, messages(inner)...)
		}
	case interface{ Unwrap() error }:
		all = messages(e.Unwrap())
	}
	return all
}

func TestDuty_R33_PluginsBehindAnErrorAreAskedAndAllErrorsReturned(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("one", "1.0.0", "p", "q", "r")), cni.WithConfListBytes(s.network("two", "1.0.0", "s")))
	path := s.container("c1")
	_, err := r.Setup(t.Context(), "c1", path)
	wantNil(t, err)
	s.takeCalls()
	s.on("s", "DEL", says(5, "four"))
	s.on("r", "DEL", says(5, "three"))
	s.on("p", "DEL", says(5, "one"))
	all := []string{"DEL s c1/eth1", "DEL r c1/eth0", "DEL q c1/eth0", "DEL p c1/eth0"}
	for range 2 { // what is not clean is asked again, with all that the ADD was given
		err := r.Remove(t.Context(), "c1", path)
		wantSame(t, "errors", messages(err), []string{"s: four", "r: three", "p: one"})
		calls := s.takeCalls()
		wantSame(t, "calls", rendered(calls), all)
		for _, c := range calls {
			if _, ok := request(t, c)["prevResult"]; !ok {
				t.Errorf("DEL %s without prevResult", c.Type)
			}
		}
	}
	for _, typ := range []string{"p", "r", "s"} {
		s.on(typ, "DEL", scripted.Action{})
	}
	wantNil(t, r.Remove(t.Context(), "c1", path))
	wantSame(t, "calls", s.took(), all)
}

func TestDuty_R34_CHECKInOrderUntilTheFirstErrorWithLoopbackLoaded(t *testing.T) {
	s := newStage(t)
	s.plugin(scripted.Script{}, "loopback") // has no script in its configuration
	r := s.runtime(cni.WithLoNetwork, cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q", "r")))
	path := s.container("c1")
	_, err := r.Setup(t.Context(), "c1", path)
	wantNil(t, err)
	s.takeCalls()
	wantNil(t, r.Check(t.Context(), "c1", path))
	wantSame(t, "calls", s.took(), []string{"CHECK p c1/eth1", "CHECK q c1/eth1", "CHECK r c1/eth1"})
	s.on("q", "CHECK", says(100, "gone"))
	err = r.Check(t.Context(), "c1", path)
	wantSame(t, "errors", messages(err), []string{"q: gone"})
	wantSame(t, "calls", s.took(), []string{"CHECK p c1/eth1", "CHECK q c1/eth1"})
}

func TestDuty_R6_ANetworkThatDisablesCHECKIsPassedOver(t *testing.T) {
	s := newStage(t)
	script := s.plugin(scripted.Script{}, "p")
	r := s.runtime(cni.WithConfListBytes(fmt.Appendf(nil,
		`{"cniVersion": "1.0.0", "name": "net", "disableCheck": true, "plugins": [{"type": "p", "script": %q}]}`, script)),
		cni.WithConfListBytes(s.network("two", "1.0.0", "q")))
	calls := s.wholeLife(r)
	checks := slices.DeleteFunc(calls, func(c scripted.Call) bool { return c.Verb != "CHECK" })
	wantSame(t, "checks", rendered(checks), []string{"CHECK q c1/eth1"})
}

func TestDuty_R18_NoCHECKForWhatIsNotAttached(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
	path := s.container("c1")
	wantIs(t, r.Check(t.Context(), "c1", path), cni.ErrNotAttached)
	wantSame(t, "calls", s.took(), []string{})
	_, err := r.Setup(t.Context(), "c1", path)
	wantNil(t, err)
	wantNil(t, r.Remove(t.Context(), "c1", path))
	s.takeCalls()
	wantIs(t, r.Check(t.Context(), "c1", path), cni.ErrNotAttached)
	wantSame(t, "calls", s.took(), []string{})
}

// attachedWith sets up c1 with an argument, a configuration argument and ports,
// forgets all that in memory, and returns what a verb without options gives the
// plugin, by another Runtime.
func attachedWith(t *testing.T, verb string, run func(*cni.Runtime, string) error) {
	t.Helper()
	s := newStage(t)
	conf := s.only(`"capabilities":{"portMappings":true},"args":{"cni":{"x":1}}`)
	s.on("p", "ADD", gives("10.0.0.1/24"))
	path := s.container("c1")
	_, err := s.runtime(conf).Setup(t.Context(), "c1", path, cni.WithArgs("K", "v"), cni.WithConfigArgs("y", int64(1)<<60+1),
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8080, ContainerPort: 80}}))
	wantNil(t, err)
	s.takeCalls()
	wantNil(t, run(s.runtime(conf), path))
	calls := s.takeCalls()
	wantSame(t, "calls", rendered(calls), []string{verb + " p c1/eth0"})
	keys := request(t, calls[0])
	wantSame(t, "CNI_ARGS", calls[0].Args, "K=v")
	wantSame(t, "prevResult", canonical(t, keys["prevResult"]), `{"cniVersion":"1.0.0","dns":{},"ips":[{"address":"10.0.0.1/24"}]}`)
	wantSame(t, "runtimeConfig", canonical(t, keys["runtimeConfig"]),
		`{"portMappings":[{"containerPort":80,"hostPort":8080,"protocol":"tcp"}]}`)
	wantSame(t, "args", canonical(t, keys["args"]), `{"cni":{"x":1,"y":1152921504606846977}}`)
}

func TestDuty_R17_DELHasTheResultAndParametersOfTheADD(t *testing.T) {
	attachedWith(t, "DEL", func(r *cni.Runtime, path string) error { return r.Remove(t.Context(), "c1", path) })
}

func TestDuty_R19_R20_CHECKHasTheResultAndParametersOfTheADD(t *testing.T) {
	attachedWith(t, "CHECK", func(r *cni.Runtime, path string) error { return r.Check(t.Context(), "c1", path) })
}

func TestDuty_R41_TryAgainLaterIsKeptInTheError(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
	s.on("p", "ADD", says(11, "busy"))
	_, err := r.Setup(t.Context(), "c1", s.container("c1"))
	wantSame(t, "code", asError(t, err).Code, 11)
	const want = `add network "net" of container c1, interface eth0: plugin type="p" failed (add): busy (code 11); ` +
		`the plugin asks to be tried again later`
	wantSame(t, "text", err.Error(), want)
}

func TestDuty_R42_UnknownContainerAtDELMeansNothingToClean(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q")))
	path := s.container("c1")
	_, err := r.Setup(t.Context(), "c1", path)
	wantNil(t, err)
	s.on("p", "DEL", says(3, "never heard of it"))
	s.on("q", "DEL", says(3, "never heard of it"))
	wantNil(t, r.Remove(t.Context(), "c1", path))
	wantIs(t, r.Check(t.Context(), "c1", path), cni.ErrNotAttached)
	s.on("p", "CHECK", says(3, "never heard of it"))
	_, err = r.Setup(t.Context(), "c1", path)
	wantNil(t, err)
	wantSame(t, "code at CHECK", asError(t, r.Check(t.Context(), "c1", path)).Code, 3)
}

func TestDuty_R43_StderrIsInTheErrorAndInTheLogAndBounded(t *testing.T) {
	s := newStage(t)
	var log logged
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p")), log.logger())
	path := s.container("c1")
	s.on("p", "ADD", scripted.Action{StderrBytes: 1 << 20, Stderr: "\nnext to last\nlast", Exit: 1, Stdout: says(5, "no").Stdout})
	_, err := r.Setup(t.Context(), "c1", path)
	want := strings.Repeat("x", 64<<10-len("\nnext to last\nlast")) + "\nnext to last\nlast"
	if got := asError(t, err).Stderr; got != want {
		t.Errorf("stderr of %d bytes that ends in %q, want %d bytes", len(got), got[max(0, len(got)-30):], len(want))
	}
	s.on("p", "ADD", scripted.Action{Stderr: "worth a look\n"})
	_, err = r.Setup(t.Context(), "c1", path)
	wantNil(t, err)
	lines := log.lines("INFO")
	wantSame(t, "lines at level info", len(lines), 2)
	wantSame(t, "second", lines[len(lines)-1], `msg="plugin call" operation=ADD network=net plugin=p kind=executable container=c1 interface=eth0 stderr="worth a look\n"`)
	if n := len(lines[0]); n > 200<<10 {
		t.Errorf("a line of %d bytes", n)
	}
}
