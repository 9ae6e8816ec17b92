package behaviour_test

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// threeNetworks returns "one" (p, eth0), "two" (q, eth1) and "three" (r, eth2),
// each with its own address.
func threeNetworks(t *testing.T) (s *stage, r *cni.Runtime, path string) {
	t.Helper()
	s = newStage(t)
	for i, typ := range []string{"p", "q", "r"} {
		s.On(typ, "ADD", gives(fmt.Sprintf("10.0.%d.1/24", i)))
	}
	r = s.Runtime(cni.WithConfListBytes(s.Network("one", "1.0.0", "p")), cni.WithConfListBytes(s.Network("two", "1.0.0", "q")),
		cni.WithConfListBytes(s.Network("three", "1.0.0", "r")))
	return s, r, s.Container("c1")
}

// addresses returns the first address of each of Raw's results, and additional
// ones from Networks.
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
	res := expect.Value(r.SetupSerially(t.Context(), "c1", path, selected...))(t)
	expect.Same(t, "results", addresses(res), []string{"three net0 10.0.2.1/24", "one eth0 10.0.0.1/24"})
	expect.NoError(t, r.Check(t.Context(), "c1", path, selected...))
	expect.NoError(t, r.Remove(t.Context(), "c1", path, selected...))
	expect.Same(t, "calls", s.Took(), []string{"ADD r c1/net0", "ADD p c1/eth0", "CHECK r c1/net0", "CHECK p c1/eth0",
		"DEL p c1/eth0", "DEL r c1/net0"})
	res = testhost.MustSetUp(t, r, "c1", path)
	expect.Same(t, "results of all", addresses(res), []string{"one eth0 10.0.0.1/24", "two eth1 10.0.1.1/24", "three eth2 10.0.2.1/24"})
}

func TestANetworkTwiceIsAttachedTwiceInOrder(t *testing.T) {
	s, r, path := threeNetworks(t)
	s.LogEnds("p")
	twice := []cni.NamespaceOpts{cni.WithNetwork("one"), cni.WithNetwork("one", cni.WithInterfaceName("eth9"))}
	res := testhost.MustSetUp(t, r, "c1", path, twice...)
	expect.Same(t, "results", addresses(res), []string{"one eth0 10.0.0.1/24", "one eth9 10.0.0.1/24"})
	expect.Same(t, "calls", s.Took(), []string{"ADD p c1/eth0", "end of ADD p c1/eth0", "ADD p c1/eth9", "end of ADD p c1/eth9"})
	expect.Same(t, "cache", s.Cached(), []string{"one-c1-eth0", "one-c1-eth9"})
	expect.NoError(t, r.Remove(t.Context(), "c1", path, twice...))
	expect.Same(t, "cache", s.Cached(), []string{})
}

func TestOptionsForOneNetworkWinOverThoseForAll(t *testing.T) {
	s, r, path := threeNetworks(t)
	_, err := r.SetupSerially(t.Context(), "c1", path,
		cni.WithArgs("A", "all"), cni.WithArgs("B", "all"), cni.WithConfigArgs("k", "all"),
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 1, ContainerPort: 1}}),
		cni.WithNetwork("one"),
		cni.WithNetwork("two", cni.WithArgs("B", "two"), cni.WithLabels(map[string]string{"C": "two"}), cni.WithConfigArgs("k", "two"),
			cni.WithCapabilityPortMap(nil), cni.WithCapabilityDNS(cni.DNS{Servers: []string{"9.9.9.9"}})))
	expect.NoError(t, err)
	var got []string
	for _, c := range s.TakeCalls() {
		keys := testhost.Request(t, c)
		got = append(got, c.Args+" "+keys["args"]+" "+expect.JSON(t, keys["runtimeConfig"]))
	}
	expect.Same(t, "what the plugins got", got, []string{
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
		expect.Same(t, what, err.Error(), `set up container "c1": `+tt.text)
	}
}

func TestAllThatIsWrongIsInTheError(t *testing.T) {
	s, r, path := threeNetworks(t)
	_, err := r.Setup(t.Context(), "c1", path, cni.WithNetwork("four"), cni.WithNetwork("one", cni.WithInterfaceName("a/b")),
		cni.WithNetwork("two", cni.WithArgs("x", "a;b")))
	expect.Is(t, err, cni.ErrNotFound, cni.ErrInvalidArgument)
	for _, text := range []string{`"four" is not loaded`, `"a/b"`, `"x"="a;b"`} {
		fails(t, err, text)
	}
	expect.Same(t, "calls", s.Took(), []string{})
}

func TestSetupRunsNetworksInParallel(t *testing.T) {
	s, r, path := threeNetworks(t)
	testhost.MustSetUp(t, r, "warm", s.Container("warm"))
	gates := map[string]string{"p": s.Gate("p"), "q": s.Gate("q"), "r": s.Gate("r")}
	for typ, gate := range gates {
		action := gives("10.0.0.1/24")
		action.Block = gate
		s.On(typ, "ADD", action)
	}
	done := testhost.Begin(testhost.SetUp(t.Context(), r, "c1", path))
	var letGo []func()
	for _, typ := range slices.Sorted(maps.Keys(gates)) {
		letGo = append(letGo, s.Arrive(gates[typ]))
	}
	for _, f := range letGo {
		f()
	}
	expect.NoError(t, expect.Await(t, "Setup", done))
}

func TestOneNetworkByItself(t *testing.T) {
	s, r, path := threeNetworks(t)
	two := r.Networks()[1]
	ns := namespaceOf(t, r, "c1", path, cni.WithArgs("K", "v"))
	expect.NoError(t, r.Load(cni.WithConfListBytes(s.Network("new", "1.0.0", "z")))) // two stays usable
	expect.Is(t, two.Check(t.Context(), ns), cni.ErrNotAttached)
	expect.Same(t, "address", expect.Value(two.Attach(t.Context(), ns))(t).IPs[0].Address.String(), "10.0.1.1/24")
	s.AddLink("c1", "eth1")
	expect.Is(t, errOf(two.Attach(t.Context(), ns)), cni.ErrAlreadyAttached)
	expect.NoError(t, two.Check(t.Context(), ns))
	expect.NoError(t, two.Remove(t.Context(), ns))
	calls := s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"ADD q c1/eth1", "CHECK q c1/eth1", "DEL q c1/eth1"})
	expect.Same(t, "arguments", calls[0].Args, "K=v")
	bad := namespaceOf(t, r, "../c1", path)
	expect.Is(t, errOf(two.Attach(t.Context(), bad)), cni.ErrInvalidArgument)
}

func TestRemoveTwiceAndWithoutAnAttachment(t *testing.T) {
	s, r, path := threeNetworks(t)
	testhost.MustSetUp(t, r, "c1", path)
	s.TakeCalls()
	dels := []string{"DEL r c1/eth2", "DEL q c1/eth1", "DEL p c1/eth0"}
	for range 2 {
		expect.NoError(t, r.Remove(t.Context(), "c1", path))
		expect.Same(t, "calls", s.Took(), dels)
	}
	expect.NoError(t, r.Remove(t.Context(), "never", ""))
	calls := s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"DEL r never/eth2", "DEL q never/eth1", "DEL p never/eth0"})
	for _, c := range calls {
		expect.Same(t, c.Type+": CNI_NETNS and prevResult", []string{c.NetNS, testhost.Request(t, c)["prevResult"]}, []string{"", ""})
	}
}

// TestGatewaysAreThoseOfResults: known before a container is attached, and true of the
// first that is. A gateway on the host is an address of the host then.
func TestGatewaysAreThoseOfResults(t *testing.T) {
	for what, tt := range map[string]struct {
		plugin string // without its IPAM
		ipam   string
		want   string
	}{
		"a bridge of both families": {`"type": "bridge", "isGateway": true`,
			`"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/16"}], [{"subnet": "fd00:77::/64"}]]`, "10.77.0.1/16 fd00:77::1/64 on the host"},
		"a default gateway": {`"type": "bridge", "isDefaultGateway": true`,
			`"type": "host-local", "subnet": "10.77.0.0/24", "gateway": "10.77.0.254"`, "10.77.0.254/24 on the host"},
		"a bridge that is no gateway": {`"type": "bridge"`,
			`"type": "host-local", "subnet": "10.77.0.0/24", "gateway": "10.77.0.9"`, "10.77.0.9/24"},
		"ptp": {`"type": "ptp"`, `"type": "host-local", "subnet": "10.77.0.0/24"`, "10.77.0.1/24 on the host"},
		"an address given, on a gateway": {`"type": "bridge", "isGateway": true`,
			`"type": "static", "addresses": [{"address": "10.77.3.4/16"}]`, "10.77.0.1/16 on the host"},
		"an address given with its gateway": {`"type": "bridge"`,
			`"type": "static", "addresses": [{"address": "10.77.3.4/16", "gateway": "10.77.9.9"}, {"address": "fd00:77::4/64"}]`, "10.77.9.9/16"},
	} {
		t.Run(what, func(t *testing.T) {
			h := newRealHost(t)
			ipam := tt.ipam
			if strings.Contains(ipam, "host-local") {
				ipam += fmt.Sprintf(`, "dataDir": %q`, h.Path("ipam"))
			}
			r := h.Runtime(cni.WithPluginDir(nil), cni.WithLoNetwork,
				cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [{%s, "ipam": {%s}}]}`, tt.plugin, ipam)))
			before := h.Audit()
			got := expect.Value(r.Gateways("net"))(t)
			h.WantClean(before)
			var text []string
			for _, g := range got {
				text = append(text, g.Prefix.String())
			}
			if got[0].OnHost {
				text = append(text, "on the host")
			}
			expect.Same(t, "gateways", strings.Join(text, " "), tt.want)

			result := testhost.MustSetUp(t, r, "c1", h.Container("c1"))
			var reported []netip.Addr
			for _, ip := range result.Raw()[1].IPs {
				if addr, ok := netip.AddrFromSlice(ip.Gateway); ok {
					reported = append(reported, addr.Unmap())
				}
			}
			for i, g := range got {
				expect.Same(t, "reported", reported[i], g.Prefix.Addr())
				expect.Same(t, "on the host", isOfHost(t, g.Prefix.Addr()), g.OnHost)
			}
			expect.Same(t, "number", len(got), len(reported))
			expect.NoError(t, r.Remove(t.Context(), "c1", ""))
		})
	}
}

// isOfHost reports whether the host has an address.
func isOfHost(t *testing.T, addr netip.Addr) bool {
	t.Helper()
	all := expect.Value(net.InterfaceAddrs())(t)
	return slices.ContainsFunc(all, func(a net.Addr) bool { return a.(*net.IPNet).IP.Equal(addr.AsSlice()) })
}

func TestGatewaysThatNobodyKnows(t *testing.T) {
	h := newRealHost(t)
	list := func(name, plugin string) cni.Opt {
		return cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": %q, "plugins": [%s]}`, name, plugin))
	}
	opts := []cni.Opt{
		list("none", `{"type": "bridge"}`),
		list("dhcp", `{"type": "bridge", "ipam": {"type": "dhcp"}}`),
		list("other", `{"type": "calico", "ipam": {"type": "host-local", "subnet": "10.77.0.0/24"}}`),
		list("given", `{"type": "bridge", "capabilities": {"ipRanges": true}, "ipam": {"type": "host-local"}}`),
		list("without", `{"type": "bridge", "ipam": {"type": "static", "addresses": [{"address": "10.77.3.4/16"}]}}`),
		list("wrong", `{"type": "bridge", "isGateway": "yes", "ipam": {"type": "host-local", "subnet": "10.77.0.0/24"}}`),
		list("several", `{"type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/24"}, {"subnet": "10.78.0.0/24"}]]}}`),
		list("several", `{"type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "subnet": "fd00:77::/64"}}`),
	}
	r := h.Runtime(opts...)
	for _, name := range []string{"none", "dhcp", "other", "given", "without", "wrong"} {
		got, err := r.Gateways(name)
		expect.Same(t, name, got, nil)
		expect.Is(t, err, cni.ErrNotFound)
	}
	_, err := r.Gateways("lacking")
	expect.Is(t, err, cni.ErrNotFound)
	got := expect.Value(r.Gateways("several"))(t)
	var want []cni.Gateway
	for _, p := range []string{"10.77.0.1/24", "10.78.0.1/24", "fd00:77::1/64"} {
		want = append(want, cni.Gateway{Prefix: netip.MustParsePrefix(p), OnHost: true})
	}
	expect.Same(t, "several", got, want)
	for _, typ := range []string{"bridge", "host-local"} { // the caller's own may mean something else
		_, err = h.Runtime(append(opts, cni.WithPlugin(typ, testhost.Idle{}))...).Gateways("several")
		expect.Is(t, err, cni.ErrNotFound)
	}
}
