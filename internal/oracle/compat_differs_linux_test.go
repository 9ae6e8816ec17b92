package oracle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocni "github.com/containerd/go-cni"
	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// The tests of this file cover intended differences from go-cni. Each runs
// go-cni first and fails if go-cni has become right too, so that the migration
// table can be shortened.

func TestCompatDiffers_SettingsApplyWhereverTheyStand(t *testing.T) {
	theirs := expect.Value(gocni.New(gocni.WithConfListBytes([]byte(testhost.ListOf("net"))), gocni.WithInterfacePrefix("net")))(t)
	ours := expect.Value(cni.New(cni.WithConfListBytes([]byte(testhost.ListOf("net"))), cni.WithInterfacePrefix("net")))(t)
	expect.Same(t, "go-cni", theirs.GetConfig().Networks[0].IFName, "eth0")
	expect.Same(t, "ours", ours.GetConfig().Networks[0].IFName, "net0")
}

func TestCompatDiffers_FailedLoadKeepsTheLastGoodConfiguration(t *testing.T) {
	b := loadBoth(t, "lo", "list")
	if err := b.theirs.Load(gocni.WithLoNetwork, gocni.WithConf([]byte("{"))); err == nil || len(b.theirs.GetConfig().Networks) != 1 {
		t.Errorf("go-cni: %v, %+v", err, b.theirs.GetConfig().Networks)
	}
	if err := b.ours.Load(cni.WithLoNetwork, cni.WithConf([]byte("{"))); !errors.Is(err, cni.ErrLoad) || len(b.ours.GetConfig().Networks) != 2 {
		t.Errorf("ours: %v, %+v", err, b.ours.GetConfig().Networks)
	}
}

// TestCompat_18_NamesThatGoCNITakesAtLoad: several configurations with the same
// name, and one without a name.
func TestCompat_18_NamesThatGoCNITakesAtLoad(t *testing.T) {
	list, unnamed := []byte(testhost.ListOf("net")), []byte(testhost.ListOf(""))
	dir := testhost.ConfDir(t, map[string]string{"1.conflist": testhost.ListOf("net"), "2.conflist": testhost.ListOf("net"), "unnamed": testhost.ListOf("")})
	for what, both := range map[string]struct {
		theirs []gocni.Opt
		ours   []cni.Opt
	}{
		"twice": {[]gocni.Opt{gocni.WithConfListBytes(list), gocni.WithLoNetwork, gocni.WithConfListBytes(list)},
			[]cni.Opt{cni.WithConfListBytes(list), cni.WithLoNetwork, cni.WithConfListBytes(list)}},
		"a directory": {[]gocni.Opt{gocni.WithPluginConfDir(dir), gocni.WithAllConf},
			[]cni.Opt{cni.WithPluginConfDir(dir), cni.WithAllConf}},
		"without a name": {[]gocni.Opt{gocni.WithConfListBytes(unnamed), gocni.WithConf([]byte(testhost.ConfOf(""))), gocni.WithConf([]byte(`{"type": "x"}`))},
			[]cni.Opt{cni.WithConfListBytes(unnamed), cni.WithConf([]byte(testhost.ConfOf(""))), cni.WithConf([]byte(`{"type": "x"}`))}},
		"a file without a name": {[]gocni.Opt{gocni.WithConfListFile(filepath.Join(dir, "unnamed"))},
			[]cni.Opt{cni.WithConfListFile(filepath.Join(dir, "unnamed"))}},
	} {
		theirs, ours := expect.Value(gocni.New(both.theirs...))(t), expect.Value(cni.New(both.ours...))(t)
		var got, want []string
		for _, n := range theirs.GetConfig().Networks {
			want = append(want, n.Config.Name+"="+n.IFName)
		}
		for _, n := range ours.GetConfig().Networks {
			got = append(got, n.Config.Name+"="+n.IFName)
		}
		expect.Same(t, what+": loaded", strings.Join(got, " "), strings.Join(want, " "))
	}
}

// TestCompatDiffers_ErrorsOfDELAreNotJudgedByTheirText: go-cni treats any "not
// found" as "nothing to delete", even a missing iptables.
func TestCompatDiffers_ErrorsOfDELAreNotJudgedByTheirText(t *testing.T) {
	h := &host{testhost.New(t)}
	b := h.bothOn(h.scriptedList("net", "1.0.0", refusing("DEL", "exec: iptables: executable file not found in $PATH"), "x"))
	expect.NoError(t, b.theirs.Remove(context.Background(), "c1", ""))
	expect.Says(t, "ours", b.ours.Remove(context.Background(), "c1", ""), "iptables")
}

func TestCompatDiffers_RemoveAsksEveryNetworkLastFirst(t *testing.T) {
	h := &host{testhost.New(t)}
	b := h.bothOn(h.scriptedList("n1", "1.0.0", refusing("DEL", "boom"), "a1", "a2"), h.scriptedList("n2", "1.0.0", scripted.Script{}, "b"))
	expect.Fails(t, "go-cni: no error", b.theirs.Remove(context.Background(), "c1", ""))
	expect.Same(t, "go-cni", strings.Join(verbsOf(h.TakeCalls()), " "), "DEL a2")
	expect.Fails(t, "ours: no error", b.ours.Remove(context.Background(), "c1", ""))
	expect.Same(t, "ours", strings.Join(verbsOf(h.TakeCalls()), " "), "DEL b DEL a2 DEL a1")
}

func TestCompatDiffers_SetupRollsBack(t *testing.T) {
	h := &host{testhost.New(t)}
	b := h.bothOn(h.scriptedList("n1", "1.0.0", scripted.Script{}, "good"), h.scriptedList("n2", "1.0.0", refusing("ADD", "boom"), "bad"))
	path := h.Container("c")
	expect.Fails(t, "go-cni: no error", expect.Err(b.theirs.SetupSerially(context.Background(), "c1", path)))
	expect.Same(t, "go-cni", strings.Join(verbsOf(h.TakeCalls()), " "), "ADD good ADD bad")
	expect.Fails(t, "ours: no error", expect.Err(b.ours.SetupSerially(context.Background(), "c1", path)))
	expect.Same(t, "ours", strings.Join(verbsOf(h.TakeCalls()), " "), "ADD good ADD bad DEL bad DEL good")
}

// TestCompatDiffers_CheckWithLoopback: go-cni's loopback has version 0.3.1,
// which has no CHECK. Its Check therefore fails for all users of it.
func TestCompatDiffers_CheckWithLoopback(t *testing.T) {
	h := &host{testhost.New(t)}
	h.Plugin(scripted.Script{}, "loopback")
	theirs := expect.Value(gocni.New(gocni.WithPluginDir([]string{h.Path("bin")}), gocni.WithLoNetwork))(t)
	ours := h.Runtime(cni.WithLoNetwork)
	path, ctx := h.Container("c"), context.Background()
	expect.Value(theirs.Setup(ctx, "theirs", path))(t)
	expect.Value(ours.Setup(ctx, "ours", path))(t)
	expect.Says(t, "go-cni", theirs.Check(ctx, "theirs", path), "does not support the CHECK command")
	expect.NoError(t, ours.Check(ctx, "ours", path))
}

// TestCompatDiffers_LoIsNotInTheCache: go-cni caches the result of lo, although no DEL
// needs it. Each removes the other's lo.
func TestCompatDiffers_LoIsNotInTheCache(t *testing.T) {
	h := &host{testhost.New(t)}
	plugins := testhost.ReferencePlugins(t)
	theirs := expect.Value(gocni.New(gocni.WithPluginDir([]string{plugins}), gocni.WithLoNetwork))(t)
	ours := h.Runtime(cni.WithPluginDir([]string{plugins}), cni.WithLoNetwork, cni.WithStateDir(libcni.CacheDir))
	ctx := context.Background()
	var path string
	want := func(when string, wantUp bool, wantCached int) {
		t.Helper()
		cached := expect.Value(filepath.Glob(filepath.Join(libcni.CacheDir, "results", "cni-loopback-shared-*")))(t)
		expect.Same(t, when+": files in the cache", len(cached), wantCached)
		ns := expect.Value(netns.Open(path))(t)
		defer func() { expect.NoError(t, ns.Close()) }()
		expect.NoError(t, ns.Do(func() error {
			lo, err := net.InterfaceByName("lo")
			if err == nil && (lo.Flags&net.FlagUp != 0) != wantUp {
				err = fmt.Errorf("%s: lo has flags %s", when, lo.Flags)
			}
			return err
		}))
	}

	path = h.Container("ours")
	expect.Value(ours.Setup(ctx, "shared", path))(t)
	want("attached here", true, 0)
	expect.NoError(t, theirs.Remove(ctx, "shared", path))
	want("removed by go-cni", false, 0)
	expect.NoError(t, ours.Remove(ctx, "shared", path))

	path = h.Container("theirs")
	expect.Value(theirs.Setup(ctx, "shared", path))(t)
	want("attached by go-cni", true, 1)
	expect.NoError(t, ours.Remove(ctx, "shared", path))
	want("removed here", false, 0)
}

func TestCompatDiffers_CancelledContextDoesNotStopATeardown(t *testing.T) {
	h := &host{testhost.New(t)}
	b := h.bothOn(h.scriptedList("net", "1.0.0", scripted.Script{}, "x"))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := b.theirs.Remove(ctx, "c1", "")
	expect.That(t, err != nil && len(h.TakeCalls()) == 0, "go-cni: %v", err)
	expect.NoError(t, b.ours.Remove(ctx, "c1", ""))
	expect.Same(t, "ours: calls", strings.Join(verbsOf(h.TakeCalls()), " "), "DEL x")
}

// TestCompatDiffers_StderrOfPlugins appears in the error instead of the
// process's stderr.
func TestCompatDiffers_StderrOfPlugins(t *testing.T) {
	h := &host{testhost.New(t)}
	path := h.Container("c")
	list := h.scriptedList("net", "1.0.0", scripted.Script{Verbs: map[string]scripted.Action{"ADD": {Stderr: "the plugin's last words\n"}}}, "x")
	processStderr := func(run func()) string {
		r, w, err := os.Pipe()
		expect.NoError(t, err)
		own := os.Stderr
		os.Stderr = w
		run()
		os.Stderr = own
		expect.NoError(t, w.Close())
		return string(expect.Value(io.ReadAll(r))(t))
	}
	got := processStderr(func() { expect.Value(h.bothOn(list).theirs.Setup(context.Background(), "c1", path))(t) })
	expect.That(t, strings.Contains(got, "last words"), "go-cni: stderr %q", got)
	expect.Same(t, "ours: stderr", processStderr(func() { expect.Value(h.bothOn(list).ours.Setup(context.Background(), "c2", path))(t) }), "")
	h.scriptedList("net", "1.0.0", scripted.Script{Verbs: map[string]scripted.Action{"ADD": {Stderr: "the plugin's last words\n", Exit: 1}}}, "x")
	_, err := h.bothOn(list).ours.Setup(context.Background(), "c3", path)
	e := (*cni.Error)(nil)
	expect.That(t, errors.As(err, &e) && e.Stderr == "the plugin's last words\n", "ours: error %+v", err)
}

func TestCompatDiffers_ResultThatMakesGoCNIPanic(t *testing.T) {
	h := &host{testhost.New(t)}
	path := h.Container("c")
	const out = `{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0"}], "ips": [{"interface": 1, "address": "10.0.0.2/24"}]}`
	b := h.bothOn(h.scriptedList("net", "1.0.0", answering("ADD", out, 0), "x"))
	func() {
		defer func() { expect.Same(t, "go-cni panics", recover() != nil, true) }()
		_, _ = b.theirs.SetupSerially(context.Background(), "c1", path) // never returns
	}()
	_, err := b.ours.SetupSerially(context.Background(), "c1", path)
	expect.That(t, cni.IsInvalidResult(err), "ours: %v, want ErrInvalidResult", err)
}

// TestCompatDiffers_CapabilitiesOnTheWire have the keys of CONVENTIONS.md
// (R44).
func TestCompatDiffers_CapabilitiesOnTheWire(t *testing.T) {
	h := &host{testhost.New(t)}
	b := h.bothOn(h.scriptedList("net", "1.0.0", scripted.Script{}, "x"))
	path := h.Container("c")
	expect.Value(b.theirs.Setup(context.Background(), "c1", path, gocni.WithCapabilityPortMap([]gocni.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "TCP"}}),
		gocni.WithCapabilityIPRanges([]gocni.IPRanges{{Subnet: "10.0.0.0/8"}})))(t)
	expect.Value(b.ours.Setup(context.Background(), "c2", path, cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "TCP"}}),
		cni.WithCapabilityIPRanges([]cni.IPRanges{{Subnet: "10.0.0.0/8"}})))(t)
	want := []string{
		`{"ipRanges":[{"Subnet":"10.0.0.0/8","RangeStart":"","RangeEnd":"","Gateway":""}],"portMappings":[{"HostPort":8080,"ContainerPort":80,"Protocol":"TCP","HostIP":""}]}`,
		`{"ipRanges":[[{"subnet":"10.0.0.0/8"}]],"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`,
	}
	for i, call := range h.TakeCalls() {
		var request struct {
			RuntimeConfig json.RawMessage `json:"runtimeConfig"`
		}
		if err := json.Unmarshal(call.Stdin, &request); err != nil || !bytes.Equal(request.RuntimeConfig, []byte(want[i])) {
			t.Errorf("%s: %s, want %s (%v)", []string{"go-cni", "ours"}[i], request.RuntimeConfig, want[i], err)
		}
	}
}

// TestCompatDiffers_SecondSetup: go-cni runs a second ADD. Ours refuses it and
// runs nothing if the attachment lives, and removes a dead one first.
func TestCompatDiffers_SecondSetup(t *testing.T) {
	h := &host{testhost.New(t)}
	b := h.bothOn(h.scriptedList("net", "1.0.0", scripted.Script{}, "x"))
	ctx := context.Background()
	path := h.Path("netns", "c")
	ns := expect.Value(netns.Create(path))(t)
	for range 2 {
		expect.Value(b.theirs.Setup(ctx, "theirs", path))(t)
	}
	expect.Value(b.ours.Setup(ctx, "ours", path))(t)
	h.addLink(ns, "eth0")
	expect.Same(t, "calls", fmt.Sprint(verbsOf(h.TakeCalls())), "[ADD x ADD x ADD x]")
	_, err := b.ours.Setup(ctx, "ours", path)
	expect.That(t, errors.Is(err, cni.ErrAlreadyAttached) && len(h.TakeCalls()) == 0, "it lives: %v, want ErrAlreadyAttached and no calls", err)
	expect.NoError(t, errors.Join(netns.Remove(path), ns.Close()))
	expect.Value(b.ours.Setup(ctx, "ours", h.Container("c2")))(t)
	expect.Same(t, "it is dead: calls", fmt.Sprint(verbsOf(h.TakeCalls())), "[DEL x ADD x]")
}

// addLink makes an interface in a namespace, for plugins that only claim to
// have made one.
func (h *host) addLink(ns *netns.Handle, name string) {
	h.T.Helper()
	nl := expect.Value(netlink.NewHandleAt(vnetns.NsHandle(ns.File().Fd())))(h.T)
	defer nl.Close()
	expect.NoError(h.T, nl.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"}))
}
