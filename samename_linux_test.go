package cni_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
)

// sameNamed are two configurations of the name "net", of p (eth0) and of q (eth2),
// with the network of l (eth1) between them, as Concourse has its IPv4 list, the
// loopback network and its IPv6 list.
func sameNamed(t *testing.T, version string) (s *stage, load []cni.Opt, path string) {
	t.Helper()
	s = newStage(t)
	for typ, address := range map[string]string{"p": "10.0.0.1/24", "q": "fd00::1/64", "l": "127.0.0.1/8"} {
		action := gives(address)
		out := strings.Replace(strings.Replace(*action.Stdout, "1.0.0", version, 1), `"dns":{}`, fmt.Sprintf(`"dns":{"domain":%q}`, typ), 1)
		action.Stdout = &out
		s.on(typ, "ADD", action)
	}
	s.logEnds("p", "q", "l")
	for _, n := range [][2]string{{"net", "p"}, {"between", "l"}, {"net", "q"}} {
		load = append(load, cni.WithConfListBytes(s.network(n[0], version, n[1])))
	}
	return s, load, s.container("c1")
}

// withoutEnds are the beginnings of calls.
func withoutEnds(lines []string) (begun []string) {
	for _, l := range lines {
		if !strings.HasPrefix(l, "end of ") {
			begun = append(begun, l)
		}
	}
	return begun
}

// TestFault_F32_TwoConfigurationsOfOneName, as Concourse uses them: both give
// their interface its addresses, one after the other, and both are removed,
// whether the container's namespace is known or not.
func TestFault_F32_TwoConfigurationsOfOneName(t *testing.T) {
	s, load, path := sameNamed(t, "1.0.0")
	r := s.runtime(load...)
	for _, setup := range []func() (*cni.Result, error){
		func() (*cni.Result, error) { return r.Setup(t.Context(), "c1", path) },
		func() (*cni.Result, error) { return r.SetupSerially(t.Context(), "c1", path) },
	} {
		for _, removePath := range []string{"", path} {
			res, err := setup()
			wantNil(t, err)
			var order []string
			for _, line := range s.took() {
				if !strings.Contains(line, " l ") { // the other network's runs beside them
					order = append(order, line)
				}
			}
			wantSame(t, "calls", order, []string{"ADD p c1/eth0", "end of ADD p c1/eth0", "ADD q c1/eth2", "end of ADD q c1/eth2"})
			wantSame(t, "results", addresses(res), []string{"net eth0 10.0.0.1/24", "between eth1 127.0.0.1/8", "net eth2 fd00::1/64"})
			wantSame(t, "DNS", res.DNS, []types.DNS{{Domain: "p"}, {Domain: "l"}, {Domain: "q"}})
			wantSame(t, "cache", s.cached(), []string{"between-c1-eth1", "net-c1-eth0", "net-c1-eth2"})
			found, err := r.Lookup("c1")
			wantNil(t, err)
			wantSame(t, "looked up", addresses(found), addresses(res))
			wantNil(t, r.Check(t.Context(), "c1", path))
			wantNil(t, r.Remove(t.Context(), "c1", removePath))
			wantSame(t, "calls", withoutEnds(s.took()), []string{"CHECK p c1/eth0", "CHECK l c1/eth1", "CHECK q c1/eth2",
				"DEL q c1/eth2", "DEL l c1/eth1", "DEL p c1/eth0"})
			wantSame(t, "cache", s.cached(), []string{})
			_, err = r.Lookup("c1")
			wantIs(t, err, cni.ErrNotAttached)
		}
	}
}

// TestFault_F32_TheNameMeansAllOfIt, and the interface one of them.
func TestFault_F32_TheNameMeansAllOfIt(t *testing.T) {
	s, load, path := sameNamed(t, "1.0.0")
	r := s.runtime(load...)
	all, second := cni.WithNetwork("net"), cni.WithNetwork("net", cni.WithInterfaceName("eth2"), cni.WithArgs("K", "v"))
	res, err := r.Setup(t.Context(), "c1", path, all)
	wantNil(t, err)
	wantSame(t, "results", addresses(res), []string{"net eth0 10.0.0.1/24", "net eth2 fd00::1/64"})
	s.took()
	wantNil(t, r.Check(t.Context(), "c1", path, second))
	wantNil(t, r.Remove(t.Context(), "c1", path, second))
	wantSame(t, "calls", withoutEnds(s.took()), []string{"CHECK q c1/eth2", "DEL q c1/eth2"})
	wantIs(t, r.Check(t.Context(), "c1", path, all), cni.ErrNotAttached)
	s.addLink("c1", "eth0")
	s.took()
	_, err = r.Setup(t.Context(), "c1", path, second)
	wantNil(t, err)
	calls := s.takeCalls()
	wantSame(t, "arguments", calls[0].Args, "K=v")
	_, err = r.Setup(t.Context(), "c1", path, all)
	wantIs(t, err, cni.ErrAlreadyAttached)
	wantNil(t, r.Remove(t.Context(), "c1", "", all))
	wantSame(t, "calls", withoutEnds(s.took()), []string{"DEL q c1/eth2", "DEL p c1/eth0"})
	wantSame(t, "cache", s.cached(), []string{})
}

// TestFault_F32_AnInterfaceThatDoesNotMeanOneIsRefused: neither may one list be
// taken for the other, nor two get one interface.
func TestFault_F32_AnInterfaceThatDoesNotMeanOneIsRefused(t *testing.T) {
	s, load, path := sameNamed(t, "1.0.0")
	r := s.runtime(load...)
	for _, ifName := range []string{"eth9", "eth1"} {
		opt := cni.WithNetwork("net", cni.WithInterfaceName(ifName))
		s.refusedByAll(r, ifName, "c1", path, cni.ErrInvalidArgument, opt)
		_, err := r.Setup(t.Context(), "c1", path, opt)
		wantSame(t, "error", err.Error(), `set up container "c1": 0 of the 2 configurations named "net" were loaded for interface "`+ifName+
			`" (loaded for: eth0, eth2), and one must be meant: invalid argument`)
	}
	single := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "type": "p", "script": %q}`, s.path("script-p"))
	both := s.runtime(cni.WithConf(single), cni.WithConf(single))
	s.refusedByAll(both, "one interface for two", "c1", path, cni.ErrInvalidArgument, cni.WithNetwork("net", cni.WithInterfaceName("eth0")))
	_, err := both.Setup(t.Context(), "c1", path)
	wantSame(t, "error", err.Error(), `set up container "c1": networks "net" and "net" both want interface eth0: invalid argument`)
	wantSame(t, "calls", s.took(), []string{})
}

// TestFault_F32_ANetworkOfSeveralByItself.
func TestFault_F32_ANetworkOfSeveralByItself(t *testing.T) {
	s, load, path := sameNamed(t, "1.0.0")
	r := s.runtime(load...)
	ns := namespaceOf(t, r, "c1", path)
	first, second := r.Networks()[0], r.Networks()[2]
	for _, n := range []*cni.Network{first, second} {
		_, err := n.Attach(t.Context(), ns)
		wantNil(t, err)
		s.addLink("c1", map[*cni.Network]string{first: "eth0", second: "eth2"}[n])
	}
	wantNil(t, second.Check(t.Context(), ns))
	wantNil(t, first.Remove(t.Context(), ns))
	wantSame(t, "calls", withoutEnds(s.took()), []string{"ADD p c1/eth0", "ADD q c1/eth2", "CHECK q c1/eth2", "DEL p c1/eth0"})
	wantIs(t, first.Check(t.Context(), ns), cni.ErrNotAttached)
	wantNil(t, second.Check(t.Context(), ns))
	wantNil(t, second.Remove(t.Context(), ns))
	wantSame(t, "calls", withoutEnds(s.took()), []string{"CHECK q c1/eth2", "DEL q c1/eth2"})
	wantSame(t, "cache", s.cached(), []string{})
}

// TestFault_F32_TheSecondOfANameFails: what the first has is undone with it in one
// Setup, and stays where it was there before.
func TestFault_F32_TheSecondOfANameFails(t *testing.T) {
	s, load, path := sameNamed(t, "1.0.0")
	s.on("q", "ADD", says(5, "no"))
	r := s.runtime(load...)
	_, err := r.Setup(t.Context(), "c1", path, cni.WithNetwork("net"))
	wantSame(t, "errors", messages(err), []string{"q: no"})
	if text := err.Error(); !strings.Contains(text, `network "net" of container c1, interface eth2`) {
		t.Errorf("error %q does not say which of the two", text)
	}
	wantSame(t, "calls", withoutEnds(s.took()), []string{"ADD p c1/eth0", "ADD q c1/eth2", "DEL q c1/eth2", "DEL p c1/eth0"})
	wantSame(t, "cache", s.cached(), []string{})
	_, err = r.Setup(t.Context(), "c1", path, cni.WithNetwork("net", cni.WithInterfaceName("eth0")))
	wantNil(t, err)
	s.addLink("c1", "eth0")
	s.took()
	_, err = r.Setup(t.Context(), "c1", path, cni.WithNetwork("net", cni.WithInterfaceName("eth2")))
	wantSame(t, "errors", messages(err), []string{"q: no"})
	wantSame(t, "calls", withoutEnds(s.took()), []string{"ADD q c1/eth2", "DEL q c1/eth2"})
	wantNil(t, r.Check(t.Context(), "c1", path, cni.WithNetwork("net", cni.WithInterfaceName("eth0"))))
	wantNil(t, r.Remove(t.Context(), "c1", path))
}

// TestFault_F32_GoCNIsContainersOfTwoListsOfOneName have no record: libcni's cache
// says which list each interface is of, in whatever order they are loaded now.
func TestFault_F32_GoCNIsContainersOfTwoListsOfOneName(t *testing.T) {
	s, load, path := sameNamed(t, "1.0.0")
	_, err := s.runtime(load...).Setup(t.Context(), "c1", path)
	wantNil(t, err)
	s.unrecord("c1")
	for _, ifName := range []string{"eth0", "eth1", "eth2"} {
		s.addLink("c1", ifName)
	}
	s.took()
	r := s.runtime(load[2], load[1], load[0])
	_, err = r.Setup(t.Context(), "c1", path)
	wantIs(t, err, cni.ErrAlreadyAttached)
	wantSame(t, "calls", s.took(), []string{})
	wantNil(t, r.Remove(t.Context(), "c1", path, cni.WithNetwork("net", cni.WithInterfaceName("eth2"))))
	wantSame(t, "calls", withoutEnds(s.took()), []string{"DEL q c1/eth2"})
	wantSame(t, "cache", s.cached(), []string{"between-c1-eth1", "net-c1-eth0"})
	wantNil(t, r.Remove(t.Context(), "c1", path))
	wantSame(t, "calls", withoutEnds(s.took())[1:], []string{"DEL l c1/eth1", "DEL p c1/eth0"})
	wantSame(t, "cache", s.cached(), []string{})
}

// TestFault_F32_GCOfOneListKeepsTheOthersAttachments, and STATUS says which list
// it is about.
func TestFault_F32_GCOfOneListKeepsTheOthersAttachments(t *testing.T) {
	s, load, path := sameNamed(t, "1.1.0")
	r := s.runtime(load...)
	_, err := r.Setup(t.Context(), "c1", path)
	wantNil(t, err)
	for _, ifName := range []string{"eth0", "eth1", "eth2"} {
		s.addLink("c1", ifName)
	}
	s.took()
	_, err = r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}})
	wantNil(t, err)
	const c1 = `{"containerID":"c1","ifname":`
	valid := map[string]string{}
	for _, call := range s.takeCalls() {
		if !call.Ended {
			valid[call.Verb+" "+call.Type] = canonical(t, request(t, call)["cni.dev/valid-attachments"])
		}
	}
	both := "[" + c1 + `"eth0"},` + c1 + `"eth2"}]`
	wantSame(t, "valid attachments", valid, map[string]string{"GC p": both, "GC q": both, "GC l": "[" + c1 + `"eth1"}]`})
	s.on("q", "STATUS", says(50, "not ready"))
	if text := fmt.Sprint(r.Status()); !strings.HasPrefix(text, `status network "net" for interface eth2: `) {
		t.Errorf("Status is %q, and does not say which of the two", text)
	}
	wantNil(t, r.Remove(t.Context(), "c1", path))
}

// TestFault_F32_AContainerRestartsWithBothLists, of the runtime that was killed.
func TestFault_F32_AContainerRestartsWithBothLists(t *testing.T) {
	s, load, path := sameNamed(t, "1.0.0")
	_, err := s.runtime(load...).Setup(t.Context(), "c1", path)
	wantNil(t, err)
	s.forget("c1") // the machine's other end of it is gone, and the runtime was killed
	path = s.container("c1")
	s.took()
	_, err = s.runtime(load...).SetupSerially(t.Context(), "c1", path)
	wantNil(t, err)
	wantSame(t, "calls", withoutEnds(s.took()), []string{"DEL q c1/eth2", "DEL l c1/eth1", "DEL p c1/eth0",
		"ADD p c1/eth0", "ADD l c1/eth1", "ADD q c1/eth2"})
	wantNil(t, s.runtime().Remove(t.Context(), "c1", ""))
	wantSame(t, "cache", s.cached(), []string{})
}

// TestFault_F32_ANetworkWithoutAName can be loaded, and no container be attached.
// That there is one keeps no other container from being removed.
func TestFault_F32_ANetworkWithoutAName(t *testing.T) {
	s := newStage(t)
	unnamed, net := cni.WithConfListBytes(s.network("", "1.1.0", "p")), cni.WithConfListBytes(s.network("net", "1.1.0", "q"))
	r := s.runtime(net)
	path := s.container("c1")
	_, err := r.Setup(t.Context(), "c1", path)
	wantNil(t, err)
	s.took()
	wantNil(t, r.Load(unnamed, net))
	_, err = r.Setup(t.Context(), "c2", s.container("c2"))
	wantIs(t, err, cni.ErrInvalidConfig)
	wantSame(t, "error", err.Error(), `set up container "c2": network for interface eth0: the network has no name: set "name": invalid cni config`)
	ns := namespaceOf(t, r, "c2", s.path("netns", "c2"))
	_, err = r.Networks()[0].Attach(t.Context(), ns)
	wantIs(t, err, cni.ErrInvalidConfig)
	wantIs(t, r.Check(t.Context(), "c1", path), cni.ErrInvalidConfig)
	wantIs(t, r.Status(), cni.ErrInvalidConfig)
	_, err = r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}})
	wantNil(t, err)
	wantSame(t, "calls", s.took(), []string{"GC q /"})
	wantNil(t, r.Networks()[0].Remove(t.Context(), ns))
	wantNil(t, r.Remove(t.Context(), "c1", path))
	wantNil(t, r.Remove(t.Context(), "never", ""))
	wantSame(t, "calls", s.took(), []string{"DEL q c1/eth0", "DEL q never/eth1"})
}
