package behaviour_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// nicState holds the settings of an interface that tuning changes.
type nicState struct {
	Name, MAC       string
	MTU, TxQLen     int
	Promisc, Allmul bool
}

func (h *realHost) nic(name string) nicState {
	h.T.Helper()
	l := expect.Value(netlink.LinkByName(name))(h.T)
	a := l.Attrs()
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
	files := expect.Value(filepath.Glob(h.Path("tuning", "*")))(h.T)
	expect.Same(h.T, "backups", len(files), 0)
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
	h.netlinkIn(path, func(nl *netlink.Handle) error {
		l, err := nl.LinkByName("up0")
		return errors.Join(err, nl.LinkSetName(l, "eth0"))
	})
	r := h.mixed(conf)
	testhost.MustSetUp(h.T, r, "c1", path)
	h.moveOn(path, "eth0", h.Path("netns", "host")) // as the plugin's DEL would
	h.stickTuning("c1", scripted.Action{Signal: 9})
	if err := r.Remove(t.Context(), "c1", path); err == nil {
		t.Error("Remove succeeded, and the interface is not as it was")
	}
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
	file := h.Path("tuning", "c1_eth0.json")
	expect.NoError(t, os.WriteFile(file, []byte(`{"mtu": 1}`), 0o600))
	for range 2 {
		var left *cni.LeftoverError
		if err := r.Remove(t.Context(), "c1", path); !errors.As(err, &left) {
			t.Fatalf("error %v, want a LeftoverError", err)
		}
	}
	expect.Value(r.CleanUp(t.Context(), cni.CleanUpTarget{ContainerID: "c1", Network: "podnet", IfName: "eth0"}))(t)
	h.wantNoBackup()
}
