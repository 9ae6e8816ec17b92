package oracle

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	gocni "github.com/containerd/go-cni"
	"github.com/containernetworking/cni/libcni"

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
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: loaded %s, go-cni %s", what, got, want)
		}
	}
}

// TestCompatDiffers_CallsOfPlugins compares the plugins that a call asks, and its error.
func TestCompatDiffers_CallsOfPlugins(t *testing.T) {
	const missing = "exec: iptables: executable file not found in $PATH" // which go-cni takes for "nothing to delete"
	type answer struct{ calls, err string }
	for name, tt := range map[string]struct {
		first        scripted.Script // of the network with the plugins a1 and a2
		second       scripted.Script // of the one with the plugin b
		setup, ended bool
		theirs, ours answer
	}{
		"an error of DEL is not judged by its text": {first: refusing("DEL", missing), theirs: answer{"DEL a2 DEL b", ""}, ours: answer{"DEL b DEL a2 DEL a1", "iptables"}},
		"Remove asks every network, last first":     {second: refusing("DEL", "boom"), theirs: answer{"DEL a2 DEL a1 DEL b", "boom"}, ours: answer{"DEL b DEL a2 DEL a1", "boom"}},
		"Setup rolls back":                          {second: refusing("ADD", "boom"), setup: true, theirs: answer{"ADD a1 ADD a2 ADD b", "boom"}, ours: answer{"ADD a1 ADD a2 ADD b DEL b DEL a2 DEL a1", "boom"}},
		"an ended context stops no teardown":        {ended: true, theirs: answer{"", "context canceled"}, ours: answer{"DEL b DEL a2 DEL a1", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			h := &host{testhost.New(t)}
			b := h.bothOn(h.scriptedList("n1", "1.0.0", tt.first, "a1", "a2"), h.scriptedList("n2", "1.0.0", tt.second, "b"))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tt.ended {
				cancel()
			}
			path := h.Container("c")
			check := func(who string, want answer, err error) {
				t.Helper()
				expect.Same(t, who+": calls", strings.Join(verbsOf(h.TakeCalls()), " "), want.calls)
				if (err == nil) != (want.err == "") || err != nil && !strings.Contains(err.Error(), want.err) {
					t.Errorf("%s: error %v, want %q in it", who, err, want.err)
				}
			}
			if tt.setup {
				check("go-cni", tt.theirs, expect.Err(b.theirs.SetupSerially(ctx, "c1", path)))
				check("ours", tt.ours, expect.Err(b.ours.SetupSerially(ctx, "c1", path)))
				return
			}
			check("go-cni", tt.theirs, b.theirs.Remove(ctx, "c1", ""))
			check("ours", tt.ours, b.ours.Remove(ctx, "c1", ""))
		})
	}
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
