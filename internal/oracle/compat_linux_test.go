package oracle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	gocni "github.com/containerd/go-cni"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// host is a host for comparing the two packages.
type host struct{ *testhost.Host }

// bothOn returns the two packages with the same networks on this host.
func (h *host) bothOn(lists ...[]byte) bothPackages {
	h.T.Helper()
	h.NoBuiltins = true // go-cni has none
	their := []gocni.Opt{gocni.WithPluginDir([]string{h.Path("bin")})}
	var our []cni.Opt
	for _, list := range lists {
		their, our = append(their, gocni.WithConfListBytes(list)), append(our, cni.WithConfListBytes(list))
	}
	return bothPackages{expect.Value(gocni.New(their...))(h.T), h.Runtime(our...)}
}

// scriptedList returns the configuration of a network of plugins that all
// follow the script.
func (h *host) scriptedList(name, version string, script scripted.Script, types ...string) []byte {
	h.T.Helper()
	path := h.Plugin(script, types...)
	scripts := map[string]string{}
	for _, typ := range types {
		scripts[typ] = path
	}
	return testhost.Conflist(name, version, scripts, types...)
}

// answering returns a script that prints answer for a verb and exits with code.
func answering(verb, answer string, code int) scripted.Script {
	return scripted.Script{Verbs: map[string]scripted.Action{verb: {Stdout: &answer, Exit: code}}}
}

// refusing returns a script that fails a verb with a plugin's error.
func refusing(verb, msg string) scripted.Script {
	return answering(verb, `{"cniVersion": "1.0.0", "code": 100, "msg": "`+msg+`"}`, 1)
}

// TestCompat_05_ResultIsInLoadOrder: each network has a DNS entry and a raw
// result in the order of the networks, although they ran in parallel.
func TestCompat_05_ResultIsInLoadOrder(t *testing.T) {
	h := &host{testhost.New(t)}
	b := h.bothOn(h.scriptedList("first", "0.2.0", scripted.Script{}, "old"),
		h.scriptedList("second", "1.0.0", scripted.Script{}, "new"))
	path := h.Container("n1")
	want := expect.Value(b.theirs.Setup(context.Background(), "theirs", path))(t)
	got := expect.Value(b.ours.Setup(context.Background(), "ours", path))(t)
	sameJSON(t, "raw results", got.Raw(), want.Raw())
	got.Networks = nil
	sameJSON(t, "result", got, want)
	expect.That(t, len(got.DNS) == 2 && len(got.Raw()) == 2 && len(got.Raw()[0].Interfaces) == 0 && got.Raw()[1].Interfaces[0].Name == "eth1",
		"DNS %+v, raw results %+v", got.DNS, got.Raw())
}

// TestCompat_05_DefaultInterfaceIsAlwaysThere, empty if no plugin reported it.
func TestCompat_05_DefaultInterfaceIsAlwaysThere(t *testing.T) {
	h := &host{testhost.New(t)}
	list := h.scriptedList("net", "1.0.0", answering("ADD", `{"cniVersion": "1.0.0"}`, 0), "silent")
	r := h.Runtime(cni.WithInterfacePrefix("net"), cni.WithConfListBytes(list))
	got := expect.Value(r.Setup(context.Background(), "c1", h.Container("n1")))(t)
	expect.Same(t, "interfaces net0 without anything", got.Interfaces, map[string]*cni.Config{"net0": {}})
}

// TestCompat_08_Status: too few networks, otherwise the STATUS of plugins with
// a 1.1.0 configuration.
func TestCompat_08_Status(t *testing.T) {
	h := &host{testhost.New(t)}
	old := h.scriptedList("old", "1.0.0", refusing("STATUS", "is never asked"), "old")
	good := h.scriptedList("good", "1.1.0", scripted.Script{}, "good")
	bad := h.scriptedList("bad", "1.1.0", answering("STATUS", `{"cniVersion": "1.1.0", "code": 50, "msg": "no capacity"}`, 1), "bad")
	for _, test := range []struct {
		lists [][]byte
		calls string
		err   string
	}{
		{nil, "", "cni plugin not initialized"},
		{[][]byte{old}, "", ""},
		{[][]byte{old, good}, "STATUS good", ""},
		{[][]byte{good, bad}, "STATUS good STATUS bad", "no capacity"},
		{[][]byte{bad, good}, "STATUS bad", "no capacity"},
	} {
		b := h.bothOn(test.lists...)
		for who, status := range map[string]func() error{"ours": b.ours.Status, "go-cni": b.theirs.Status} {
			err := status()
			expect.That(t, (err == nil) == (test.err == "") && (err == nil || strings.Contains(err.Error(), test.err)),
				"%s: %v, want %q", who, err, test.err)
			expect.Same(t, who, strings.Join(verbsOf(h.TakeCalls()), " "), test.calls)
		}
	}
	err := h.Runtime(cni.WithMinNetworkCount(2), cni.WithConfListBytes(old)).Status()
	expect.That(t, cni.IsCNINotInitialized(err), "one network of two: %v", err)
}

// TestCompat_09_RemoveWithoutNetNS succeeds for an ID that was never added, as
// nerdctl needs before each Setup. It also succeeds after the namespace is
// gone: the plugins then get the pin's path.
func TestCompat_09_RemoveWithoutNetNS(t *testing.T) {
	h := &host{testhost.New(t)}
	b := h.bothOn(h.scriptedList("net", "1.0.0", scripted.Script{}, "a", "b"))
	for who, remove := range map[string]func(context.Context, string, string) error{
		"ours":   func(ctx context.Context, id, path string) error { return b.ours.Remove(ctx, id, path) },
		"go-cni": func(ctx context.Context, id, path string) error { return b.theirs.Remove(ctx, id, path) },
	} {
		expect.NoError(t, remove(context.Background(), "never", ""))
		calls := h.TakeCalls()
		got := strings.Join(verbsOf(calls), " ")
		expect.That(t, got == "DEL b DEL a" && calls[0].NetNS == "", "%s: calls %s in %q", who, got, calls[0].NetNS)
	}
	path := h.Path("netns", "gone")
	ns := expect.Value(netns.Create(path))(t)
	expect.Value(b.ours.Setup(context.Background(), "c1", path))(t)
	expect.NoError(t, netns.Remove(path))
	expect.NoError(t, ns.Close())
	h.TakeCalls()
	expect.NoError(t, b.ours.Remove(context.Background(), "c1", ""))
	for _, call := range h.TakeCalls() {
		expect.That(t, call.Verb == "DEL" && call.NetNS == h.Pin("c1") && strings.Contains(string(call.Stdin), `"prevResult":{`),
			"%s of %s in %q: %s", call.Verb, call.Type, call.NetNS, call.Stdin)
	}
}

// TestCompat_10_Texts that callers match or show are the same in both packages'
// errors.
func TestCompat_10_Texts(t *testing.T) {
	h := &host{testhost.New(t)}
	path := h.Container("n1")
	ctx := context.Background()
	empty, half := t.TempDir(), testhost.ConfDir(t, map[string]string{"10.conf": `{"name": "net", `})
	pair := func(script scripted.Script, version string) bothPackages {
		return h.bothOn(h.scriptedList("net", version, script, "x"))
	}
	none := bothPackages{expect.Value(gocni.New())(t), h.Runtime()}
	add := func(msg string) [2]error {
		b := pair(refusing("ADD", msg), "1.0.0")
		_, ours := b.ours.Setup(ctx, "ours", path)
		_, theirs := b.theirs.Setup(ctx, "theirs", path)
		return [2]error{ours, theirs}
	}
	parse := func() [2]error {
		_, ours := cni.New(cni.WithConf([]byte(`{`)))
		_, theirs := gocni.New(gocni.WithConf([]byte(`{`)))
		return [2]error{ours, theirs}
	}
	del := pair(refusing("DEL", "boom"), "1.0.0")
	delErrs := [2]error{del.ours.Remove(ctx, "ours", path), del.theirs.Remove(ctx, "theirs", path)}
	old := pair(scripted.Script{}, "0.3.1")
	for name, test := range map[string]struct {
		errs                  [2]error
		prefix, middle, after string
	}{
		"not initialized": {[2]error{none.ours.Status(), none.theirs.Status()}, "cni plugin not initialized", "", ""},
		"load of nothing": {
			[2]error{none.ours.Load(cni.WithPluginConfDir(empty), cni.WithDefaultConf), none.theirs.Load(gocni.WithPluginConfDir(empty), gocni.WithDefaultConf)},
			"cni config load failed: ", "no network config found in " + empty, ": failed to load cni config",
		},
		"load of half a file": {
			[2]error{none.ours.Load(cni.WithPluginConfDir(half), cni.WithDefaultConf), none.theirs.Load(gocni.WithPluginConfDir(half), gocni.WithDefaultConf)},
			"cni config load failed: ", "error parsing configuration: unexpected end of JSON input", ": failed to load cni config",
		},
		"parse":                {parse(), "error parsing configuration:", "", ""},
		"ADD":                  {add("no more addresses"), "", `plugin type="x" failed (add): no more addresses`, ""},
		"duplicate allocation": {add("duplicate allocation is not allowed"), "", "duplicate allocation", ""},
		"already exists":       {add(`container veth name provided (eth0) already exists`), "", "already exists", ""},
		"DEL":                  {delErrs, "", `plugin type="x" failed (delete): boom`, ""},
		"CHECK":                {[2]error{old.ours.Check(ctx, "ours", path), old.theirs.Check(ctx, "theirs", path)}, "", "does not support the CHECK command", ""},
	} {
		for i, who := range []string{"ours", "go-cni"} {
			err := test.errs[i]
			expect.That(t, err != nil && strings.HasPrefix(err.Error(), test.prefix) && strings.Contains(err.Error(), test.middle) && strings.HasSuffix(err.Error(), test.after),
				"%s, %s: %v; want %q … %q … %q", name, who, err, test.prefix, test.middle, test.after)
		}
	}
}

// TestCompat_11_PluginsRunInTheNamespaceOfTheCallersThread: BuildKit and
// nerdctl lock a thread, enter a namespace and call. go-cni keeps the namespace
// in SetupSerially and loses it in Setup, whose goroutines run on other
// threads.
func TestCompat_11_PluginsRunInTheNamespaceOfTheCallersThread(t *testing.T) {
	h := &host{testhost.New(t)} // locks the thread and enters a namespace
	here := expect.Value(os.Readlink("/proc/thread-self/ns/net"))(t)
	var elsewhere string // as a goroutine on any other thread sees it
	done := make(chan error)
	go func() {
		var err error
		elsewhere, err = os.Readlink("/proc/thread-self/ns/net")
		done <- err
	}()
	expect.NoError(t, <-done)
	expect.Must(t, here != elsewhere, "all threads are in one namespace: this test sees no difference")
	var lists [][]byte
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		lists = append(lists, h.scriptedList(name, "1.1.0", scripted.Script{}, "p-"+name))
	}
	b := h.bothOn(lists...)
	path := h.Container("c")
	ctx := context.Background()
	run := func(name string, wantCalls int, want string, call func() error) {
		t.Helper()
		expect.NoError(t, call())
		calls := h.TakeCalls()
		expect.Same(t, name+" calls", len(calls), wantCalls)
		for _, c := range calls {
			expect.Same(t, name+": "+c.Verb+" of "+c.Type+" ran in", c.NetNo, want)
		}
	}
	discard := func(_ any, err error) error { return err }
	run("Setup", 4, here, func() error { return discard(b.ours.Setup(ctx, "c1", path)) })
	run("Check", 4, here, func() error { return b.ours.Check(ctx, "c1", path) })
	run("Status", 4, here, b.ours.Status)
	run("Remove", 4, here, func() error { return b.ours.Remove(ctx, "c1", path) })
	run("SetupSerially", 4, here, func() error { return discard(b.ours.SetupSerially(ctx, "c2", path)) })
	run("go-cni SetupSerially", 4, here, func() error { return discard(b.theirs.SetupSerially(ctx, "c3", path)) })
	run("go-cni Setup", 4, elsewhere, func() error { return discard(b.theirs.Setup(ctx, "c4", path)) })
}

// TestDuty_R16_AttachmentsThatGoCNIMadeCount, although only libcni's cache has
// them.
func TestDuty_R16_AttachmentsThatGoCNIMadeCount(t *testing.T) {
	testhost.LeavesNothingRunning(t)
	h := &host{testhost.New(t)}
	conf := h.scriptedList("net", "1.0.0", scripted.Script{}, "p")
	const id = "by-go-cni"
	path, ctx := h.Path("netns", "c1"), context.Background()
	ns := expect.Value(netns.Create(path))(t)
	old := expect.Value(gocni.New(gocni.WithPluginDir([]string{h.Path("bin")}), gocni.WithConfListBytes(conf)))(t)
	r := h.Runtime(cni.WithHostNetNS(h.Path("netns", "host")), cni.WithStateDir("/var/lib/cni"), cni.WithConfListBytes(conf))
	t.Cleanup(func() {
		if err := os.RemoveAll("/var/lib/cni"); err != nil { // a tmpfs of the sandbox
			t.Error(err)
		}
	})
	expect.Value(old.Setup(ctx, id, path, gocni.WithArgs("K", "v")))(t)
	h.addLink(ns, "eth0")
	h.TakeCalls()

	expect.Is(t, expect.Err(r.Setup(ctx, id, path)), cni.ErrAlreadyAttached)
	expect.NoError(t, r.Check(ctx, id, path))
	h.wantCalls("CHECK p " + id + "/eth0")

	expect.NoError(t, errors.Join(netns.Remove(path), ns.Close()))
	expect.Value(r.Setup(ctx, id, h.Container("c2")))(t)
	expect.Same(t, "arguments at DEL", h.wantCalls("DEL p "+id+"/eth0", "ADD p "+id+"/eth0").Args, "K=v")
	expect.NoError(t, r.Remove(ctx, id, h.Path("netns", "c2")))
}

// wantCalls compares the calls since the last time, and returns the first.
func (h *host) wantCalls(want ...string) scripted.Call {
	h.T.Helper()
	calls := h.TakeCalls()
	var got []string
	for _, c := range calls {
		got = append(got, fmt.Sprintf("%s %s %s/%s", c.Verb, c.Type, c.ContainerID, c.IfName))
	}
	expect.Must(h.T, fmt.Sprint(got) == fmt.Sprint(want), "calls %q, want %q", got, want)
	return calls[0]
}

// TestCompat_FieldsOfAnotherTypeAreLoadedWhereGoCNILoadsThem: the tests of
// loading use libcni in place of go-cni.
func TestCompat_FieldsOfAnotherTypeAreLoadedWhereGoCNILoadsThem(t *testing.T) {
	refused := 0
	for _, typ := range []string{"own", "bridge", "portmap"} {
		for _, field := range testhost.OddFields() {
			list := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "n1", "plugins": [{"type": %q, %s}]}`, typ, field)
			_, theirs := gocni.New(gocni.WithConfListBytes(list))
			_, ours := cni.New(cni.WithConfListBytes(list))
			expect.That(t, (ours == nil) == (theirs == nil), "%s with %s: ours %v, go-cni %v", typ, field, ours, theirs)
			if theirs != nil {
				refused++
			}
		}
	}
	all := 3 * len(testhost.OddFields())
	expect.That(t, refused != 0 && refused != all, "go-cni refuses %d of %d: this compares too little", refused, all)
}
