package behaviour_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// loIsUp reports whether a container's loopback interface is up.
func (h *realHost) loIsUp(path string) (up bool) {
	h.T.Helper()
	h.Inside(path, func() error {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			up = lo.Attrs().Flags&net.FlagUp != 0
		}
		return err
	})
	return up
}

// TestFault_F40_ASecondRemoveDoesNotHarmThePathsNewOwner: a path now leads to
// another container's namespace, as a /proc/PID/ns/net can. The previous
// container is removed once more, or cleared before its next Setup. The running
// container keeps its interfaces, however little is known about it.
func TestFault_F40_ASecondRemoveDoesNotHarmThePathsNewOwner(t *testing.T) {
	for name, spoil := range map[string]func(h *realHost){
		"on record":              func(*realHost) {},
		"damaged":                func(h *realHost) { h.SpoilBase("c2", "{") },
		"known to go-cni's only": func(h *realHost) { h.Unrecord("c2") },
	} {
		t.Run(name, func(t *testing.T) {
			h := newRealHost(t)
			c := testhost.Case{Plugins: []string{testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range))}}
			var log testhost.Log
			r := h.Runtime(log.Logger(), cni.WithBuiltinPlugins(), cni.WithLoNetwork, cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
			link := h.Path("path")
			first, second := h.Container("one"), h.Container("two")
			expect.NoError(t, os.Symlink(first, link))
			testhost.MustSetUp(t, r, "c1", link)
			expect.NoError(t, r.Remove(t.Context(), "c1", link))

			expect.NoError(t, os.Remove(link))
			expect.NoError(t, os.Symlink(second, link))
			testhost.MustSetUp(t, r, "c2", link)
			spoil(h)
			before := h.Audit()

			expect.NoError(t, r.Remove(t.Context(), "c1", link))
			h.WantClean(before)
			if warned := strings.Join(log.Lines("WARN"), "\n"); !strings.Contains(warned, "another container's by now") {
				t.Errorf("warnings: %q", warned)
			}
			if !h.loIsUp(second) {
				t.Error("Remove of c1 took down the loopback interface of c2")
			}
			expect.NoError(t, r.Remove(t.Context(), "c2", link))
		})
	}
}

// nerdctl removes before each Setup, with the path of a new namespace.
func TestARemoveBeforeTheFirstSetupGetsThePath(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	path, other := s.Container("c1"), s.Container("c2")
	testhost.MustSetUp(t, r, "c2", other)
	s.TakeCalls()
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.NoError(t, r.Remove(t.Context(), "c1", other))
	var got []string
	for _, c := range s.TakeCalls() {
		got = append(got, fmt.Sprintf("%s %s %s", c.Verb, c.ContainerID, c.NetNS))
	}
	expect.Same(t, "calls", got, []string{"DEL c1 " + path, "DEL c1 "})

	// This reads no record, however many there are.
	testhost.Unread()[syscall.EISDIR](s.Host, s.RecordFile("c2")+".json")
	var log testhost.Log
	expect.NoError(t, s.Runtime(log.Logger(), cni.WithConfListBytes(s.Network("net", "1.0.0", "p"))).Remove(t.Context(), "c1", path))
	expect.Same(t, "warnings", log.Lines("WARN"), []string{})
	expect.Same(t, "CNI_NETNS", s.TakeCalls()[0].NetNS, path)
}

// TestFault_F40_SetupClearsNothingInAnothersNamespace: for go-cni's attachments
// only libcni's cache has a path. Setup clears dead attachments before it
// attaches, and the path may now belong to another container.
func TestFault_F40_SetupClearsNothingInAnothersNamespace(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	link := s.Path("path")
	old, other, path := s.Container("old"), s.Container("c2"), s.Container("c1")
	expect.NoError(t, os.Symlink(old, link))
	testhost.MustSetUp(t, r, "c1", link)
	s.Unrecord("c1")
	expect.NoError(t, os.Remove(link))
	expect.NoError(t, os.Symlink(other, link))
	testhost.MustSetUp(t, r, "c2", other)
	s.TakeCalls()
	testhost.MustSetUp(t, r, "c1", path)
	var got []string
	for _, c := range s.TakeCalls() {
		got = append(got, fmt.Sprintf("%s %s %s", c.Verb, c.ContainerID, c.NetNS))
	}
	expect.Same(t, "calls", got, []string{"DEL c1 ", "ADD c1 " + path})
}
