package behaviour_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/firewalldtest"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// firewalldHost is a host whose firewalld rejects forwarded packets.
type firewalldHost struct {
	*realHost
	firewalld *firewalldtest.Server
}

func newFirewalldHost(t testing.TB) *firewalldHost {
	t.Helper()
	h := &firewalldHost{realHost: newRealHost(t)}
	h.firewalld = firewalldtest.Start(t, h.current())
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", h.firewalld.Address)
	return h
}

// current returns the namespace of the test's thread.
func (h *realHost) current() *netns.Handle {
	h.T.Helper()
	ns := expect.Value(netns.Current())(h.T)
	h.T.Cleanup(func() { expect.NoError(h.T, ns.Close()) })
	return ns
}

// filtered returns a network behind a bridge with this plugin firewall.
func (h *firewalldHost) filtered(name, firewall string) cni.Opt {
	c := testhost.Case{Plugins: []string{testhost.BridgeConf(`"ipMasq": true, "ipMasqBackend": "nftables", ` + testhost.HostLocal(testhost.V4Range+","+testhost.V6Range)), firewall}}
	return cni.WithConfListBytes(c.Conf(name, "1.0.0", h.Path("ipam")))
}

// trusted returns the addresses in the zone "trusted".
func (h *firewalldHost) trusted() string {
	h.T.Helper()
	return strings.Join(h.firewalld.Sources("trusted"), " ")
}

// audit includes firewalld's state. It lists only rules about containers,
// because a zone gets its chains on first use and keeps them.
func (h *firewalldHost) audit() audit.Lines {
	h.T.Helper()
	lines := h.realHost.Audit().Without(func(l string) bool {
		return strings.Contains(l, " inet firewalld ") && !strings.Contains(l, "10.77.") && !strings.Contains(l, "fd77:")
	})
	for _, source := range h.firewalld.Sources("trusted") {
		lines = append(lines, "firewalld trusted "+source)
	}
	slices.Sort(lines)
	return lines
}

// wantClean is realHost's method, with firewalld's state.
func (h *firewalldHost) wantClean(before audit.Lines) {
	h.T.Helper()
	left, gone := audit.Diff(before, h.audit())
	own := h.Path("state", "embedcni")
	left = left.Without(audit.Shared).Without(func(l string) bool { return strings.Contains(l, own) })
	expect.Unchanged(h.T, "left behind", left, gone)
}

// TestFault_F54_FirewalldDropsNothingOfAContainerThatIsAttached: the reference
// plugin checks for a running firewalld if no backend is named.
func TestFault_F54_FirewalldDropsNothingOfAContainerThatIsAttached(t *testing.T) {
	h := newFirewalldHost(t)
	h.Serve(h.Outside(), 80)
	r := h.Real(h.filtered("podnet", `{"type": "firewall"}`), cni.WithBuiltinPlugins())
	before := h.audit()
	a := h.attach(r, "a")
	h.WantAnswers(slices.Concat(
		testhost.Both(a.path, testhost.HostPort("192.0.2.2", 80), "192.0.2.1"), testhost.Both(a.path, testhost.HostPort("2001:db8::2", 80), "2001:db8::1")))
	expect.Same(t, "trusted", h.trusted(), a.v4+"/32 "+a.v6+"/128")
	expect.NoError(t, r.Check(context.Background(), "a", a.path))
	h.detach(r, "a")
	h.wantClean(before)
}

const (
	sourceV4  = "10.77.0.2/32"
	sourceV6  = "fd77::2/128"
	bothOfOne = sourceV4 + " " + sourceV6
	anyway    = `{"type": "firewall"}`
)

// builtInHost returns a firewalldHost and a runtime with built-in plugins.
func builtInHost(t testing.TB) (*firewalldHost, *cni.Runtime) {
	t.Helper()
	h := newFirewalldHost(t)
	return h, h.builtIn(h.filtered("podnet", anyway))
}

func (h *firewalldHost) builtIn(opts ...cni.Opt) *cni.Runtime {
	h.T.Helper()
	return h.Runtime(append([]cni.Opt{cni.WithBuiltinPlugins()}, opts...)...)
}

// recordedBackend returns the recorded backend, which the firewall plugin
// detected.
func (h *firewalldHost) recordedBackend(id string) string {
	h.T.Helper()
	rec := expect.Value(record.Open(h.Path("state", "embedcni", "attachments")).Load(record.ID(id)))(h.T)
	for _, p := range rec.Attachments[0].Plugins {
		if p.Type == "firewall" {
			return p.Backend
		}
	}
	h.T.Fatal("no firewall is recorded")
	return ""
}

// TestFault_F54_AFirewalldThatStopsOrStartsInBetween does not change how a
// container is removed: the detected backend is recorded.
func TestFault_F54_AFirewalldThatStopsOrStartsInBetween(t *testing.T) {
	h, r := builtInHost(t)
	before := h.realHost.Audit()
	a := h.attach(r, "a")
	expect.Same(t, "recorded", h.recordedBackend("a"), "firewalld")
	h.firewalld.StopFirewalld()
	fails(t, r.Check(t.Context(), "a", a.path), "no firewalld answers on the D-Bus")
	h.detach(r, "a")
	b := h.attach(r, "b")
	expect.Same(t, "recorded", h.recordedBackend("b"), "iptables")
	c := h.attach(r, "c")
	h.firewalld.StartFirewalld()
	// The reload has flushed the rules of iptables that CHECK looks for.
	fails(t, r.Check(t.Context(), "b", b.path), "chain FORWARD does not lead to CNI-FORWARD")
	h.detach(r, "b")
	h.firewalld.AddSource("trusted", hostAddress(c.v4)) // an administrator's source, for a container that does not have it
	h.detach(r, "c")
	expect.Same(t, "trusted", h.trusted(), hostAddress(c.v4))
	h.attach(r, "d")
	expect.Same(t, "recorded", h.recordedBackend("d"), "firewalld")
	h.firewalld.StopBus()
	h.detach(r, "d")
	left, _ := h.realHost.Left(before)
	expect.Empty(t, "left", left.Without(func(l string) bool { return strings.Contains(l, " inet firewalld ") }))
}

func hostAddress(addr string) string { return addr + "/32" }

// TestFault_F54_AnAdministratorsSourceStays: it is in the zone before the
// container gets the address. Neither DEL nor the sweep removes it.
func TestFault_F54_AnAdministratorsSourceStays(t *testing.T) {
	h, r := builtInHost(t)
	h.firewalld.AddSource("trusted", sourceV4)
	before := h.audit()
	a := h.attach(r, "a")
	expect.Same(t, "trusted", h.trusted(), bothOfOne)
	expect.NoError(t, r.Check(t.Context(), "a", a.path))
	h.detach(r, "a")
	expect.Same(t, "trusted", h.trusted(), sourceV4)
	h.wantClean(before)
}

// TestFault_F54_AnAddressOfTwoStaysUntilTheLastIsGone: firewalld only knows
// addresses. Containers on separate networks may share one.
func TestFault_F54_AnAddressOfTwoStaysUntilTheLastIsGone(t *testing.T) {
	for _, first := range []string{"a", "b"} {
		h := newFirewalldHost(t)
		r := h.builtIn(h.filtered("podnet", anyway), h.filtered("othernet", anyway))
		path := map[string]string{"a": h.Container("a"), "b": h.Container("b")}
		for id, network := range map[string]string{"a": "podnet", "b": "othernet"} {
			result := testhost.MustSetUp(t, r, id, path[id], cni.WithNetwork(network))
			expect.Same(t, "address", result.IPv4().IP().String()+"/32", sourceV4)
		}
		last := map[string]string{"a": "b", "b": "a"}[first]
		expect.NoError(t, r.Remove(t.Context(), first, path[first]))
		expect.Same(t, "trusted", h.trusted(), bothOfOne)
		expect.NoError(t, r.Check(t.Context(), last, path[last], cni.WithNetwork(map[string]string{"a": "podnet", "b": "othernet"}[last])))
		expect.NoError(t, r.Remove(t.Context(), last, path[last]))
		expect.Same(t, "trusted", h.trusted(), "")
	}
}

// TestFault_F54_TheSweepLooksIntoTheZone after a DEL that did not finish.
func TestFault_F54_TheSweepLooksIntoTheZone(t *testing.T) {
	for name, firewall := range map[string]string{
		"found": anyway, "named": `{"type": "firewall", "backend": "firewalld", "firewalldZone": "internal"}`,
	} {
		t.Run(name, func(t *testing.T) {
			h := newFirewalldHost(t)
			h.firewalld.AddSource("trusted", "10.77.0.9/32") // a neighbour's address
			h.linkPlugins()
			r := h.Runtime(h.filtered("podnet", firewall), cni.WithPluginDir([]string{h.Path("bin")}))
			before := h.audit()
			h.attach(r, "a")
			own := h.Path("bin", "firewall")
			expect.NoError(t, os.Remove(own))
			expect.NoError(t, os.WriteFile(own, []byte("#!/bin/sh\nexit 0\n"), 0o755))
			h.detach(r, "a")
			expect.Same(t, "trusted", h.trusted(), "10.77.0.9/32")
			expect.Same(t, "internal", strings.Join(h.firewalld.Sources("internal"), " "), "")
			h.wantClean(before)
		})
	}
}

// TestFault_F54_ANamespaceThatIsGone: a missing namespace, of the container or
// of the host, does not keep an address in the zone.
func TestFault_F54_ANamespaceThatIsGone(t *testing.T) {
	h := newFirewalldHost(t)
	detached := h.Path("netns", "detached")
	ns := expect.Value(netns.Create(detached))(t)
	a := h.attach(h.builtIn(h.filtered("podnet", anyway), cni.WithHostNetNS(detached)), "a")
	expect.Same(t, "trusted", h.trusted(), bothOfOne)
	for _, path := range []string{detached, a.path, h.Pin("a")} {
		expect.NoError(t, netns.Remove(path))
	}
	expect.NoError(t, ns.Close())
	expect.NoError(t, h.builtIn(h.filtered("podnet", anyway)).Remove(t.Context(), "a", ""))
	expect.Same(t, "trusted", h.trusted(), "")
}

// TestFault_F54_CleanUpFindsTheZone and removes the container's address from
// it.
func TestFault_F54_CleanUpFindsTheZone(t *testing.T) {
	h, r := builtInHost(t)
	h.attach(r, "a")
	found := expect.Value(r.CleanUp(t.Context(), cni.CleanUpTarget{ContainerID: "a", Network: "podnet", IfName: "eth0", DryRun: true}))(t)
	const remove = "firewall-cmd --zone=trusted --remove-source="
	expect.Contains(t, "CleanUp would remove", strings.Join(found, "\n"), remove+sourceV4, remove+sourceV6)
	expect.Value(r.CleanUp(t.Context(), cni.CleanUpTarget{ContainerID: "a", Network: "podnet", IfName: "eth0"}))(t)
	expect.Same(t, "trusted", h.trusted(), "")
}

// TestFault_F54_ABusOrAFirewalldThatHangsConcernsItsOwnContainers and blocks no
// others.
func TestFault_F54_ABusOrAFirewalldThatHangsConcernsItsOwnContainers(t *testing.T) {
	h := newFirewalldHost(t)
	r := h.builtIn(h.filtered("podnet", anyway), cni.WithTimeouts(cni.Timeouts{Del: time.Second}))
	other := h.builtIn(h.filtered("othernet", `{"type": "firewall", "backend": "iptables"}`))
	before := h.audit()
	a := h.attach(r, "a")
	h.attach(other, "o0")

	thaw := h.firewalld.FreezeFirewalld()
	hanging, path := make(chan error, 1), h.Container("b")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := r.Setup(ctx, "b", path)
		hanging <- err
	}()
	h.attach(other, "o1")
	h.detach(other, "o1")
	cancel()
	fails(t, <-hanging)
	err := r.Remove(t.Context(), "a", a.path)
	fails(t, err, "firewalld")
	expect.Same(t, "it says what is left", errors.As(err, new(*cni.LeftoverError)), true)
	thaw()
	expect.NoError(t, r.Remove(t.Context(), "a", a.path))
	expect.NoError(t, r.Remove(t.Context(), "b", path))
	expect.Same(t, "trusted", h.trusted(), "")

	thaw = h.firewalld.FreezeBus()
	h.attach(other, "o2")
	h.detach(other, "o2")
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	expect.Is(t, expect.Err(r.Setup(ctx, "c", h.Container("c"))), context.DeadlineExceeded)
	thaw()
	h.detach(other, "o0")
	h.wantClean(before)
}
