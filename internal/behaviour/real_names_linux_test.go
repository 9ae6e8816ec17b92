package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// twoLists has a network's two configurations of one name. Concourse loads such
// a pair, one for IPv4 and one for IPv6. The first gives eth0 and the second
// eth2, with the loopback network between them.
type twoLists struct {
	*realHost
	kind      string
	families  [2]string // "4" or "6"
	backend   string    // of the packet filter; empty: unnamed
	container string
	outside   string
}

// side is one of the lists: its addresses, and the outside addresses that the
// container reaches through this interface.
type side struct {
	ifName, bridge, subnet, reaches string
	host, peer                      string // of the cable between host and outside
}

func (l *twoLists) side(i int) side {
	s := []side{
		{"eth0", "br0", "10.77.0.0/24", "192.0.2.0/24", "192.0.2.1", "192.0.2.2"},
		{"eth2", "br1", "10.78.0.0/24", "198.51.100.0/24", "198.51.100.1", "198.51.100.2"},
	}[i]
	if l.families[i] == "6" {
		s.subnet, s.reaches, s.host, s.peer = "fd78::/64", "2001:db8::/64", "[2001:db8::1]", "[2001:db8::2]"
	}
	return s
}

func (l *twoLists) list(i int) cni.Opt {
	s, named := l.side(i), func(key string) string {
		if l.backend == "" {
			return ""
		}
		return fmt.Sprintf("%q: %q, ", key, l.backend)
	}
	c := testhost.Case{Plugins: []string{
		fmt.Sprintf(`{"type": "bridge", "bridge": %q, "isGateway": true, "ipMasq": true, %s%s}`,
			s.bridge, named("ipMasqBackend"), testhost.HostLocal(fmt.Sprintf(`[{"subnet": %q}]`, s.subnet), s.reaches)),
		`{"type": "portmap", ` + named("backend") + `"capabilities": {"portMappings": true}}`,
		`{"type": "firewall", "backend": "iptables"}`,
		`{"type": "bandwidth", "capabilities": {"bandwidth": true}}`,
	}}
	return cni.WithConfListBytes(c.Conf("podnet", "1.0.0", l.Path("ipam")))
}

func (l *twoLists) load() *cni.Runtime {
	l.T.Helper()
	return l.Runtime(l.list(0), cni.WithLoNetwork, l.list(1))
}

func newTwoLists(t *testing.T, kind string, variant, backend string, families [2]string) *twoLists {
	plugintest.UseIPTables(t, variant)
	l := &twoLists{realHost: newRealHost(t), kind: kind, families: families, backend: backend}
	l.installPlugins(kind == "executable")
	l.outside = l.realHost.Outside()
	l.Configure("", "wan0", "198.51.100.1/24")
	l.Configure(l.outside, "wan1", "198.51.100.2/24")
	l.Serve(l.outside, 5000)
	l.container = l.realHost.Container("c1")
	return l
}

func (l *twoLists) options() []cni.NamespaceOpts {
	rate := cni.BandWidth{IngressRate: 8e8, IngressBurst: 8e7}
	if l.kind == "built in" {
		rate.EgressRate, rate.EgressBurst = 8e8, 8e7 // the reference plugin's device for it can exist only once
	}
	return []cni.NamespaceOpts{cni.WithCapabilityBandWidth(rate), cni.WithCapabilityPortMap([]cni.PortMapping{
		{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}, {HostPort: 8080, ContainerPort: 80, Protocol: "udp"},
	})}
}

// wantWorking opens connections from the container through one of its
// interfaces, which the host masquerades, and from outside to the forwarded
// port.
func (l *twoLists) wantWorking(i int) {
	l.T.Helper()
	s := l.side(i)
	l.WantAnswers(slices.Concat(
		testhost.Both(l.container, s.peer+":5000", strings.Trim(s.host, "[]")),
		testhost.Both(l.outside, s.host+":8080", strings.Trim(s.peer, "[]"))))
}

func (l *twoLists) only(i int) cni.NamespaceOpts {
	return cni.WithNetwork("podnet", cni.WithInterfaceName(l.side(i).ifName))
}

// eachPair runs a test for each kind of plugin and form of rules. The chains of two lists of
// one family are the same in all forms, so one form of each kind has such a pair.
func eachPair(t *testing.T, test func(t *testing.T, l *twoLists)) {
	for kind, forms := range map[string][][3]string{
		"built in":   {{"nft", "", "6"}, {"nft", "", "4"}},
		"executable": {{"nft", "", "4"}, {"legacy", "iptables", "6"}, {"nft", "nftables", "6"}},
	} {
		for _, form := range forms {
			t.Run(fmt.Sprintf("%s, %s %s, IPv4 and IPv%s", kind, form[0], form[1], form[2]), func(t *testing.T) {
				test(t, newTwoLists(t, kind, form[0], form[1], [2]string{"4", form[2]}))
			})
		}
	}
}

// TestFault_F32_TwoListsOfOneNameKeepSharedObjects: the reference plugins use
// names made from network and container, which both lists share. When either
// list is removed, the other keeps its ports and its masquerading; also by a runtime
// that follows, from the record and without the executables.
func TestFault_F32_TwoListsOfOneNameKeepSharedObjects(t *testing.T) {
	eachPair(t, func(t *testing.T, l *twoLists) {
		r := l.load()
		before := l.Audit()
		for first := range 2 {
			res := testhost.MustSetUp(t, r, "c1", l.container, l.options()...)
			for i := range 2 {
				if got := res.Interfaces[l.side(i).ifName]; got == nil || len(got.IPConfigs) != 1 || got.Sandbox != l.container {
					t.Fatalf("%s is %+v", l.side(i).ifName, got)
				}
			}
			if first == 0 {
				l.Serve(l.container, 80)
			}
			expect.NoError(t, r.Check(t.Context(), "c1", l.container))
			l.wantWorking(0)
			if l.families[1] == "6" {
				l.wantWorking(1)
			}
			stays, path := 1-first, l.container
			if first == 1 {
				l.installPlugins(false)
				r, path = l.Runtime(), ""
				expect.Same(t, "adopted", expect.Value(r.Recover(t.Context()))(t).Adopted, []string{"c1"})
			}
			expect.NoError(t, r.Remove(t.Context(), "c1", path, l.only(first)))
			if first == 0 {
				expect.NoError(t, r.Check(t.Context(), "c1", path, l.only(stays)))
			}
			l.wantWorking(stays)
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
			l.WantClean(before)
		}
	})
}

// TestFault_F32_GoCNIsTwoListsKeepSharedObjects: without a record, libcni's
// cache lists the container's other attachments.
func TestFault_F32_GoCNIsTwoListsKeepSharedObjects(t *testing.T) {
	for _, families := range [][2]string{{"4", "6"}, {"4", "4"}} {
		l := newTwoLists(t, "executable", "nft", "", families)
		before, r := l.Audit(), l.load()
		testhost.MustSetUp(t, r, "c1", l.container, l.options()...)
		l.Unrecord("c1")
		l.Serve(l.container, 80)
		expect.NoError(t, r.Remove(t.Context(), "c1", l.container, l.only(0)))
		expect.NoError(t, r.Check(t.Context(), "c1", l.container, l.only(1)))
		l.wantWorking(1)
		expect.NoError(t, r.Remove(t.Context(), "c1", l.container))
		l.WantClean(before)
	}
}

// TestFault_F32_ABuiltInSiblingIsNotTakenForAnExecutables if an old record does
// not name the kind of plugin: its rules exist in a form of their own.
func TestFault_F32_ABuiltInSiblingIsNotTakenForAnExecutables(t *testing.T) {
	l := newTwoLists(t, "built in", "nft", "", [2]string{"4", "6"})
	before := l.Audit()
	testhost.MustSetUp(t, l.load(), "c1", l.container, l.options()...)
	l.Serve(l.container, 80)
	l.ForgetKinds("c1")
	l.installPlugins(true)
	r := l.load()
	expect.NoError(t, r.Remove(t.Context(), "c1", l.container, l.only(0)))
	l.wantWorking(1)
	expect.Lacks(t, "what is there, which was not in that form", strings.Join(l.Audit(), "\n"), "CNI-DN-")
	expect.NoError(t, r.Remove(t.Context(), "c1", l.container))
	l.WantClean(before)
}

// removeUntil removes the first list with a runtime that calls deleted when the
// executable portmap has removed the objects of both lists. If deleted does not
// return, the runtime ends there.
func (l *twoLists) removeUntil(deleted func()) error {
	l.T.Helper()
	observe := cni.WithObserver(func(_ context.Context, e cni.Event) {
		if e.Operation == "DEL" && e.Plugin == "portmap" && e.PluginKind == "executable" {
			deleted()
		}
	})
	r := l.Runtime(observe, cni.WithHostNetNS(l.Path("netns", "host")))
	done := make(chan error, 1)
	go func() {
		err := errors.New("it has not returned")
		defer func() { done <- err }()
		err = r.Remove(context.Background(), "c1", "", l.only(0))
	}()
	return expect.Await(l.T, "Remove", done)
}

// bothAttached returns two lists attached by executables, both of which have
// worked.
func bothAttached(t *testing.T, variant string, families [2]string) *twoLists {
	t.Helper()
	l := newTwoLists(t, "executable", variant, "iptables", families)
	testhost.MustSetUp(t, l.load(), "c1", l.container, l.options()...)
	l.Serve(l.container, 80)
	return l
}

// TestFault_F32_ARuntimeIsKilledBeforeItMends the executable's damage: Recover
// does, and so does a repeated Remove.
func TestFault_F32_ARuntimeIsKilledBeforeItMends(t *testing.T) {
	for name, again := range map[string]func(t *testing.T, l *twoLists, r *cni.Runtime){
		"Recover": func(t *testing.T, _ *twoLists, r *cni.Runtime) {
			expect.Same(t, "adopted", expect.Value(r.Recover(t.Context()))(t).Adopted, []string{"c1"})
		},
		"Remove": func(t *testing.T, l *twoLists, r *cni.Runtime) {
			expect.NoError(t, r.Remove(t.Context(), "c1", "", l.only(0)))
		},
	} {
		for _, families := range [][2]string{{"4", "6"}, {"4", "4"}} {
			t.Run(name+", IPv"+families[1], func(t *testing.T) {
				l := bothAttached(t, "nft", families)
				expect.Same(t, "Remove", fmt.Sprint(l.removeUntil(runtime.Goexit)), "it has not returned")
				r := l.load()
				fails(t, r.Check(t.Context(), "c1", l.container, l.only(1)))
				again(t, l, r)
				expect.NoError(t, r.Check(t.Context(), "c1", l.container, l.only(1)))
				l.wantWorking(1)
				expect.Is(t, r.Check(t.Context(), "c1", l.container, l.only(0)), cni.ErrNotAttached)
				expect.NoError(t, r.Remove(t.Context(), "c1", l.container))
			})
		}
	}
}

// TestFault_F32_AFailedRepairIsReported in an error that names the damaged
// interface. The next Remove repairs it. Somebody else has the port meanwhile.
func TestFault_F32_AFailedRepairIsReported(t *testing.T) {
	l := bothAttached(t, "legacy", [2]string{"4", "6"})
	err := l.removeUntil(func() { // in a goroutine that is not in the host's namespace
		l.sh("nsenter --net=" + l.Path("netns", "host") + ` nft -f - <<EOF
			add table inet embedcni
			add map inet embedcni hostports6 { type inet_proto . inet_service : ipv6_addr . inet_service; }
			add element inet embedcni hostports6 { tcp . 8080 comment "x" : fd99::1 . 80 }
EOF`)
	})
	l.sh("nft delete table inet embedcni")
	wantLeftover(t, err)
	fails(t, err, `rules of interface eth2 on network "podnet", which stays, went too and could not be made again: `)
	r := l.load()
	expect.NoError(t, r.Remove(t.Context(), "c1", "", l.only(0)))
	expect.NoError(t, r.Check(t.Context(), "c1", l.container, l.only(1)))
	l.wantWorking(1)
	expect.NoError(t, r.Remove(t.Context(), "c1", l.container))
}
