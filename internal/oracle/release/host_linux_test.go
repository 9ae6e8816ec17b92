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
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// stateDir is the directory of libcni's cache, which no option of go-cni
// changes.
const stateDir = "/var/lib/cni"

// host is a host for the reference plugins, with go-cni's state directory.
type host struct{ *testhost.RealHost }

// newHost makes a host with an uplink, and enters it.
func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{testhost.NewReal(t)}
	testhost.Uplink(h.RealHost)
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

// install puts the reference plugins into the plugin directory.
func (h *host) install() {
	h.T.Helper()
	dir, err := refplugins.Dir(context.Background(), os.Stderr)
	expect.NoError(h.T, err)
	expect.NoError(h.T, os.Mkdir(h.Path("bin"), 0o755))
	for _, name := range refplugins.Names() {
		expect.NoError(h.T, os.Symlink(filepath.Join(dir, name), h.Path("bin", name)))
	}
}

// container is a namespace with a veth pair that ends with it. The kernel
// deletes the host's end as soon as nothing keeps the namespace.
type container struct{ id, path, witness string }

func (h *host) container(n int) container {
	h.T.Helper()
	c := container{id: fmt.Sprint("c", n), witness: fmt.Sprint("witness", n)}
	c.path = h.Mortal(c.id)
	ns, err := netns.Open(c.path)
	expect.NoError(h.T, err)
	expect.NoError(h.T, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: c.witness},
		PeerName: "inside", PeerNamespace: netlink.NsFd(int(ns.File().Fd()))}))
	expect.NoError(h.T, ns.Close())
	return c
}

// end ends a container's process: its path is gone.
func (c container) end(t testing.TB) {
	t.Helper()
	expect.NoError(t, netns.Remove(c.path))
}

// alive counts the containers whose namespaces live. It waits until no more
// than the expected number do.
func alive(t *testing.T, all []container, expected int) int {
	t.Helper()
	for end := time.Now().Add(expect.Patience); ; time.Sleep(10 * time.Millisecond) {
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

// audit lists the parts of the host that belong to containers, with pins but
// without this library's other state.
func (h *host) audit() audit.Lines {
	h.T.Helper()
	lines, err := audit.Snapshot(h.T.Context(), audit.Options{
		StateDirs: []string{stateDir, h.Path("ipam")}, NetNSDirs: []string{pinDir}, WithoutProcess: true,
	})
	expect.NoError(h.T, err)
	return lines.Without(func(l string) bool {
		if strings.HasPrefix(l, "missing ") {
			h.T.Fatalf("the audit is blind: %s", l)
		}
		own := strings.Contains(l, stateDir+"/embedcni/") && !strings.HasPrefix(l, "netns ")
		return own || audit.Shared(l) || strings.Contains(l, "witness")
	})
}

func (h *host) wantClean(before audit.Lines) {
	h.T.Helper()
	if left, gone := audit.Diff(before, h.audit()); len(left)+len(gone) > 0 {
		h.T.Errorf("left behind:\n%s\ngone:\n%s", strings.Join(left, "\n"), strings.Join(gone, "\n"))
	}
}

// theirs returns go-cni with the networks, and ours this library.
func (h *host) theirs(lists ...string) gocni.CNI {
	h.T.Helper()
	opts := []gocni.Opt{gocni.WithPluginDir([]string{h.Path("bin")}), gocni.WithLoNetwork}
	for _, l := range lists {
		opts = append(opts, gocni.WithConfListBytes([]byte(h.list(l))))
	}
	c, err := gocni.New(opts...)
	expect.NoError(h.T, err)
	return c
}

func (h *host) ours(lists []string, more ...cni.Opt) *cni.Runtime {
	h.T.Helper()
	opts := append([]cni.Opt{cni.WithPluginDir([]string{h.Path("bin")}), cni.WithLoNetwork}, more...)
	for _, l := range lists {
		opts = append(opts, cni.WithConfListBytes([]byte(h.list(l))))
	}
	r, err := cni.New(opts...)
	expect.NoError(h.T, err)
	return r
}

// list returns a network with the host's address directory.
func (h *host) list(text string) string { return strings.ReplaceAll(text, "IPAM", h.Path("ipam")) }
