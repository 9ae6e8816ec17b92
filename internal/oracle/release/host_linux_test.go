package release

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocni "github.com/containerd/go-cni"
	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/netns"
)

// patience is for what the kernel does in its own time.
const patience = time.Minute

// stateDir is where libcni's cache is: go-cni has no option for it.
const stateDir = "/var/lib/cni"

// host is a network namespace that stands for a host in one test. The test's
// goroutine is locked to a thread inside it.
type host struct {
	t   *testing.T
	dir string
}

// newHost makes a host, with the reference plugins in bin, and enters it. The
// thread is never unlocked: it ends with the test's goroutine.
func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{t: t, dir: t.TempDir()}
	nettest.Enter(t, nettest.At(t, h.path("netns", "host")))
	expect.NoError(t, nettest.NoAddressDetection())
	h.up("lo")
	expect.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up0"}, PeerName: "up1"}))
	h.up("up0")
	h.up("up1")
	if _, err := os.Lstat(stateDir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%s is there: %v", stateDir, err)
	}
	t.Cleanup(func() {
		pins, err := filepath.Glob(filepath.Join(pinDir, "*"))
		expect.NoError(t, err)
		for _, pin := range pins {
			expect.NoError(t, netns.Remove(pin))
		}
		expect.NoError(t, os.RemoveAll(stateDir))
	})
	return h
}

const pinDir = stateDir + "/embedcni/attachments/netns"

func (h *host) up(name string) {
	h.t.Helper()
	link, err := netlink.LinkByName(name)
	expect.NoError(h.t, err)
	expect.NoError(h.t, netlink.LinkSetUp(link))
}

// install puts the reference plugins in the plugin directory.
func (h *host) install() {
	h.t.Helper()
	dir, err := refplugins.Dir(context.Background(), os.Stderr)
	expect.NoError(h.t, err)
	expect.NoError(h.t, os.Mkdir(h.path("bin"), 0o755))
	for _, name := range refplugins.Names() {
		expect.NoError(h.t, os.Symlink(filepath.Join(dir, name), h.path("bin", name)))
	}
}

func (h *host) path(elem ...string) string {
	return filepath.Join(append([]string{h.dir}, elem...)...)
}

// container is a namespace, and a veth pair that ends with it: the kernel deletes
// the end on the host as soon as nothing keeps the namespace.
type container struct{ id, path, witness string }

func (h *host) container(n int) container {
	h.t.Helper()
	c := container{id: fmt.Sprint("c", n), witness: fmt.Sprint("witness", n)}
	c.path = h.path("netns", c.id)
	ns, err := netns.Create(c.path)
	expect.NoError(h.t, err)
	h.t.Cleanup(func() { expect.NoError(h.t, netns.Remove(c.path)) })
	expect.NoError(h.t, ns.Do(nettest.NoAddressDetection))
	expect.NoError(h.t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: c.witness},
		PeerName: "inside", PeerNamespace: netlink.NsFd(int(ns.File().Fd()))}))
	expect.NoError(h.t, ns.Close())
	return c
}

// end is the end of a container's process: its path is gone.
func (c container) end(t *testing.T) {
	t.Helper()
	expect.NoError(t, netns.Remove(c.path))
}

// alive counts the containers whose namespaces live, when as few do as are
// expected or patience is at its end.
func alive(t *testing.T, all []container, expected int) int {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		n := 0
		for _, c := range all {
			_, err := netlink.LinkByName(c.witness)
			if err == nil {
				n++
			} else if !errors.As(err, new(netlink.LinkNotFoundError)) {
				t.Fatal(err)
			}
		}
		if n <= expected || time.Now().After(end) {
			return n
		}
	}
}

// audit is what exists on the host that belongs to a container: pins too, but not
// what else this library keeps for itself.
func (h *host) audit() audit.Lines {
	h.t.Helper()
	lines, err := audit.Snapshot(h.t.Context(), audit.Options{
		StateDirs: []string{stateDir, h.path("ipam")}, NetNSDirs: []string{pinDir}, WithoutProcess: true,
	})
	expect.NoError(h.t, err)
	return lines.Without(func(l string) bool {
		if strings.HasPrefix(l, "missing ") {
			h.t.Fatalf("the audit is blind: %s", l)
		}
		own := strings.Contains(l, stateDir+"/embedcni/") && !strings.HasPrefix(l, "netns ")
		return own || audit.Shared(l) || strings.Contains(l, "witness")
	})
}

func (h *host) wantClean(before audit.Lines) {
	h.t.Helper()
	if left, gone := audit.Diff(before, h.audit()); len(left)+len(gone) > 0 {
		h.t.Errorf("left behind:\n%s\ngone:\n%s", strings.Join(left, "\n"), strings.Join(gone, "\n"))
	}
}

// theirs is go-cni with the networks, ours this library.
func (h *host) theirs(lists ...string) gocni.CNI {
	h.t.Helper()
	opts := []gocni.Opt{gocni.WithPluginDir([]string{h.path("bin")}), gocni.WithLoNetwork}
	for _, l := range lists {
		opts = append(opts, gocni.WithConfListBytes([]byte(h.list(l))))
	}
	c, err := gocni.New(opts...)
	expect.NoError(h.t, err)
	return c
}

func (h *host) ours(lists []string, more ...cni.Opt) *cni.Runtime {
	h.t.Helper()
	opts := append([]cni.Opt{cni.WithPluginDir([]string{h.path("bin")}), cni.WithLoNetwork}, more...)
	for _, l := range lists {
		opts = append(opts, cni.WithConfListBytes([]byte(h.list(l))))
	}
	r, err := cni.New(opts...)
	expect.NoError(h.t, err)
	return r
}

// list is a network with the host's directory for addresses.
func (h *host) list(text string) string { return strings.ReplaceAll(text, "IPAM", h.path("ipam")) }
