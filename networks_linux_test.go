package cni_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni"
)

// threeNetworks are "one" (p, eth0), "two" (q, eth1) and "three" (r, eth2), each
// with an address of its own.
func threeNetworks(t *testing.T) (s *stage, r *cni.Runtime, path string) {
	t.Helper()
	s = newStage(t)
	for i, typ := range []string{"p", "q", "r"} {
		s.on(typ, "ADD", gives(fmt.Sprintf("10.0.%d.1/24", i)))
	}
	r = s.runtime(cni.WithConfListBytes(s.network("one", "1.0.0", "p")), cni.WithConfListBytes(s.network("two", "1.0.0", "q")),
		cni.WithConfListBytes(s.network("three", "1.0.0", "r")))
	return s, r, s.container("c1")
}

// addresses are the first of each of Raw's results, and what Networks says
// beside them.
func addresses(res *cni.Result) []string {
	var got []string
	for i, raw := range res.Raw() {
		n := res.Networks[i]
		got = append(got, n.Name+" "+n.IfName+" "+raw.IPs[0].Address.String())
	}
	return got
}

func TestNetworksAreSelectedPerCallInTheOrderTheyAreNamed(t *testing.T) {
	s, r, path := threeNetworks(t)
	selected := []cni.NamespaceOpts{cni.WithNetwork("three", cni.WithInterfaceName("net0")), cni.WithNetwork("one")}
	res, err := r.SetupSerially(t.Context(), "c1", path, selected...)
	wantNil(t, err)
	wantSame(t, "results", addresses(res), []string{"three net0 10.0.2.1/24", "one eth0 10.0.0.1/24"})
	wantNil(t, r.Check(t.Context(), "c1", path, selected...))
	wantNil(t, r.Remove(t.Context(), "c1", path, selected...))
	wantSame(t, "calls", s.took(), []string{"ADD r c1/net0", "ADD p c1/eth0", "CHECK r c1/net0", "CHECK p c1/eth0",
		"DEL p c1/eth0", "DEL r c1/net0"})
	res, err = r.Setup(t.Context(), "c1", path)
	wantNil(t, err)
	wantSame(t, "results of all", addresses(res), []string{"one eth0 10.0.0.1/24", "two eth1 10.0.1.1/24", "three eth2 10.0.2.1/24"})
}

func TestANetworkTwiceIsAttachedTwiceInOrder(t *testing.T) {
	s, r, path := threeNetworks(t)
	s.logEnds("p")
	twice := []cni.NamespaceOpts{cni.WithNetwork("one"), cni.WithNetwork("one", cni.WithInterfaceName("eth9"))}
	res, err := r.Setup(t.Context(), "c1", path, twice...)
	wantNil(t, err)
	wantSame(t, "results", addresses(res), []string{"one eth0 10.0.0.1/24", "one eth9 10.0.0.1/24"})
	wantSame(t, "calls", s.took(), []string{"ADD p c1/eth0", "end of ADD p c1/eth0", "ADD p c1/eth9", "end of ADD p c1/eth9"})
	wantSame(t, "cache", s.cached(), []string{"one-c1-eth0", "one-c1-eth9"})
	wantNil(t, r.Remove(t.Context(), "c1", path, twice...))
	wantSame(t, "cache", s.cached(), []string{})
}

func TestOptionsForOneNetworkWinOverThoseForAll(t *testing.T) {
	s, r, path := threeNetworks(t)
	_, err := r.SetupSerially(t.Context(), "c1", path,
		cni.WithArgs("A", "all"), cni.WithArgs("B", "all"), cni.WithConfigArgs("k", "all"),
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 1, ContainerPort: 1}}),
		cni.WithNetwork("one"),
		cni.WithNetwork("two", cni.WithArgs("B", "two"), cni.WithLabels(map[string]string{"C": "two"}), cni.WithConfigArgs("k", "two"),
			cni.WithCapabilityPortMap(nil), cni.WithCapabilityDNS(cni.DNS{Servers: []string{"9.9.9.9"}})))
	wantNil(t, err)
	var got []string
	for _, c := range s.takeCalls() {
		keys := request(t, c)
		got = append(got, c.Args+" "+keys["args"]+" "+canonical(t, keys["runtimeConfig"]))
	}
	wantSame(t, "what the plugins got", got, []string{
		`A=all;B=all {"cni":{"k":"all"}} {"portMappings":[{"containerPort":1,"hostPort":1,"protocol":"tcp"}]}`,
		`A=all;B=two;C=two {"cni":{"k":"two"}} {"dns":{"servers":["9.9.9.9"]},"portMappings":[]}`})
}

func TestSelectionsThatAreNoneAreRefusedBeforeAnythingRuns(t *testing.T) {
	s, r, path := threeNetworks(t)
	for what, tt := range map[string]struct {
		opts []cni.NamespaceOpts
		kind error
		text string
	}{
		"not loaded": {[]cni.NamespaceOpts{cni.WithNetwork("four"), cni.WithNetwork("one")}, cni.ErrNotFound,
			`network "four" is not loaded (loaded: one, two, three): not found`},
		"nested": {[]cni.NamespaceOpts{cni.WithNetwork("one", cni.WithNetwork("two"))}, cni.ErrInvalidArgument,
			`network "one": network "two" inside another WithNetwork: invalid argument`},
		"a name outside": {[]cni.NamespaceOpts{cni.WithInterfaceName("eth5")}, cni.ErrInvalidArgument,
			`interface name "eth5" outside WithNetwork: invalid argument`},
		"one interface twice": {[]cni.NamespaceOpts{cni.WithNetwork("one"), cni.WithNetwork("two", cni.WithInterfaceName("eth0"))},
			cni.ErrInvalidArgument, `networks "one" and "two" both want interface eth0: invalid argument`},
		"one network twice": {[]cni.NamespaceOpts{cni.WithNetwork("one"), cni.WithNetwork("one")},
			cni.ErrInvalidArgument, `networks "one" and "one" both want interface eth0: invalid argument`},
	} {
		s.refusedByAll(r, what, "c1", path, tt.kind, tt.opts...)
		_, err := r.Setup(t.Context(), "c1", path, tt.opts...)
		wantSame(t, what, err.Error(), `set up container "c1": `+tt.text)
	}
}

func TestAllThatIsWrongIsInTheError(t *testing.T) {
	s, r, path := threeNetworks(t)
	_, err := r.Setup(t.Context(), "c1", path, cni.WithNetwork("four"), cni.WithNetwork("one", cni.WithInterfaceName("a/b")),
		cni.WithNetwork("two", cni.WithArgs("x", "a;b")))
	wantIs(t, err, cni.ErrNotFound, cni.ErrInvalidArgument)
	for _, text := range []string{`"four" is not loaded`, `"a/b"`, `"x"="a;b"`} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q, want %q in it", err, text)
		}
	}
	wantSame(t, "calls", s.took(), []string{})
}

func TestSetupSeriallyStopsAtTheFirstFailure(t *testing.T) {
	s, r, path := threeNetworks(t)
	s.on("q", "ADD", says(5, "no"))
	_, err := r.SetupSerially(t.Context(), "c1", path)
	wantSame(t, "errors", messages(err), []string{"q: no"})
	wantSame(t, "calls", s.took(), []string{"ADD p c1/eth0", "ADD q c1/eth1", "DEL q c1/eth1", "DEL p c1/eth0"})
}

func TestSetupRunsNetworksInParallel(t *testing.T) {
	s, r, path := threeNetworks(t)
	wantNil(t, setUp(t.Context(), r, "warm", s.container("warm"))())
	gates := map[string]string{"p": s.gate("p"), "q": s.gate("q"), "r": s.gate("r")}
	for typ, gate := range gates {
		action := gives("10.0.0.1/24")
		action.Block = gate
		s.on(typ, "ADD", action)
	}
	done := begin(setUp(t.Context(), r, "c1", path))
	var letGo []func()
	for _, typ := range slices.Sorted(maps.Keys(gates)) {
		letGo = append(letGo, s.arrive(gates[typ]))
	}
	for _, f := range letGo {
		f()
	}
	wantNil(t, await(t, "Setup", done))
}

func TestOneNetworkByItself(t *testing.T) {
	s, r, path := threeNetworks(t)
	two := r.Networks()[1]
	ns := namespaceOf(t, r, "c1", path, cni.WithArgs("K", "v"))
	wantNil(t, r.Load(cni.WithConfListBytes(s.network("new", "1.0.0", "z")))) // two stays usable
	wantIs(t, two.Check(t.Context(), ns), cni.ErrNotAttached)
	raw, err := two.Attach(t.Context(), ns)
	wantNil(t, err)
	wantSame(t, "address", raw.IPs[0].Address.String(), "10.0.1.1/24")
	s.addLink("c1", "eth1")
	_, err = two.Attach(t.Context(), ns)
	wantIs(t, err, cni.ErrAlreadyAttached)
	wantNil(t, two.Check(t.Context(), ns))
	wantNil(t, two.Remove(t.Context(), ns))
	calls := s.takeCalls()
	wantSame(t, "calls", rendered(calls), []string{"ADD q c1/eth1", "CHECK q c1/eth1", "DEL q c1/eth1"})
	wantSame(t, "arguments", calls[0].Args, "K=v")
	bad := namespaceOf(t, r, "../c1", path)
	_, err = two.Attach(t.Context(), bad)
	wantIs(t, err, cni.ErrInvalidArgument)
}

func TestRemoveTwiceAndOfWhatWasNeverAttached(t *testing.T) {
	s, r, path := threeNetworks(t)
	wantNil(t, setUp(t.Context(), r, "c1", path)())
	s.takeCalls()
	dels := []string{"DEL r c1/eth2", "DEL q c1/eth1", "DEL p c1/eth0"}
	for range 2 {
		wantNil(t, r.Remove(t.Context(), "c1", path))
		wantSame(t, "calls", s.took(), dels)
	}
	wantNil(t, r.Remove(t.Context(), "never", ""))
	calls := s.takeCalls()
	wantSame(t, "calls", rendered(calls), []string{"DEL r never/eth2", "DEL q never/eth1", "DEL p never/eth0"})
	for _, c := range calls {
		wantSame(t, c.Type+": CNI_NETNS and prevResult", []string{c.NetNS, request(t, c)["prevResult"]}, []string{"", ""})
	}
}
