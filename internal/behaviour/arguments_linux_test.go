package behaviour_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// verbsOf returns all verbs for a container.
func verbsOf(r *cni.Runtime, id, path string, opts ...cni.NamespaceOpts) map[string]func() error {
	ctx := context.Background()
	return map[string]func() error{
		"Setup":         func() error { _, err := r.Setup(ctx, id, path, opts...); return err },
		"SetupSerially": func() error { _, err := r.SetupSerially(ctx, id, path, opts...); return err },
		"Remove":        func() error { return r.Remove(ctx, id, path, opts...) },
		"Check":         func() error { return r.Check(ctx, id, path, opts...) },
	}
}

// wantRefused checks that every verb fails with this sentinel and no plugin
// runs.
func wantRefused(h *testhost.Host, r *cni.Runtime, what, id, path string, sentinel error, opts ...cni.NamespaceOpts) {
	h.T.Helper()
	for verb, call := range verbsOf(r, id, path, opts...) {
		if err := call(); !errors.Is(err, sentinel) {
			h.T.Errorf("%s, %s: %v, want %v", what, verb, err, sentinel)
		}
		if calls := h.TakeCalls(); len(calls) > 0 {
			h.T.Errorf("%s, %s: plugins ran: %v", what, verb, testhost.Verbs(calls))
		}
	}
}

// wantNeverAttached: no Setup accepts these names, so Remove finds nothing to
// do.
func wantNeverAttached(h *testhost.Host, r *cni.Runtime, what, id, path string) {
	h.T.Helper()
	for verb, call := range verbsOf(r, id, path) {
		if err := call(); verb == "Remove" && err != nil || verb != "Remove" && !errors.Is(err, cni.ErrInvalidArgument) {
			h.T.Errorf("%s, %s: %v", what, verb, err)
		}
		if calls := h.TakeCalls(); len(calls) > 0 {
			h.T.Errorf("%s, %s: plugins ran: %v", what, verb, testhost.Verbs(calls))
		}
	}
}

// TestDuty_R3_ContainerID: every verb checks it before any plugin runs.
func TestDuty_R3_ContainerID(t *testing.T) {
	h := testhost.New(t)
	r := h.Runtime(cni.WithConfListBytes(h.ScriptedList("net", "1.0.0", scripted.Script{}, "x")))
	path := h.Container("c")
	for _, id := range []string{
		"", ".", "..", "-a", "_a", ".a", "a/b", "../x", "/../../x", "a b", "a\x00", "a\n", "ä", "a;b", "a=b", "a:b",
		strings.Repeat("i", 300), strings.Repeat("i", 256),
	} {
		wantRefused(h, r, id, id, path, cni.ErrInvalidArgument)
	}
	// With net and eth0 this makes a file name of 256 bytes.
	wantNeverAttached(h, r, "long ID", strings.Repeat("i", 247), path)
	for _, id := range []string{"a", "0", "A.b_c-d", strings.Repeat("i", 246)} {
		calls := verbsOf(r, id, path)
		for _, verb := range []string{"Setup", "Check", "Remove"} {
			if err := calls[verb](); err != nil {
				t.Errorf("%q, %s: %v", id, verb, err)
			}
		}
	}
}

// TestDuty_R4_InterfaceName: every verb checks it. The prefix is checked when
// it is set.
func TestDuty_R4_InterfaceName(t *testing.T) {
	h := testhost.New(t)
	r := h.Runtime(cni.WithConfListBytes(h.ScriptedList("net", "1.0.0", scripted.Script{}, "x")))
	path := h.Container("c")
	bad := []string{".", "..", "a/b", "a:b", "a b", "a\tb", "a\u00a0b", strings.Repeat("i", 16)}
	for _, name := range bad {
		wantRefused(h, r, name, "c1", path, cni.ErrInvalidArgument, cni.WithNetwork("net", cni.WithInterfaceName(name)))
	}
	for _, name := range []string{"a", "net-1.100", strings.Repeat("i", 15)} {
		for verb, call := range map[string]func() error{
			"Setup":  verbsOf(r, "c1", path, cni.WithNetwork("net", cni.WithInterfaceName(name)))["SetupSerially"],
			"Remove": verbsOf(r, "c1", path, cni.WithNetwork("net", cni.WithInterfaceName(name)))["Remove"],
		} {
			if err := call(); err != nil {
				t.Errorf("%q, %s: %v", name, verb, err)
			}
		}
	}
	for _, prefix := range []string{"a/", "a:", "a b", " ", strings.Repeat("i", 15)} {
		if _, err := cni.New(cni.WithInterfacePrefix(prefix)); !errors.Is(err, cni.ErrInvalidArgument) {
			t.Errorf("prefix %q: %v, want ErrInvalidArgument", prefix, err)
		}
	}
	for _, prefix := range []string{"", ".", "wlan", strings.Repeat("i", 14)} {
		if _, err := cni.New(cni.WithInterfacePrefix(prefix)); err != nil {
			t.Errorf("prefix %q: %v", prefix, err)
		}
	}
	// The prefix fits, the prefix with the network's number does not.
	long := h.Runtime(cni.WithInterfacePrefix(strings.Repeat("i", 14)),
		cni.WithConfIndex([]byte(`{"cniVersion": "1.0.0", "name": "net", "type": "x"}`), 10))
	h.TakeCalls()
	wantNeverAttached(h, long, "number", "c2", path)
}

// TestDuty_R15_ArgumentsThatCNIArgsCannotCarry are refused, in every place that
// accepts arguments. A value with a semicolon would set another argument.
func TestDuty_R15_ArgumentsThatCNIArgsCannotCarry(t *testing.T) {
	h := testhost.New(t)
	r := h.Runtime(cni.WithConfListBytes(h.ScriptedList("net", "1.0.0", scripted.Script{}, "x")))
	path := h.Container("c")
	for _, arg := range [][2]string{
		{"LABEL", "x;IP=10.0.0.9"}, {"LABEL", "a=b"}, {"LABEL", "a\nb"}, {"LABEL", "a\rb"}, {"LABEL", "a\x00b"},
		{"A;IP", "1"}, {"A=IP", "1"}, {"A\n", "1"}, {"", "1"},
	} {
		wantRefused(h, r, arg[0]+"="+arg[1], "c1", path, cni.ErrInvalidArgument, cni.WithArgs(arg[0], arg[1]))
		wantRefused(h, r, "label", "c1", path, cni.ErrInvalidArgument, cni.WithLabels(map[string]string{arg[0]: arg[1]}))
		wantRefused(h, r, "network", "c1", path, cni.ErrInvalidArgument, cni.WithNetwork("net", cni.WithArgs(arg[0], arg[1])))
	}
}

// TestDuty_R15_ArgumentsAreInOrder: equal calls pass equal arguments to
// plugins.
func TestDuty_R15_ArgumentsAreInOrder(t *testing.T) {
	h := testhost.New(t)
	r := h.Runtime(cni.WithConfListBytes(h.ScriptedList("net", "1.0.0", scripted.Script{}, "x")))
	path := h.Container("c")
	opts := []cni.NamespaceOpts{
		cni.WithLabels(map[string]string{"K8S_POD_NAME": "pod.name-1", "B": "2", "Z": "26", "EMPTY": ""}), cni.WithArgs("A", "first"),
		cni.WithNetwork("net", cni.WithArgs("B", "the network's own")), cni.WithArgs("A", "last, with spaces: ü"),
	}
	for range 5 {
		for _, verb := range []string{"Setup", "Check", "Remove"} {
			if err := verbsOf(r, "c1", path, opts...)[verb](); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, call := range h.TakeCalls() {
		if want := "A=last, with spaces: ü;B=the network's own;EMPTY=;K8S_POD_NAME=pod.name-1;Z=26"; call.Args != want {
			t.Errorf("%s: CNI_ARGS %q, want %q", call.Verb, call.Args, want)
		}
	}
}

// TestOptionsOutOfPlace: an interface name needs a network, and a network
// option must not contain another one.
func TestOptionsOutOfPlace(t *testing.T) {
	h := testhost.New(t)
	r := h.Runtime(cni.WithConfListBytes(h.ScriptedList("net", "1.0.0", scripted.Script{}, "x")))
	path := h.Container("c")
	for what, opt := range map[string]cni.NamespaceOpts{
		"interface name outside":   cni.WithInterfaceName("eth5"),
		"network inside a network": cni.WithNetwork("net", cni.WithNetwork("net")),
	} {
		wantRefused(h, r, what, "c1", path, cni.ErrInvalidArgument, opt)
	}
	wantRefused(h, r, "unknown network", "c1", path, cni.ErrNotFound, cni.WithNetwork("other"))
	wantRefused(h, r, "one interface twice", "c1", path, cni.ErrInvalidArgument, cni.WithNetwork("net"), cni.WithNetwork("net"))
}

// TestSentinelsThroughSetup checks the sentinels behind the errors of Setup and
// Check, and the Error that locates them.
func TestSentinelsThroughSetup(t *testing.T) {
	h := testhost.New(t)
	path, ctx := h.Container("c"), context.Background()
	insecure := h.ScriptedList("insecure", "1.0.0", scripted.Script{}, "insecure")
	setup := func(list []byte, opts ...cni.Opt) error {
		_, err := h.Runtime(append(opts, cni.WithConfListBytes(list))...).Setup(ctx, "c1", path)
		return err
	}
	tests := map[string]struct {
		err    error
		want   error
		plugin string
	}{
		"plugin not found": {setup(testhost.Conflist("net", "1.0.0", nil, "missing")), cni.ErrPluginNotFound, "missing"},
		"too much output":  {setup(h.ScriptedList("net", "1.0.0", scripted.Script{Verbs: map[string]scripted.Action{"ADD": {StdoutBytes: 64 << 20}}}, "flood")), cni.ErrPluginOutput, "flood"},
		"no result":        {setup(h.ScriptedList("net", "1.0.0", testhost.Answering("ADD", "hello", 0), "hello")), cni.ErrInvalidResult, "hello"},
		"never set up":     {h.Runtime(cni.WithConfListBytes(insecure)).Check(ctx, "c1", path), cni.ErrNotAttached, ""},
	}
	if err := os.Chmod(h.Path("bin"), 0o777); err != nil {
		t.Fatal(err)
	}
	tests["plugin writable by all"] = struct {
		err    error
		want   error
		plugin string
	}{setup(insecure), cni.ErrInsecureFile, "insecure"}
	if err := setup(insecure, cni.WithInsecureFiles()); err != nil {
		t.Errorf("insecure plugin, though allowed: %v", err)
	}
	for name, test := range tests {
		var e *cni.Error
		if !errors.Is(test.err, test.want) || !errors.As(test.err, &e) || e.ContainerID != "c1" || e.IfName != "eth0" || e.Plugin != test.plugin {
			t.Errorf("%s: %v (%#v), want %v", name, test.err, e, test.want)
		}
	}
}

// TestFault_F24_WorldWritableConfigurationThroughLoad: refused by name, skipped
// in a directory, and unchanged if it is loaded already.
func TestFault_F24_WorldWritableConfigurationThroughLoad(t *testing.T) {
	dir := testhost.ConfDir(t, map[string]string{"10-a.conflist": testhost.ListOf("a"), "20-b.conflist": testhost.ListOf("b")})
	file := filepath.Join(dir, "10-a.conflist")
	chmod := func(mode os.FileMode) {
		t.Helper()
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
	}
	chmod(0o666)
	if _, err := cni.New(cni.WithConfListFile(file)); !errors.Is(err, cni.ErrInsecureFile) || !strings.Contains(err.Error(), file) {
		t.Errorf("by file: %v, want ErrInsecureFile", err)
	}
	if r := expect.Value(cni.New(cni.WithInsecureFiles(), cni.WithConfListFile(file)))(t); loaded(r) != "a=eth0" {
		t.Errorf("allowed: loaded %s", loaded(r))
	}
	r := expect.Value(cni.New(cni.WithPluginConfDir(dir), cni.WithAllConf))(t)
	if skipped := r.GetConfig().Skipped; loaded(r) != "b=eth0" || len(skipped) != 1 || skipped[0].Path != file {
		t.Errorf("in a directory: loaded %s, skipped %+v", loaded(r), skipped)
	}
	chmod(0o644)
	if err := r.Load(cni.WithAllConf); err != nil || loaded(r) != "a=eth0 b=eth1" {
		t.Errorf("mended: %v, loaded %s", err, loaded(r))
	}
	chmod(0o646)
	if err := r.Load(cni.WithAllConf); !errors.Is(err, cni.ErrInsecureFile) || loaded(r) != "a=eth0 b=eth1" {
		t.Errorf("while it is loaded: %v, loaded %s; want ErrInsecureFile and the previous networks", err, loaded(r))
	}
}
