package behaviour_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// reserved returns the addresses that host-local has allocated in a network.
func (h *realHost) reserved(network string) []string {
	h.T.Helper()
	entries := expect.Value(os.ReadDir(h.Path("ipam", network)))(h.T)
	var addresses []string
	for _, e := range entries {
		if addr, err := netip.ParseAddr(e.Name()); err == nil {
			addresses = append(addresses, addr.String())
		}
	}
	return addresses
}

// goneCase is a network whose containers' namespaces disappear before Remove.
type goneCase struct {
	name    string
	network testhost.Case
	taken   []string // host links that disappear with an unpinned namespace
}

func goneCases() []goneCase {
	ranges := testhost.V4Range + "," + testhost.V6Range
	return []goneCase{
		{name: "bridge", network: testhost.Case{Plugins: []string{testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(ranges))}}},
		{name: "bridge nftables", network: testhost.Case{Plugins: []string{
			testhost.BridgeConf(`"ipMasq": true, "ipMasqBackend": "nftables", ` + testhost.HostLocal(ranges))}}},
		{name: "ptp", network: testhost.Case{Plugins: []string{testhost.PtpConf(testhost.HostLocal(ranges))}}},
		{name: "everything", network: everything()},
		{name: "macvlan", network: testhost.Macvlan()},
		// A software device dies with its namespace, and so does its peer. A
		// hardware device returns to the initial namespace.
		{name: "host-device", network: testhost.HostDevice(),
			taken: []string{"link up0 type veth mtu 1500 down", "link up1 type veth mtu 1500 up"}},
	}
}

// TestFault_F2_NothingStaysOfANamespaceThatIsGone before Remove: a pinned
// namespace is available to the container's plugins. Without a pin, as after a
// reboot, the plugins' leftovers are swept.
func TestFault_F2_NothingStaysOfANamespaceThatIsGone(t *testing.T) {
	for _, c := range goneCases() {
		for _, way := range []string{"path given", "no path given", "nothing keeps it"} {
			if way == "path given" && c.name != "everything" {
				continue // with a pin, the plugins get its path whatever is given
			}
			t.Run(c.name+"/"+way, func(t *testing.T) { c.remove(t, way) })
		}
	}
}

func (c *goneCase) remove(t *testing.T, way string) {
	h := newRealHost(t)
	if c.network.Prepare != nil {
		c.network.Prepare(h.RealHost)
	}
	r := h.Real(cni.WithConfListBytes(c.network.Conf("podnet", "1.0.0", h.Path("ipam"))))
	path := h.Mortal("c1")
	before := h.Audit()
	links := h.links() - len(c.taken)
	testhost.MustSetUp(t, r, "c1", path, onePort)
	expect.NoError(t, netns.Remove(path))
	var taken audit.Lines
	switch way {
	case "no path given":
		path = ""
	case "nothing keeps it":
		expect.NoError(t, netns.Remove(h.Pin("c1")))
		h.waitForLinks(links)
		taken = c.taken
	}
	for range 2 {
		expect.NoError(t, r.Remove(context.Background(), "c1", path))
	}
	left, gone := h.Left(before)
	expect.Same(t, "left", strings.Join(left, "\n"), "")
	expect.Same(t, "gone", strings.Join(h.Normalize(gone), "\n"), strings.Join(taken, "\n"))
}

// links counts the host's links that die with a container.
func (h *realHost) links() int {
	h.T.Helper()
	list := expect.Value(audit.Dump(netlink.LinkList))(h.T)
	n := 0
	for _, l := range list {
		if l.Type() == "veth" {
			n++
		}
	}
	return n
}

// waitForLinks waits until the kernel has deleted a namespace's links, which
// happens some time after the last reference is gone.
func (h *realHost) waitForLinks(want int) {
	h.T.Helper()
	expect.Eventually(h.T, fmt.Sprint(want, " links"), func() bool { return h.links() == want })
}

// TestASetupClearsWhatGoCNIHasLeft of a container that has died: only libcni's cache has
// its addresses, and the first DEL deletes them there.
func TestASetupClearsWhatGoCNIHasLeft(t *testing.T) {
	h := newRealHost(t)
	r := h.Runtime(cni.WithPluginDir(nil), cni.WithConfListBytes(dualList(h)))
	path, before := h.Container("c1"), h.Audit()
	testhost.MustSetUp(t, r, "c1", path)
	h.Unrecord("c1")
	h.DelLink("c1", "eth0")
	testhost.MustSetUp(t, r, "c1", path)
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	h.WantClean(before)
}

// installPlugins puts the reference plugins into the host's plugin directory,
// or removes them.
func (h *realHost) installPlugins(installed bool) {
	h.T.Helper()
	bin, away := h.Path("bin"), h.Path("bin.away")
	if _, err := os.Stat(bin); (err == nil) == installed {
		return
	}
	if !installed {
		expect.NoError(h.T, os.Rename(bin, away))
		return
	}
	if os.Rename(away, bin) == nil {
		return
	}
	h.linkPlugins()
}

// linkPlugins makes the host's plugin directory of links to the reference plugins, so that they
// can be replaced one by one.
func (h *realHost) linkPlugins() {
	h.T.Helper()
	expect.NoError(h.T, os.MkdirAll(h.Path("bin"), 0o755))
	for _, name := range refplugins.Names() {
		expect.NoError(h.T, os.Symlink(filepath.Join(testhost.ReferencePlugins(h.T), name), h.Path("bin", name)))
	}
}

// unnamedBackends is the most common kind of network. No configuration names
// the form of three plugins' rules.
func (h *realHost) unnamedBackends() cni.Opt {
	c := testhost.Case{Plugins: []string{
		testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range+","+testhost.V6Range)),
		`{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}`, `{"type": "firewall"}`}}
	return cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam")))
}

func portOf(n int) cni.NamespaceOpts {
	return cni.WithCapabilityPortMap([]cni.PortMapping{
		{HostPort: int32(8000 + n), ContainerPort: 80, Protocol: "tcp"}, {HostPort: int32(9000 + n), ContainerPort: 80, Protocol: "udp"}})
}

// TestFault_F57_GoCNIsContainersWithoutTheirExecutables, and ours without a
// recorded kind, after executables were installed.
func TestFault_F57_GoCNIsContainersWithoutTheirExecutables(t *testing.T) {
	for _, tt := range []struct {
		name             string
		installed, later bool
		old              func(h *testhost.Host, id string)
	}{
		{"go-cni's, executables gone", true, false, (*testhost.Host).Unrecord},
		{"go-cni's, executables there", true, true, (*testhost.Host).Unrecord},
		{"an older record, executables gone", true, false, (*testhost.Host).ForgetKinds},
		{"ours in an older record, executables installed", false, true, (*testhost.Host).ForgetKinds},
		{"ours in libcni's cache, executables installed", false, true, (*testhost.Host).Unrecord},
	} {
		for _, opt := range []cni.Opt{nil, cni.WithBuiltinPlugins()} {
			name := tt.name
			if opt != nil {
				name += ", built-in plugins preferred"
			}
			t.Run(name, func(t *testing.T) {
				h := newRealHost(t)
				conf, path := h.unnamedBackends(), h.Container("c1")
				neighbour := h.Container("c2")
				h.installPlugins(tt.installed)
				first := h.Runtime(conf)
				testhost.MustSetUp(t, first, "c2", neighbour, portOf(2))
				before := h.Audit()
				testhost.MustSetUp(t, first, "c1", path, portOf(1))
				tt.old(h.Host, "c1")
				h.installPlugins(tt.later)
				opts := []cni.Opt{conf}
				if opt != nil {
					opts = append(opts, opt)
				}
				r := h.Runtime(opts...)
				expect.NoError(t, r.Check(t.Context(), "c1", path))
				expect.NoError(t, r.Remove(t.Context(), "c1", path))
				h.WantClean(before)
				expect.NoError(t, r.Check(t.Context(), "c2", neighbour))
				expect.NoError(t, r.Remove(t.Context(), "c2", neighbour))
			})
		}
	}
}

// TestFault_F57_TheVariantOfIptablesIsTheRecorded: while containers are
// attached, update-alternatives may change the variant behind the plain name.
// Executables use the plain name, and the sweep finds the rest.
func TestFault_F57_TheVariantOfIptablesIsTheRecorded(t *testing.T) {
	variants := []string{"legacy", "nft"}
	for i, variant := range variants {
		for _, kind := range []string{"built in", "executable"} {
			t.Run(fmt.Sprint(variant, " ", kind), func(t *testing.T) {
				h := newRealHost(t)
				masq, portmap := "", ""
				if kind == "executable" {
					masq, portmap = `"ipMasqBackend": "iptables", `, `"backend": "iptables", `
				}
				c := testhost.Case{Plugins: []string{
					testhost.BridgeConf(`"ipMasq": true, ` + masq + testhost.HostLocal(testhost.V4Range+","+testhost.V6Range)),
					`{"type": "portmap", ` + portmap + `"capabilities": {"portMappings": true}}`, `{"type": "firewall"}`}}
				h.installPlugins(kind == "executable")
				r := h.Runtime(cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
				path := h.Container("c1")
				plugintest.UseIPTables(t, variant)
				before := h.Audit()
				testhost.MustSetUp(t, r, "c1", path, portOf(1))
				plugintest.UseIPTables(t, variants[1-i])
				if kind == "built in" {
					expect.NoError(t, r.Check(t.Context(), "c1", path))
				}
				expect.NoError(t, r.Remove(t.Context(), "c1", path))
				h.WantClean(before)
			})
		}
	}
}

var onePort = cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}})

// reboot removes every namespace with its contents. Files stay, and records
// belong to another boot.
func (h *realHost) reboot(containers ...string) {
	h.T.Helper()
	for _, path := range containers {
		expect.NoError(h.T, netns.Remove(path))
	}
	h.Unpin()
	for _, f := range expect.Value(h.Records().List())(h.T) {
		h.ChangeRecord(string(f.Record.ContainerID), func(rec *record.Record) { rec.Boot = "another" })
	}
	expect.NoError(h.T, unix.Setns(int(h.NewNetNS("rebooted").File().Fd()), unix.CLONE_NEWNET))
	expect.NoError(h.T, nettest.NoAddressDetection())
	h.LinkUp("lo")
}

// TestFault_F26_RealSetupAfterReboot: after a reboot the addresses are still on
// disk, reserved for containers that return. host-local would report "duplicate
// allocation is not allowed" (F26), so the leftovers are removed first.
func TestFault_F26_RealSetupAfterReboot(t *testing.T) {
	h := newRealHost(t)
	c := everything()
	r := h.Real(cni.WithLoNetwork, cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
	path := h.Mortal("c1")
	files := h.Audit()
	expect.Value(r.Setup(context.Background(), "c1", path, onePort))(t)
	h.reboot(path)
	h.Mortal("c1")
	result := testhost.MustSetUp(t, r, "c1", path, onePort)
	expect.NoError(t, r.Check(context.Background(), "c1", path))
	expect.Same(t, "reserved", h.reserved("podnet"), []string{result.IPv4().IP().String(), result.IPv6().IP().String()})
	expect.NoError(t, r.Remove(context.Background(), "c1", path))
	h.WantClean(files)
}

// shapers returns the plugin bandwidth's devices on the host.
func (h *realHost) shapers() audit.Lines {
	h.T.Helper()
	return h.Audit().Without(func(l string) bool { return !strings.HasPrefix(l, "link bwp") })
}

// shaping is a network whose bandwidth the caller may limit.
func (h *realHost) shaping(network string) cni.Opt {
	h.T.Helper()
	c := testhost.Case{Plugins: []string{
		testhost.BridgeConf(testhost.HostLocal(testhost.V4Range)), `{"type": "bandwidth", "capabilities": {"bandwidth": true}}`}}
	return cni.WithConfListBytes(c.Conf(network, "1.0.0", h.Path("ipam")))
}

func shaped(network, ifName string, limits cni.BandWidth) cni.NamespaceOpts {
	return cni.WithNetwork(network, cni.WithInterfaceName(ifName), cni.WithCapabilityBandWidth(limits))
}

var sending = cni.BandWidth{EgressRate: 8e6, EgressBurst: 8e6}

// TestFault_F48_TheLimitOfASiblingStays: another interface of the container,
// with or without a limit, is removed or fails to set up. The first one's limit
// stays.
func TestFault_F48_TheLimitOfASiblingStays(t *testing.T) {
	for kind, opt := range kindsOf() {
		for name, limits := range map[string]cni.BandWidth{
			"no limit": {}, "ingress": {IngressRate: 8e6, IngressBurst: 8e6}, "egress": sending,
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				h := newRealHost(t)
				r := h.mixed(opt, h.shaping("podnet"))
				path := h.Container("c1")
				before := h.Audit()
				testhost.MustSetUp(h.T, r, "c1", path, shaped("podnet", "eth0", sending))
				first := h.shapers()
				expect.Same(t, "devices", len(first), 1)
				_, err := r.Setup(t.Context(), "c1", path, shaped("podnet", "eth1", limits))
				// The reference plugin has only one name.
				expect.Same(t, "Setup of eth1 is refused", err != nil, kind == "executables" && name == "egress")
				if err == nil {
					expect.NoError(t, r.Check(t.Context(), "c1", path, shaped("podnet", "eth1", limits)))
					expect.NoError(t, r.Remove(t.Context(), "c1", path, cni.WithNetwork("podnet", cni.WithInterfaceName("eth1"))))
				}
				expect.Same(t, "devices without eth1", h.shapers(), first)
				expect.NoError(t, r.Check(t.Context(), "c1", path, shaped("podnet", "eth0", sending)))
				expect.NoError(t, r.Remove(t.Context(), "c1", path))
				h.WantClean(before)
			})
		}
	}
}

// TestFault_F48_TheDeviceOfAKilledAddGoes: an ADD killed before its answer
// leaves a device that no result names. It is removed, unless it belongs to a
// sibling.
func TestFault_F48_TheDeviceOfAKilledAddGoes(t *testing.T) {
	for kind, opt := range kindsOf() {
		t.Run(kind, func(t *testing.T) {
			h := newRealHost(t)
			r := h.mixed(opt, h.shaping("podnet"))
			path := h.Container("c1")
			testhost.MustSetUp(h.T, r, "c1", path, shaped("podnet", "eth0", sending))
			h.ChangeRecord("c1", func(rec *record.Record) {
				rec.Attachments[0].State, rec.Attachments[0].Result = record.Planned, nil
			})
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
			expect.Same(t, "devices", len(h.shapers()), 0)
		})
	}
}
