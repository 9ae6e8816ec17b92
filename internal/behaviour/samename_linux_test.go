package behaviour_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// sameNamed returns two configurations with the name "net", of p (eth0) and of
// q (eth2), with the network of l (eth1) between them. Concourse has its IPv4
// list, the loopback network and its IPv6 list in that order.
func sameNamed(t *testing.T, version string) (s *stage, load []cni.Opt, path string) {
	t.Helper()
	s = newStage(t)
	for typ, address := range map[string]string{"p": "10.0.0.1/24", "q": "fd00::1/64", "l": "127.0.0.1/8"} {
		action := gives(address)
		out := strings.Replace(strings.Replace(*action.Stdout, "1.0.0", version, 1), `"dns":{}`, fmt.Sprintf(`"dns":{"domain":%q}`, typ), 1)
		action.Stdout = &out
		s.On(typ, "ADD", action)
	}
	s.LogEnds("p", "q", "l")
	for _, n := range [][2]string{{"net", "p"}, {"between", "l"}, {"net", "q"}} {
		load = append(load, cni.WithConfListBytes(s.Network(n[0], version, n[1])))
	}
	return s, load, s.Container("c1")
}

// withoutEnds returns the begin lines of calls.
func withoutEnds(lines []string) (begun []string) {
	for _, l := range lines {
		if !strings.HasPrefix(l, "end of ") {
			begun = append(begun, l)
		}
	}
	return begun
}

// TestFault_F32_TwoConfigurationsOfOneName, as Concourse uses them: each gives
// its interface addresses, one after the other. Both are removed, with or
// without the container's namespace.
func TestFault_F32_TwoConfigurationsOfOneName(t *testing.T) {
	s, load, path := sameNamed(t, "1.0.0")
	r := s.Runtime(load...)
	for _, setup := range []func() (*cni.Result, error){
		func() (*cni.Result, error) { return r.Setup(t.Context(), "c1", path) },
		func() (*cni.Result, error) { return r.SetupSerially(t.Context(), "c1", path) },
	} {
		for _, removePath := range []string{"", path} {
			res := expect.Value(setup())(t)
			var order []string
			for _, line := range s.Took() {
				if !strings.Contains(line, " l ") { // the other network's plugins run concurrently
					order = append(order, line)
				}
			}
			expect.Same(t, "calls", order, []string{"ADD p c1/eth0", "end of ADD p c1/eth0", "ADD q c1/eth2", "end of ADD q c1/eth2"})
			expect.Same(t, "results", addresses(res), []string{"net eth0 10.0.0.1/24", "between eth1 127.0.0.1/8", "net eth2 fd00::1/64"})
			expect.Same(t, "DNS", res.DNS, []types.DNS{{Domain: "p"}, {Domain: "l"}, {Domain: "q"}})
			expect.Same(t, "cache", s.Cached(), []string{"between-c1-eth1", "net-c1-eth0", "net-c1-eth2"})
			expect.Same(t, "looked up", addresses(expect.Value(r.Lookup("c1"))(t)), addresses(res))
			expect.NoError(t, r.Check(t.Context(), "c1", path))
			expect.NoError(t, r.Remove(t.Context(), "c1", removePath))
			expect.Same(t, "calls", withoutEnds(s.Took()), []string{"CHECK p c1/eth0", "CHECK l c1/eth1", "CHECK q c1/eth2",
				"DEL q c1/eth2", "DEL l c1/eth1", "DEL p c1/eth0"})
			expect.Same(t, "cache", s.Cached(), []string{})
			expect.Is(t, errOf(r.Lookup("c1")), cni.ErrNotAttached)
		}
	}
}

// TestFault_F32_TheNameMeansAllOfIt: the name selects all lists, and name and
// interface select one.
func TestFault_F32_TheNameMeansAllOfIt(t *testing.T) {
	s, load, path := sameNamed(t, "1.0.0")
	r := s.Runtime(load...)
	all, second := cni.WithNetwork("net"), cni.WithNetwork("net", cni.WithInterfaceName("eth2"), cni.WithArgs("K", "v"))
	res := testhost.MustSetUp(t, r, "c1", path, all)
	expect.Same(t, "results", addresses(res), []string{"net eth0 10.0.0.1/24", "net eth2 fd00::1/64"})
	s.Took()
	expect.NoError(t, r.Check(t.Context(), "c1", path, second))
	expect.NoError(t, r.Remove(t.Context(), "c1", path, second))
	expect.Same(t, "calls", withoutEnds(s.Took()), []string{"CHECK q c1/eth2", "DEL q c1/eth2"})
	expect.Is(t, r.Check(t.Context(), "c1", path, all), cni.ErrNotAttached)
	s.AddLink("c1", "eth0")
	s.Took()
	testhost.MustSetUp(t, r, "c1", path, second)
	expect.Same(t, "arguments", s.TakeCalls()[0].Args, "K=v")
	expect.Is(t, errOf(r.Setup(t.Context(), "c1", path, all)), cni.ErrAlreadyAttached)
	expect.NoError(t, r.Remove(t.Context(), "c1", "", all))
	expect.Same(t, "calls", withoutEnds(s.Took()), []string{"DEL q c1/eth2", "DEL p c1/eth0"})
	expect.Same(t, "cache", s.Cached(), []string{})
}

// TestFault_F32_AnInterfaceThatDoesNotMeanOneIsRefused: one list must not be
// mistaken for the other, and two must not get the same interface.
func TestFault_F32_AnInterfaceThatDoesNotMeanOneIsRefused(t *testing.T) {
	s, load, path := sameNamed(t, "1.0.0")
	r := s.Runtime(load...)
	for _, ifName := range []string{"eth9", "eth1"} {
		opt := cni.WithNetwork("net", cni.WithInterfaceName(ifName))
		s.refusedByAll(r, ifName, "c1", path, cni.ErrInvalidArgument, opt)
		_, err := r.Setup(t.Context(), "c1", path, opt)
		expect.Same(t, "error", err.Error(), `set up container "c1": 0 of the 2 configurations named "net" were loaded for interface "`+ifName+
			`" (loaded for: eth0, eth2), and one must be meant: invalid argument`)
	}
	single := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "type": "p", "script": %q}`, s.Path("script-p"))
	both := s.Runtime(cni.WithConf(single), cni.WithConf(single))
	s.refusedByAll(both, "one interface for two", "c1", path, cni.ErrInvalidArgument, cni.WithNetwork("net", cni.WithInterfaceName("eth0")))
	_, err := both.Setup(t.Context(), "c1", path)
	expect.Same(t, "error", err.Error(), `set up container "c1": networks "net" and "net" both want interface eth0: invalid argument`)
	expect.Same(t, "calls", s.Took(), []string{})
}

// TestFault_F32_ANetworkOfSeveralByItself.
func TestFault_F32_ANetworkOfSeveralByItself(t *testing.T) {
	s, load, path := sameNamed(t, "1.0.0")
	r := s.Runtime(load...)
	ns := namespaceOf(t, r, "c1", path)
	first, second := r.Networks()[0], r.Networks()[2]
	for _, n := range []*cni.Network{first, second} {
		expect.Value(n.Attach(t.Context(), ns))(t)
		s.AddLink("c1", map[*cni.Network]string{first: "eth0", second: "eth2"}[n])
	}
	expect.NoError(t, second.Check(t.Context(), ns))
	expect.NoError(t, first.Remove(t.Context(), ns))
	expect.Same(t, "calls", withoutEnds(s.Took()), []string{"ADD p c1/eth0", "ADD q c1/eth2", "CHECK q c1/eth2", "DEL p c1/eth0"})
	expect.Is(t, first.Check(t.Context(), ns), cni.ErrNotAttached)
	expect.NoError(t, second.Check(t.Context(), ns))
	expect.NoError(t, second.Remove(t.Context(), ns))
	expect.Same(t, "calls", withoutEnds(s.Took()), []string{"CHECK q c1/eth2", "DEL q c1/eth2"})
	expect.Same(t, "cache", s.Cached(), []string{})
}

// TestFault_F32_TheSecondOfANameFails: in the same Setup the first one is
// undone too. An earlier attachment of the first stays.
func TestFault_F32_TheSecondOfANameFails(t *testing.T) {
	s, load, path := sameNamed(t, "1.0.0")
	s.On("q", "ADD", testhost.Says(5, "no"))
	r := s.Runtime(load...)
	_, err := r.Setup(t.Context(), "c1", path, cni.WithNetwork("net"))
	expect.Same(t, "errors", testhost.Messages(err), []string{"q: no"})
	fails(t, err, `network "net" of container c1, interface eth2`)
	expect.Same(t, "calls", withoutEnds(s.Took()), []string{"ADD p c1/eth0", "ADD q c1/eth2", "DEL q c1/eth2", "DEL p c1/eth0"})
	expect.Same(t, "cache", s.Cached(), []string{})
	testhost.MustSetUp(t, r, "c1", path, cni.WithNetwork("net", cni.WithInterfaceName("eth0")))
	s.AddLink("c1", "eth0")
	s.Took()
	_, err = r.Setup(t.Context(), "c1", path, cni.WithNetwork("net", cni.WithInterfaceName("eth2")))
	expect.Same(t, "errors", testhost.Messages(err), []string{"q: no"})
	expect.Same(t, "calls", withoutEnds(s.Took()), []string{"ADD q c1/eth2", "DEL q c1/eth2"})
	expect.NoError(t, r.Check(t.Context(), "c1", path, cni.WithNetwork("net", cni.WithInterfaceName("eth0"))))
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
}

// TestFault_F32_GoCNIsContainersOfTwoListsOfOneName have no record. libcni's
// cache names each interface's list, regardless of the present order.
func TestFault_F32_GoCNIsContainersOfTwoListsOfOneName(t *testing.T) {
	s, load, path := sameNamed(t, "1.0.0")
	testhost.MustSetUp(t, s.Runtime(load...), "c1", path)
	s.Unrecord("c1")
	for _, ifName := range []string{"eth0", "eth1", "eth2"} {
		s.AddLink("c1", ifName)
	}
	s.Took()
	r := s.Runtime(load[2], load[1], load[0])
	expect.Is(t, errOf(r.Setup(t.Context(), "c1", path)), cni.ErrAlreadyAttached)
	expect.Same(t, "calls", s.Took(), []string{})
	expect.NoError(t, r.Remove(t.Context(), "c1", path, cni.WithNetwork("net", cni.WithInterfaceName("eth2"))))
	expect.Same(t, "calls", withoutEnds(s.Took()), []string{"DEL q c1/eth2"})
	expect.Same(t, "cache", s.Cached(), []string{"between-c1-eth1", "net-c1-eth0"})
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.Same(t, "calls", withoutEnds(s.Took())[1:], []string{"DEL l c1/eth1", "DEL p c1/eth0"})
	expect.Same(t, "cache", s.Cached(), []string{})
}

// TestFault_F32_GCOfOneListKeepsTheOthersAttachments. STATUS names the list
// that it reports on.
func TestFault_F32_GCOfOneListKeepsTheOthersAttachments(t *testing.T) {
	s, load, path := sameNamed(t, "1.1.0")
	r := s.Runtime(load...)
	testhost.MustSetUp(t, r, "c1", path)
	for _, ifName := range []string{"eth0", "eth1", "eth2"} {
		s.AddLink("c1", ifName)
	}
	s.Took()
	expect.Value(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}}))(t)
	const c1 = `{"containerID":"c1","ifname":`
	valid := map[string]string{}
	for _, call := range s.TakeCalls() {
		if !call.Ended {
			valid[call.Verb+" "+call.Type] = expect.JSON(t, testhost.Request(t, call)["cni.dev/valid-attachments"])
		}
	}
	both := "[" + c1 + `"eth0"},` + c1 + `"eth2"}]`
	expect.Same(t, "valid attachments", valid, map[string]string{"GC p": both, "GC q": both, "GC l": "[" + c1 + `"eth1"}]`})
	s.On("q", "STATUS", testhost.Says(50, "not ready"))
	text := fmt.Sprint(r.Status())
	expect.That(t, strings.HasPrefix(text, `status network "net" for interface eth2: `), "Status is %q, and does not say which of the two", text)
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
}

// TestFault_F32_ANetworkWithoutAName can be loaded, but no container attached
// to it. Its presence does not prevent the removal of other containers.
func TestFault_F32_ANetworkWithoutAName(t *testing.T) {
	s := newStage(t)
	unnamed, net := cni.WithConfListBytes(s.Network("", "1.1.0", "p")), cni.WithConfListBytes(s.Network("net", "1.1.0", "q"))
	r := s.Runtime(net)
	path := s.Container("c1")
	testhost.MustSetUp(t, r, "c1", path)
	s.Took()
	expect.NoError(t, r.Load(unnamed, net))
	_, err := r.Setup(t.Context(), "c2", s.Container("c2"))
	expect.Is(t, err, cni.ErrInvalidConfig)
	expect.Same(t, "error", err.Error(), `set up container "c2": network for interface eth0: the network has no name: set "name": invalid cni config`)
	ns := namespaceOf(t, r, "c2", s.Path("netns", "c2"))
	expect.Is(t, errOf(r.Networks()[0].Attach(t.Context(), ns)), cni.ErrInvalidConfig)
	expect.Is(t, r.Check(t.Context(), "c1", path), cni.ErrInvalidConfig)
	expect.Is(t, r.Status(), cni.ErrInvalidConfig)
	expect.Value(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}}))(t)
	expect.Same(t, "calls", s.Took(), []string{"GC q /"})
	expect.NoError(t, r.Networks()[0].Remove(t.Context(), ns))
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.NoError(t, r.Remove(t.Context(), "never", ""))
	expect.Same(t, "calls", s.Took(), []string{"DEL q c1/eth0", "DEL q never/eth1"})
}
