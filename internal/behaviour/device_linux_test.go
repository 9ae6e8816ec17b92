package behaviour_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// netlinkIn runs f with a netlink handle in a container's namespace.
func (h *realHost) netlinkIn(path string, f func(*netlink.Handle) error) {
	h.T.Helper()
	ns := expect.Value(netns.Open(path))(h.T)
	nettest.Inside(h.T, ns, f)
	expect.NoError(h.T, ns.Close())
}

// disguise renames an interface as a container's root can, and forges every
// other attribute that it can.
func disguise(nl *netlink.Handle, name, as string) error {
	l, err := nl.LinkByName(name)
	if err != nil {
		return err
	}
	return errors.Join(nl.LinkSetDown(l), nl.LinkSetName(l, as), nl.LinkSetAlias(l, "forged"),
		nl.LinkSetHardwareAddr(l, []byte{2, 0, 0, 0, 0, 0x66}), nl.LinkSetUp(l))
}

// decoy makes an interface of the container's own.
func decoy(nl *netlink.Handle, name string) error {
	return nl.LinkAdd(&netlink.Bridge{LinkAttrs: nettest.Attrs(name)})
}

// linksOf returns the names of a namespace's interfaces except lo.
func (h *realHost) linksOf(path string) (names []string) {
	h.T.Helper()
	h.netlinkIn(path, func(nl *netlink.Handle) error {
		all, err := nl.LinkList()
		for _, l := range all {
			if l.Attrs().Name != "lo" {
				names = append(names, l.Attrs().Name)
			}
		}
		return err
	})
	return names
}

// deviceCases are networks whose interface the container can rename.
func deviceCases() map[string]testhost.Case {
	return map[string]testhost.Case{
		"macvlan":     testhost.Macvlan(),
		"host-device": testhost.HostDevice(),
		"bridge":      {Plugins: []string{testhost.BridgeConf(testhost.HostLocal(testhost.V4Range))}, Prepare: testhost.Uplink},
		"ptp":         {Plugins: []string{testhost.PtpConf(testhost.HostLocal(testhost.V4Range))}, Prepare: testhost.Uplink},
	}
}

// TestFault_F47_ARenamedInterfaceIsRemoved: a container's root renames its
// interface, forges other attributes, and puts another interface in its place.
// Remove still removes the right one.
func TestFault_F47_ARenamedInterfaceIsRemoved(t *testing.T) {
	for kind, opt := range kindsOf() {
		for name, c := range deviceCases() {
			for what, inPlace := range map[string]string{"renamed": "", "replaced": "eth0"} {
				t.Run(kind+"/"+name+"/"+what, func(t *testing.T) {
					h := newRealHost(t)
					c.Prepare(h.RealHost)
					r := h.mixed(opt, cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
					neighbour := h.Container("c2")
					if name != "host-device" {
						testhost.MustSetUp(h.T, r, "c2", neighbour)
					}
					path := h.Container("c1")
					before := h.Audit()
					testhost.MustSetUp(h.T, r, "c1", path)
					h.netlinkIn(path, func(nl *netlink.Handle) error {
						err := disguise(nl, "eth0", "hidden")
						if inPlace != "" {
							err = errors.Join(err, decoy(nl, inPlace))
						}
						return err
					})
					expect.NoError(t, r.Remove(t.Context(), "c1", path))
					h.WantClean(before)
					expect.Same(t, "the container has the interface", slices.Contains(h.linksOf(path), "hidden"), false)
					if name != "host-device" {
						expect.Same(t, "interfaces of the neighbour", h.linksOf(neighbour), []string{"eth0"})
					}
				})
			}
		}
	}
}

// nested starts a process in a new network namespace, as a container's root
// can, and returns the namespace's path.
func (h *realHost) nested(path string) (inner string) {
	h.T.Helper()
	inner, _ = inhabitIn(h.T, path, syscall.CLONE_NEWNET)
	return inner
}

// TestFault_F47_AnInterfaceMovedOnIsFound: the interface is in a namespace that
// the container made, and is found through the visible processes. Or the kernel has returned
// a physical device to the host, under the name that it had in the container.
func TestFault_F47_AnInterfaceMovedOnIsFound(t *testing.T) {
	host := func(h *realHost, _ string) string { return h.Path("netns", "host") }
	for kind, opt := range kindsOf() {
		for _, c := range []struct {
			name  string
			inner func(h *realHost, path string) string
			left  []string
		}{{"macvlan", (*realHost).nested, nil}, {"host-device", (*realHost).nested, nil}, {"host-device", host, []string{"up1", "up0"}}} {
			t.Run(kind+"/"+c.name, func(t *testing.T) {
				h, network := newRealHost(t), deviceCases()[c.name]
				network.Prepare(h.RealHost)
				r := h.mixed(opt, cni.WithConfListBytes(network.Conf("podnet", "1.0.0", h.Path("ipam"))))
				path := h.Container("c1")
				before := h.Audit()
				testhost.MustSetUp(h.T, r, "c1", path)
				inner := c.inner(h, path)
				h.moveOn(path, "eth0", inner)
				expect.NoError(t, r.Remove(t.Context(), "c1", path))
				h.WantClean(before)
				expect.Same(t, "interfaces of the inner namespace", h.linksOf(inner), c.left)
			})
		}
	}
}

func (h *realHost) moveOn(from, name, to string) {
	h.T.Helper()
	ns := expect.Value(netns.Open(to))(h.T)
	defer ns.Close()
	h.Change(from, name, func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkSetNsFd(l, int(ns.File().Fd())) })
}

// TestFault_F47_AnInterfaceThatIsNotBackIsReported: a host interface that
// exists but cannot be found is reported until it is back, and the record
// stays.
func TestFault_F47_AnInterfaceThatIsNotBackIsReported(t *testing.T) {
	for kind, opt := range kindsOf() {
		t.Run(kind, func(t *testing.T) {
			h, c := newRealHost(t), deviceCases()["host-device"]
			c.Prepare(h.RealHost)
			r := h.mixed(opt, cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
			path, unseen := h.Container("c1"), h.Container("unseen") // no process is inside
			before := h.Audit()
			testhost.MustSetUp(h.T, r, "c1", path)
			h.moveOn(path, "eth0", unseen)
			for range 2 {
				err := r.Remove(t.Context(), "c1", path)
				wantLeftover(t, err)
				fails(t, err, "interface up0 of the host")
				expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 failed"})
			}
			h.moveOn(unseen, "eth0", path)
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
			h.WantClean(before)
		})
	}
}

// TestFault_F47_ARetriedDelLeavesAnInterfaceThatIsLentAgain: a Remove was
// interrupted, but the interface is back and another container has it when the
// first container is removed again.
func TestFault_F47_ARetriedDelLeavesAnInterfaceThatIsLentAgain(t *testing.T) {
	for kind, opt := range kindsOf() {
		for name, forget := range map[string]bool{"after a failure": false, "after a kill": true} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				h := newRealHost(t)
				h.VethPair("up0", "up1")
				script := h.Plugin(scripted.Script{Verbs: map[string]scripted.Action{"DEL": testhost.Says(5, "stuck")}}, "stuck")
				c := testhost.Case{Plugins: []string{`{"type": "host-device", "device": "up0"}`, `{"type": "stuck", "script": "` + script + `"}`}}
				r := h.mixed(opt, cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
				path, other := h.Container("c1"), h.Container("c2")
				testhost.MustSetUp(h.T, r, "c1", path)
				fails(t, r.Remove(t.Context(), "c1", path))
				if forget {
					h.ChangeRecord("c1", func(rec *record.Record) {
						fact := strings.Replace(string(rec.Attachments[0].Facts["interface"]), `,"settled":true`, "", 1)
						rec.Attachments[0].Facts["interface"] = []byte(fact)
					})
				}
				h.Plugin(scripted.Script{}, "stuck")
				testhost.MustSetUp(h.T, r, "c2", other)
				expect.NoError(t, r.Remove(t.Context(), "c1", path))
				expect.Same(t, "interfaces of c2", h.linksOf(other), []string{"eth0"})
				expect.NoError(t, r.Remove(t.Context(), "c2", other))
				expect.Same(t, "interfaces of the host", h.linksOf(h.Path("netns", "host")), []string{"up1", "up0"})
			})
		}
	}
}

// TestFault_F47_InterfacesThatAreLikeItStay: another program has an interface
// on the same parent in the container, and another container has one with the
// same index. Both stay, whether our interface still exists or the container
// has deleted it.
func TestFault_F47_InterfacesThatAreLikeItStay(t *testing.T) {
	for kind, opt := range kindsOf() {
		for name, deleted := range map[string]bool{"there": false, "deleted": true} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				h, c := newRealHost(t), deviceCases()["macvlan"]
				c.Prepare(h.RealHost)
				r := h.mixed(opt, cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
				path, neighbour := h.Container("c1"), h.Container("c2")
				inhabit(t, neighbour)
				testhost.MustSetUp(h.T, r, "c1", path)
				testhost.MustSetUp(h.T, r, "c2", neighbour)
				a := nettest.Attrs("net1")
				a.ParentIndex = h.Link("", "up0").Attrs().Index
				expect.NoError(t, netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: a, Mode: netlink.MACVLAN_MODE_BRIDGE}))
				h.moveOn(h.Path("netns", "host"), "net1", path)
				if deleted {
					h.DelLink("c1", "eth0")
				}
				expect.NoError(t, r.Remove(t.Context(), "c1", path))
				expect.Same(t, "interfaces of the container", h.linksOf(path), []string{"net1"})
				expect.Same(t, "interfaces of the neighbour", h.linksOf(neighbour), []string{"eth0"})
			})
		}
	}
}

// nicState holds the settings of an interface that tuning changes.
type nicState struct {
	Name, MAC       string
	MTU, TxQLen     int
	Promisc, Allmul bool
}

func (h *realHost) nic(name string) nicState {
	h.T.Helper()
	a := h.Link("", name).Attrs()
	return nicState{a.Name, a.HardwareAddr.String(), a.MTU, a.TxQLen, a.Promisc != 0, a.Allmulti != 0}
}

// tuningConf changes everything that tuning can change. It includes a script
// for a scripted replacement.
func (h *realHost) tuningConf() string {
	return `{"type": "tuning", "mac": "0a:58:0a:4d:00:02", "mtu": 1400, "promisc": true, "txQLen": 77, "allmulti": true,
		"dataDir": "` + h.Path("tuning") + `", "script": "` + h.Path("script-tuning") + `"}`
}

func (h *realHost) wantNoBackup() {
	h.T.Helper()
	expect.Same(h.T, "backups", len(expect.Value(filepath.Glob(h.Path("tuning", "*")))(h.T)), 0)
}

// stickTuning replaces tuning by a scripted plugin, whose DEL for the attached
// container does nothing but this action.
func (h *realHost) stickTuning(id string, del scripted.Action) {
	h.T.Helper()
	h.Plugin(scripted.Script{Verbs: map[string]scripted.Action{"DEL": del}}, "tuning")
	h.ChangeRecord(id, func(rec *record.Record) {
		i := slices.IndexFunc(rec.Attachments[0].Plugins, func(p record.Plugin) bool { return p.Type == "tuning" })
		rec.Attachments[0].Plugins[i].Kind, rec.Attachments[0].Plugins[i].Path = string("executable"), h.Path("bin", "tuning")
	})
}

func TestFault_F46_AnInterfaceOfTheHostsIsBackAsItWas(t *testing.T) {
	for kind, opt := range kindsOf() {
		for name, del := range map[string]scripted.Action{"killed": {Signal: 9}, "does nothing": {}, "fails": testhost.Says(5, "stuck")} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				h := newRealHost(t)
				h.VethPair("up0", "up1")
				c := testhost.Case{Plugins: []string{`{"type": "host-device", "device": "up0", ` + testhost.HostLocal(testhost.V4Range) + `}`, h.tuningConf()}}
				conf := cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam")))
				path := h.Container("c1")
				before, audited := h.nic("up0"), h.Audit()
				r := h.mixed(opt, conf)
				testhost.MustSetUp(h.T, r, "c1", path)
				h.stickTuning("c1", del)
				expect.NoError(t, r.Remove(t.Context(), "c1", path))
				expect.Same(t, "interface", h.nic("up0"), before)
				h.wantNoBackup()
				h.WantClean(audited)
			})
		}
	}
}

// TestFault_F46_AnInterfaceThatWasHiddenIsBackAsItWas: the container has
// renamed the interface or moved it on.
func TestFault_F46_AnInterfaceThatWasHiddenIsBackAsItWas(t *testing.T) {
	for kind, opt := range kindsOf() {
		for name, hide := range map[string]func(h *realHost, path string){
			"renamed": func(h *realHost, path string) {
				h.netlinkIn(path, func(nl *netlink.Handle) error { return disguise(nl, "eth0", "hidden") })
			},
			"moved on": func(h *realHost, path string) { h.moveOn(path, "eth0", h.nested(path)) },
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				h := newRealHost(t)
				h.VethPair("up0", "up1")
				c := testhost.Case{Plugins: []string{`{"type": "host-device", "device": "up0"}`, h.tuningConf()}}
				r := h.mixed(opt, cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
				path := h.Container("c1")
				before := h.nic("up0")
				testhost.MustSetUp(h.T, r, "c1", path)
				hide(h, path)
				expect.NoError(t, r.Remove(t.Context(), "c1", path))
				expect.Same(t, "interface", h.nic("up0"), before)
				h.wantNoBackup()
			})
		}
	}
}

// TestFault_F46_NoBackupIsLeft if the interface disappears with the attachment.
func TestFault_F46_NoBackupIsLeft(t *testing.T) {
	for name, first := range map[string]string{
		"bridge":  testhost.BridgeConf(testhost.HostLocal(testhost.V4Range)),
		"macvlan": `{"type": "macvlan", "master": "up0", ` + testhost.HostLocal(testhost.V4Range) + `}`,
	} {
		t.Run(name, func(t *testing.T) {
			h := newRealHost(t)
			testhost.Uplink(h.RealHost)
			c := testhost.Case{Plugins: []string{first, h.tuningConf()}}
			conf := cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam")))
			path := h.Container("c1")
			r := h.mixed(conf)
			testhost.MustSetUp(h.T, r, "c1", path)
			h.stickTuning("c1", scripted.Action{Signal: 9})
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
			h.wantNoBackup()
		})
	}
}

// TestFault_F46_TheSweepDoesNotCoverUnknownInterfaces: nobody knows
// the state of an interface that another plugin has made. The failure of tuning
// is reported once.
func TestFault_F46_TheSweepDoesNotCoverUnknownInterfaces(t *testing.T) {
	h := newRealHost(t)
	h.VethPair("up0", "up1")
	first := h.Plugin(scripted.Script{}, "first")
	c := testhost.Case{Plugins: []string{`{"type": "first", "script": "` + first + `"}`, h.tuningConf()}}
	conf := cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam")))
	path := h.Container("c1")
	h.MoveLink("up0", path)
	h.Change(path, "up0", func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkSetName(l, "eth0") })
	r := h.mixed(conf)
	testhost.MustSetUp(h.T, r, "c1", path)
	h.moveOn(path, "eth0", h.Path("netns", "host")) // as the plugin's DEL would
	h.stickTuning("c1", scripted.Action{Signal: 9})
	fails(t, r.Remove(t.Context(), "c1", path))
	h.Plugin(scripted.Script{}, "tuning")
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	h.wantNoBackup()
}

// TestFault_F46_AFailedRestoreIsReported: its backup stays with the record
// until CleanUp.
func TestFault_F46_AFailedRestoreIsReported(t *testing.T) {
	h := newRealHost(t)
	h.VethPair("up0", "up1")
	c := testhost.Case{Plugins: []string{`{"type": "host-device", "device": "up0"}`, h.tuningConf()}}
	r := h.mixed(cni.WithBuiltinPlugins(), cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
	path := h.Container("c1")
	testhost.MustSetUp(h.T, r, "c1", path)
	expect.NoError(t, os.WriteFile(h.Path("tuning", "c1_eth0.json"), []byte(`{"mtu": 1}`), 0o600))
	for range 2 {
		wantLeftover(t, r.Remove(t.Context(), "c1", path))
	}
	expect.Value(r.CleanUp(t.Context(), cni.CleanUpTarget{ContainerID: "c1", Network: "podnet", IfName: "eth0"}))(t)
	h.wantNoBackup()
}
