package cni_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/netns"
)

// host is a network namespace that stands for a host in one test, with a state
// directory and container namespaces of its own. The test's goroutine is locked
// to a thread inside it, so that plugins run there as they do on a real host.
type host struct {
	t   testing.TB
	dir string
}

// newHost makes a host and enters it. The thread is never unlocked: it ends
// with the test's goroutine.
func newHost(t testing.TB) *host {
	t.Helper()
	h := &host{t: t, dir: t.TempDir()}
	t.Cleanup(h.unpin)
	runtime.LockOSThread()
	ns := h.newNetNS("host")
	if err := unix.Setns(int(ns.File().Fd()), unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	return h
}

// unpin lets go of the namespaces of containers that the test leaves attached,
// so that their directory can be deleted.
func (h *host) unpin() {
	pins, err := filepath.Glob(h.path("state", "embedcni", "attachments", "netns", "*"))
	if err != nil {
		h.t.Error(err)
	}
	for _, pin := range pins {
		if err := netns.Remove(pin); err != nil {
			h.t.Error(err)
		}
	}
}

// recordFile is the path of a container's record, without its extension.
func (h *host) recordFile(id string) string {
	return h.path("state", "embedcni", "attachments", hashed(id))
}

// pin is where a container's namespace is kept.
func (h *host) pin(id string) string {
	return h.path("state", "embedcni", "attachments", "netns", hashed(id))
}

func hashed(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:16])
}

// unrecord makes a container one without a record and a kept namespace, as one
// that go-cni attached.
func (h *host) unrecord(id string) {
	h.t.Helper()
	if err := os.Remove(h.recordFile(id) + ".json"); err != nil {
		h.t.Fatal(err)
	}
	if err := netns.Remove(h.pin(id)); err != nil {
		h.t.Fatal(err)
	}
}

// spoilBase puts content in place of the first line of a container's record, and
// leaves its log.
func (h *host) spoilBase(id, content string) {
	h.t.Helper()
	path := h.recordFile(id) + ".json"
	data, err := os.ReadFile(path)
	wantNil(h.t, err)
	_, log, _ := bytes.Cut(data, []byte("\n"))
	wantNil(h.t, os.WriteFile(path, slices.Concat([]byte(content), []byte("\n"), log), 0o600))
}

func (h *host) newNetNS(name string) *netns.Handle {
	h.t.Helper()
	path := h.path("netns", name)
	ns, err := netns.Create(path)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		if err := netns.Remove(path); err != nil {
			h.t.Error(err)
		}
		if err := ns.Close(); err != nil {
			h.t.Error(err)
		}
	})
	return ns
}

// container makes a container's namespace and returns its path.
func (h *host) container(name string) string {
	h.t.Helper()
	h.newNetNS(name)
	return h.path("netns", name)
}

func (h *host) path(elem ...string) string {
	return filepath.Join(append([]string{h.dir}, elem...)...)
}

func (h *host) write(name, content string) string {
	h.t.Helper()
	path := h.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// runtime is a Runtime on this host; opts may override everything.
func (h *host) runtime(opts ...cni.Opt) *cni.Runtime {
	h.t.Helper()
	base := []cni.Opt{cni.WithStateDir(h.path("state")), cni.WithPluginDir([]string{h.path("bin")}),
		cni.WithPluginConfDir(h.path("net.d"))}
	r, err := cni.New(append(base, opts...)...)
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

// plugin makes scripted plugins of these types, which log their calls and do
// what script says, and returns the path of the script.
func (h *host) plugin(script scripted.Script, types ...string) string {
	h.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := os.MkdirAll(h.path("bin"), 0o755); err != nil {
		h.t.Fatal(err)
	}
	for _, typ := range types {
		if err := os.Symlink(exe, h.path("bin", typ)); err != nil && !os.IsExist(err) {
			h.t.Fatal(err)
		}
	}
	script.Log = h.path("calls")
	path := h.path("script-" + strings.Join(types, "-"))
	if err := script.Save(path); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// calls are the calls that scripted plugins got so far.
func (h *host) calls() []scripted.Call {
	h.t.Helper()
	calls, err := scripted.Calls(h.path("calls"))
	if err != nil {
		h.t.Fatal(err)
	}
	return calls
}

// verbs renders calls as "ADD a", "DEL a": verb and plugin type in order.
func verbs(calls []scripted.Call) []string {
	var s []string
	for _, c := range calls {
		s = append(s, c.Verb+" "+c.Type)
	}
	return s
}

// conflist makes a list of scripted plugins: each of types with its script.
func conflist(name, version string, scripts map[string]string, types ...string) []byte {
	var plugins []map[string]any
	for _, typ := range types {
		plugins = append(plugins, map[string]any{
			"type": typ, "script": scripts[typ],
			"capabilities": map[string]bool{"portMappings": true, "bandwidth": true, "dns": true, "ipRanges": true},
		})
	}
	data, err := json.Marshal(map[string]any{"cniVersion": version, "name": name, "plugins": plugins})
	if err != nil {
		panic(fmt.Sprint("a map of strings always encodes: ", err))
	}
	return data
}

// audit is what exists on this host now.
func (h *host) audit() audit.Lines {
	h.t.Helper()
	lines, err := audit.Snapshot(context.Background(), audit.Options{
		StateDirs: []string{h.path("state"), h.path("ipam")}, NetNSDirs: []string{h.path("netns")},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return lines
}

// since compares with an audit from before. A runtime keeps sockets to the packet
// filters for a moment: its own are waited for, and the end of those of an
// earlier test does not count.
func (h *host) since(before audit.Lines) (added, removed audit.Lines) {
	h.t.Helper()
	added, removed = audit.Diff(before, h.audit())
	for end := time.Now().Add(patience); slices.Contains(added, "fd socket") && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		added, removed = audit.Diff(before, h.audit())
	}
	return added, removed.Without(func(line string) bool { return line == "fd socket" })
}

// wantClean compares with an audit from before: nothing may have come that
// belongs to a container, and nothing may be gone.
func (h *host) wantClean(before audit.Lines) {
	h.t.Helper()
	added, removed := h.since(before)
	added = added.Without(audit.Shared).Without(func(line string) bool {
		return strings.Contains(line, h.path("state", "embedcni")) // locks and marks are the host's
	})
	if len(added)+len(removed) > 0 {
		h.t.Errorf("left behind:\n%s\ngone:\n%s", strings.Join(added, "\n"), strings.Join(removed, "\n"))
	}
}
