package cnitest

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/netns"
)

// TestHost is a network namespace that plays the host in one test, with directories of
// its own. See Host.
type TestHost struct {
	Dir       string // everything below is the host's
	StateDir  string
	ConfDir   string
	PluginDir string // has the reference plugins, or those of Plugin, or nothing
	NetNS     string // the path of the namespace

	t         testing.TB
	reference bool
	unaudited bool
	audited   []string // directories that the audit lists besides StateDir
}

// HostOption is an option of Host.
type HostOption func(*TestHost)

// WithReferencePlugins gives the host the reference plugins as executables, in place of
// the built-in plugins. Main must have been called with [BuildReferencePlugins].
func WithReferencePlugins() HostOption { return func(h *TestHost) { h.reference = true } }

// AuditOnly has the host list only these directories and its own for leaks. By default it
// also lists /var/lib/cni, where host-local keeps addresses unless its configuration has a
// dataDir. Tests that run in parallel share that directory; give each a dataDir in the
// Dir of its host, and this option.
func AuditOnly(dirs ...string) HostOption { return func(h *TestHost) { h.audited = dirs } }

// WithoutAudit has the host list nothing, so that it needs neither iptables nor nft.
func WithoutAudit() HostOption { return func(h *TestHost) { h.unaudited = true } }

// Host makes a host for a test. At the end of the test it must be as it was: otherwise
// the test fails, with a line for each thing that is left; see Audit. Objects that stay
// after the first container, such as bridges, do not count. Host waits some seconds for
// things that are still being removed: a Runtime in the background may remove a container
// that the test forgets, and cni.WithoutReaping keeps it from that.
//
// The test need not run in the host's namespace: the runtimes of Runtime and Options run
// their plugins there from any goroutine. Duplicate address detection is off in it, for
// which plugins would wait.
//
// Host ends the test unless it runs in the namespaces of Main.
func Host(t testing.TB, opts ...HostOption) *TestHost {
	t.Helper()
	mustBeInside(t)
	dir := t.TempDir()
	h := &TestHost{
		Dir: dir, StateDir: filepath.Join(dir, "state"), ConfDir: filepath.Join(dir, "net.d"), PluginDir: filepath.Join(dir, "bin"),
		NetNS: filepath.Join(dir, "host"), t: t, audited: []string{"/var/lib/cni"},
	}
	for _, set := range opts {
		set(h)
	}
	if h.reference {
		plugins, err := refplugins.Dir(context.Background(), os.Stderr)
		if err != nil {
			t.Fatalf("%v; BuildReferencePlugins is the option of Main that builds them", err)
		}
		h.PluginDir = plugins
	} else {
		expect.NoError(t, os.Mkdir(h.PluginDir, 0o755))
	}
	expect.NoError(t, os.Mkdir(h.ConfDir, 0o755))
	newNetNS(t, h.NetNS, true)
	// Unmount the namespaces of containers that the test leaves attached, so that the directory
	// can be deleted.
	t.Cleanup(func() { expect.NoError(t, unmountBelow(h.StateDir)) })
	if !h.unaudited {
		before := h.Audit()
		t.Cleanup(func() { h.wantUnchanged(before) })
	}
	return h
}

// Container makes a network namespace for a container, which lives until the test ends
// or netns.Remove removes it. It returns the path.
func Container(t testing.TB) (path string) {
	t.Helper()
	mustBeInside(t)
	path = filepath.Join(t.TempDir(), "netns")
	newNetNS(t, path, false)
	return path
}

// mustBeInside ends the test on a machine's own network.
func mustBeInside(t testing.TB) {
	t.Helper()
	if sandbox.Inside() {
		return
	}
	if why, ok := os.LookupEnv(skipVariable); ok {
		t.Skip("there are no hosts here: " + why)
	}
	t.Fatal("this would change the machine: let TestMain call cnitest.Main")
}

// newNetNS makes a namespace that is removed when the test ends.
func newNetNS(t testing.TB, path string, lo bool) {
	t.Helper()
	ns := expect.Value(netns.Create(path))(t)
	t.Cleanup(func() { expect.NoError(t, netns.Remove(path)) })
	// Without an open handle, Remove ends the namespace.
	expect.NoError(t, prepareNetNS(ns, lo), ns.Close())
}

// Options are the options for cni.New of a program on this host.
func (h *TestHost) Options() []cni.Opt {
	opts := []cni.Opt{
		cni.WithStateDir(h.StateDir), cni.WithPluginConfDir(h.ConfDir),
		cni.WithPluginDir([]string{h.PluginDir}), cni.WithHostNetNS(h.NetNS),
	}
	if !h.reference {
		opts = append(opts, cni.WithBuiltinFallback())
	}
	return opts
}

// Runtime returns a Runtime on this host. Its options follow those of Options.
func (h *TestHost) Runtime(opts ...cni.Opt) *cni.Runtime {
	h.t.Helper()
	return expect.Value(cni.New(append(h.Options(), opts...)...))(h.t)
}

// WriteConf writes a file of the configuration directory, at once: nobody reads a part of it.
func (h *TestHost) WriteConf(name, conf string) {
	h.t.Helper()
	path := filepath.Join(h.ConfDir, name)
	expect.NoError(h.t, os.WriteFile(path+".new", []byte(conf), 0o644), os.Rename(path+".new", path))
}

// Do runs fn in the host's namespace, on a thread of its own, as netns.Do does.
func (h *TestHost) Do(fn func() error) error { return netns.Do(h.NetNS, fn) }

// Audit lists the state of the host, as the function Audit does. It ends the test if that
// cannot see everything.
func (h *TestHost) Audit() []string {
	h.t.Helper()
	var lines []string
	expect.NoError(h.t, h.Do(func() (err error) {
		lines, err = Audit(context.Background(), Options{
			StateDirs: append([]string{h.StateDir}, h.audited...), NetNSDirs: []string{},
		})
		return err
	}))
	for _, line := range lines {
		if tool, blind := strings.CutPrefix(line, "missing "); blind {
			h.t.Fatalf("the audit is blind without %s: install iptables and nftables, or use WithoutAudit", tool)
		}
	}
	return h.own(lines)
}

// own omits mounts elsewhere: tests in parallel make others.
func (h *TestHost) own(lines []string) (own []string) {
	for _, line := range lines {
		if what, path := splitFile(line); what == "mount" && !strings.HasPrefix(path, h.StateDir+"/") {
			continue
		}
		own = append(own, line)
	}
	return own
}

// patience limits the wait for things that the kernel, or a Runtime in the background,
// is still removing.
const patience = 5 * time.Second

func (h *TestHost) wantUnchanged(before []string) {
	h.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	leak := Diff(before, h.Audit())
	for end := time.Now().Add(patience); leak != "" && time.Now().Before(end); leak = Diff(before, h.Audit()) {
		<-tick.C
	}
	if leak != "" {
		h.t.Errorf("the test has left on its host (+) or removed from it (-):\n%s", leak)
	}
}

// Script has the answers of a plugin, by verb: ADD, DEL, CHECK, STATUS, GC.
type Script map[string]Answer

// Answer scripts the calls of one verb. The fields take effect in their order.
type Answer struct {
	Stderr string
	Result string       // JSON to print in place of its own result
	Err    *types.Error // the error to fail with
	Hang   bool         // until it is killed
	Killed bool         // it kills itself
}

// PluginCall is a call of a plugin.
type PluginCall struct {
	Verb, Type, ContainerID, NetNS, IfName, Args string

	Stdin json.RawMessage // the configuration with the request
}
