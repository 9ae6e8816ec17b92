package behaviour_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// swappable is a host whose reference plugins can be replaced by scripted ones.
// Its network leaves something in every place that plugins can.
type swappable struct {
	*realHost
	conf []byte
}

func newSwappable(t *testing.T) *swappable {
	t.Helper()
	h := newRealHost(t)
	h.linkPlugins()
	c := everything()
	conf := string(c.Conf("podnet", "1.0.0", h.Path("ipam")))
	for _, typ := range []string{"bridge", "portmap", "bandwidth", "firewall"} {
		key := fmt.Sprintf(`"type": %q`, typ)
		conf = strings.ReplaceAll(conf, key, fmt.Sprintf(`%s, "script": %q`, key, h.Path("script-"+typ)))
	}
	return &swappable{h, []byte(conf)}
}

// swap replaces a plugin by one with this action at DEL.
func (h *swappable) swap(typ string, del scripted.Action) {
	h.T.Helper()
	expect.NoError(h.T, os.Remove(h.Path("bin", typ)))
	h.Plugin(scripted.Script{Verbs: map[string]scripted.Action{"DEL": del}}, typ)
}

// wantSwapped sets c1 up beside c2, which keeps its attachment, replaces
// plugins, and removes c1.
func (h *swappable) wantSwapped(what string, swap func(), opts ...cni.Opt) error {
	h.T.Helper()
	r := h.Runtime(append(opts, cni.WithConfListBytes(h.conf))...)
	_, err := r.Setup(h.T.Context(), "c2", h.Container("c2"), cni.WithCapabilityPortMap(
		[]cni.PortMapping{{HostPort: 8081, ContainerPort: 80, Protocol: "tcp"}}))
	expect.NoError(h.T, err)
	path := h.Container("c1")
	before := h.Audit()
	testhost.MustSetUp(h.T, r, "c1", path, onePort)
	swap()
	err = r.Remove(h.T.Context(), "c1", path)
	left, gone := h.Left(before)
	expect.Unchanged(h.T, what, left, gone)
	expect.Same(h.T, what+": on record", testhost.Recorded(h.T, r), []string{"c2/eth0 attached"})
	return err
}

func TestFault_F3_TheSweepMakesUpForADELThatFails(t *testing.T) {
	fails, killed, idle, rubbish := testhost.Says(5, "stuck"), scripted.Action{Signal: 9}, scripted.Action{}, scripted.Action{Exit: 3, StdoutBytes: 100}
	for what, dels := range map[string]map[string]scripted.Action{
		"each by itself": {"bridge": fails}, "with a neighbour": {"portmap": killed, "firewall": idle},
		"a shaper": {"bandwidth": rubbish}, "nothing is done": {"bridge": idle, "portmap": idle, "bandwidth": idle, "firewall": idle},
		"all fail": {"bridge": killed, "portmap": fails, "bandwidth": fails, "firewall": rubbish},
	} {
		t.Run(what, func(t *testing.T) {
			h := newSwappable(t)
			expect.NoError(t, h.wantSwapped(what, func() {
				for typ, del := range dels {
					h.swap(typ, del)
				}
			}))
		})
	}
	t.Run("none of them there", func(t *testing.T) {
		h := newSwappable(t)
		expect.NoError(t, h.wantSwapped("no plugins", func() { expect.NoError(t, os.RemoveAll(h.Path("bin"))) }))
	})
}

func TestTeardownErrorsAreLogged(t *testing.T) {
	h := newSwappable(t)
	var log testhost.Log
	expect.NoError(t, h.wantSwapped("a DEL that fails", func() { h.swap("portmap", testhost.Says(5, "stuck")) }, log.Logger()))
	expect.Contains(t, "warnings", strings.Join(log.Lines("WARN"), "\n"), `msg="DEL failed, and nothing is left" container=c1`, "stuck")
}

// kindsOf lists the ways to run the reference types.
func kindsOf() map[string]cni.Opt {
	return map[string]cni.Opt{"built in": cni.WithBuiltinPlugins(), "executables": cni.WithBuiltinFallback()}
}

// mixed returns a Runtime with the reference plugins and scripted ones.
func (h *realHost) mixed(opts ...cni.Opt) *cni.Runtime {
	h.T.Helper()
	return h.Runtime(append([]cni.Opt{cni.WithPluginDir([]string{testhost.ReferencePlugins(h.T), h.Path("bin")})}, opts...)...)
}

// rulesAbout returns the rules that name an address.
func (h *realHost) rulesAbout(addr string) audit.Lines {
	h.T.Helper()
	return h.Audit().Without(func(l string) bool {
		return !strings.HasPrefix(l, "ip") || !strings.Contains(l, " -A ") || !strings.Contains(l, addr)
	})
}

// stuckConf is a network with one address, whose last plugin fails on request,
// so that the DELs of the others must run again.
func (h *realHost) stuckConf(plugins ...string) (conf []byte, stick func(bool)) {
	h.T.Helper()
	const one = `[{"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.2", "rangeEnd": "10.77.0.2"}]`
	script := h.Plugin(scripted.Script{}, "stuck")
	c := testhost.Case{Plugins: append([]string{testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(one))}, plugins...)}
	c.Plugins = append(c.Plugins, `{"type": "stuck", "script": "`+script+`"}`)
	return c.Conf("podnet", "1.0.0", h.Path("ipam")), func(on bool) {
		s := scripted.Script{}
		if on {
			s.Verbs = map[string]scripted.Action{"DEL": testhost.Says(5, "stuck")}
		}
		h.Plugin(s, "stuck")
	}
}

func TestFault_F42_ARetriedDelLeavesTheRulesOfTheAddressesNewOwner(t *testing.T) {
	for kind, opt := range kindsOf() {
		for where, state := range map[string]string{"on record": "state", "of another program": "other"} {
			t.Run(kind+"/"+where, func(t *testing.T) {
				h := newRealHost(t)
				conf, stick := h.stuckConf(`{"type": "firewall", "backend": "iptables"}`)
				r := h.mixed(opt, cni.WithConfListBytes(conf))
				path := h.Container("c1")
				testhost.MustSetUp(h.T, r, "c1", path)
				stick(true)
				fails(t, r.Remove(t.Context(), "c1", path))
				expect.Empty(t, "left of c1", h.rulesAbout("10.77.0.2"))
				stick(false)
				other := h.mixed(opt, cni.WithConfListBytes(conf), cni.WithStateDir(h.Path(state)), cni.WithOwner("other"))
				testhost.MustSetUp(h.T, other, "c2", h.Container("c2"))
				about := "10.77.0.2" // an executable's rules are the container's
				if kind == "built in" {
					about = "10.77.0.0/24" // a built-in plugin's are the network's
				}
				rules := h.rulesAbout(about)
				expect.Must(t, len(rules) >= 2, "c2 has the rules %q", rules)
				expect.NoError(t, r.Remove(t.Context(), "c1", path))
				expect.Same(t, "rules of c2", h.rulesAbout(about), rules)
				expect.NoError(t, other.Remove(t.Context(), "c2", h.Path("netns", "c2")))
				expect.Same(t, "rules of nobody", len(h.rulesAbout(about)), 0)
			})
		}
	}
}

// TestFault_F42_TheFirstDelAfterARebootLeavesThemToo: after a reboot other
// containers may have the addresses before any Remove.
func TestFault_F42_TheFirstDelAfterARebootLeavesThemToo(t *testing.T) {
	for kind, opt := range kindsOf() {
		t.Run(kind, func(t *testing.T) {
			h := newRealHost(t)
			conf, _ := h.stuckConf(`{"type": "firewall", "backend": "iptables"}`)
			r := h.mixed(opt, cni.WithConfListBytes(conf))
			path := h.Mortal("c1")
			testhost.MustSetUp(h.T, r, "c1", path)
			h.reboot(path)
			expect.NoError(t, os.Remove(h.Path("ipam", "podnet", "10.77.0.2"))) // as if /var/lib/cni is in memory
			testhost.MustSetUp(h.T, r, "c2", h.Container("c2"))
			about := "10.77.0.2" // an executable's rules are the container's
			if kind == "built in" {
				about = "10.77.0.0/24" // a built-in plugin's are the network's
			}
			rules := h.rulesAbout(about)
			expect.Must(t, len(rules) >= 2, "c2 has the rules %q", rules)
			expect.NoError(t, r.Remove(t.Context(), "c1", ""))
			expect.Same(t, "rules of c2", h.rulesAbout(about), rules)
		})
	}
}

// TestFault_F40_ASecondRemoveDoesNotHarmThePathsNewOwner: a path now leads to
// another container's namespace, as a /proc/PID/ns/net can. The previous
// container is removed once more, or cleared before its next Setup. The running
// container keeps its interfaces, however little is known about it.
func TestFault_F40_ASecondRemoveDoesNotHarmThePathsNewOwner(t *testing.T) {
	for name, spoil := range map[string]func(h *realHost){
		"on record":              func(*realHost) {},
		"damaged":                func(h *realHost) { spoilBase(h.Host, "c2", "{") },
		"known to go-cni's only": func(h *realHost) { h.Unrecord("c2") },
	} {
		t.Run(name, func(t *testing.T) {
			h := newRealHost(t)
			c := testhost.Case{Plugins: []string{testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range))}}
			var log testhost.Log
			r := h.Runtime(log.Logger(), cni.WithBuiltinPlugins(), cni.WithLoNetwork, cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
			link := h.Path("path")
			first, second := h.Container("one"), h.Container("two")
			expect.NoError(t, os.Symlink(first, link))
			testhost.MustSetUp(t, r, "c1", link)
			expect.NoError(t, r.Remove(t.Context(), "c1", link))

			expect.NoError(t, os.Remove(link))
			expect.NoError(t, os.Symlink(second, link))
			testhost.MustSetUp(t, r, "c2", link)
			spoil(h)
			before := h.Audit()

			expect.NoError(t, r.Remove(t.Context(), "c1", link))
			h.WantClean(before)
			expect.Contains(t, "warnings", strings.Join(log.Lines("WARN"), "\n"), "another container's by now")
			expect.Same(t, "after the Remove of c1, lo of c2 is up", h.Link(second, "lo").Attrs().Flags&net.FlagUp != 0, true)
			expect.NoError(t, r.Remove(t.Context(), "c2", link))
		})
	}
}

// nerdctl removes before each Setup, with the path of a new namespace.
func TestARemoveBeforeTheFirstSetupGetsThePath(t *testing.T) {
	s, r, path := oneNetwork(t, "p")
	other := s.Container("c2")
	testhost.MustSetUp(t, r, "c2", other)
	s.TakeCalls()
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.NoError(t, r.Remove(t.Context(), "c1", other))
	var got []string
	for _, c := range s.TakeCalls() {
		got = append(got, fmt.Sprintf("%s %s %s", c.Verb, c.ContainerID, c.NetNS))
	}
	expect.Same(t, "calls", got, []string{"DEL c1 " + path, "DEL c1 "})

	// This reads no record, however many there are.
	unread()[syscall.EISDIR](s.Host, s.RecordFile("c2")+".json")
	var log testhost.Log
	expect.NoError(t, s.Runtime(log.Logger(), cni.WithConfListBytes(s.Network("net", "1.0.0", "p"))).Remove(t.Context(), "c1", path))
	expect.Same(t, "warnings", log.Lines("WARN"), []string{})
	expect.Same(t, "CNI_NETNS", s.TakeCalls()[0].NetNS, path)
}

// TestFault_F40_SetupClearsNothingInAnothersNamespace: for go-cni's attachments
// only libcni's cache has a path. Setup clears dead attachments before it
// attaches, and the path may now belong to another container.
func TestFault_F40_SetupClearsNothingInAnothersNamespace(t *testing.T) {
	s, r, path := oneNetwork(t, "p")
	link := s.Path("path")
	old, other := s.Container("old"), s.Container("c2")
	expect.NoError(t, os.Symlink(old, link))
	testhost.MustSetUp(t, r, "c1", link)
	s.Unrecord("c1")
	expect.NoError(t, os.Remove(link))
	expect.NoError(t, os.Symlink(other, link))
	testhost.MustSetUp(t, r, "c2", other)
	s.TakeCalls()
	testhost.MustSetUp(t, r, "c1", path)
	var got []string
	for _, c := range s.TakeCalls() {
		got = append(got, fmt.Sprintf("%s %s %s", c.Verb, c.ContainerID, c.NetNS))
	}
	expect.Same(t, "calls", got, []string{"DEL c1 ", "ADD c1 " + path})
}
