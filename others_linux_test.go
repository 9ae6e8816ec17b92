package cni_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
)

// loIsUp reports whether a container's loopback interface is set up.
func (h *realHost) loIsUp(path string) (up bool) {
	h.t.Helper()
	h.inside(path, func() error {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			up = lo.Attrs().Flags&net.FlagUp != 0
		}
		return err
	})
	return up
}

// A path came to lead to another container's namespace, as /proc/PID/ns/net does;
// then the container that had it before is removed once more, or cleared before
// its next Setup. However little is known of the one that lives there, it keeps
// its interfaces.
func TestFault_F40_ASecondRemoveHarmsNobodyWhoHasThePathNow(t *testing.T) {
	for name, spoil := range map[string]func(h *realHost){
		"on record":              func(*realHost) {},
		"damaged":                func(h *realHost) { h.spoilBase("c2", "{") },
		"known to go-cni's only": func(h *realHost) { h.unrecord("c2") },
	} {
		t.Run(name, func(t *testing.T) {
			h := newRealHost(t)
			c := realCase{plugins: []string{bridgeConf(`"ipMasq": true, ` + hostLocal(v4Range))}}
			var log logged
			r := h.runtime(log.logger(), cni.WithBuiltinPlugins(), cni.WithLoNetwork, cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam"))))
			link := h.path("path")
			first, second := h.container("one"), h.container("two")
			wantNil(t, os.Symlink(first, link))
			_, err := r.Setup(t.Context(), "c1", link)
			wantNil(t, err)
			wantNil(t, r.Remove(t.Context(), "c1", link))

			wantNil(t, os.Remove(link))
			wantNil(t, os.Symlink(second, link))
			_, err = r.Setup(t.Context(), "c2", link)
			wantNil(t, err)
			spoil(h)
			before := h.audit()

			wantNil(t, r.Remove(t.Context(), "c1", link))
			h.wantClean(before)
			if warned := strings.Join(log.lines("WARN"), "\n"); !strings.Contains(warned, "another container's by now") {
				t.Errorf("warnings: %q", warned)
			}
			if !h.loIsUp(second) {
				t.Error("Remove of c1 took down the loopback interface of c2")
			}
			wantNil(t, r.Remove(t.Context(), "c2", link))
		})
	}
}

// nerdctl removes before each Setup, with the path of a new namespace.
func TestARemoveBeforeTheFirstSetupGetsThePath(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
	path, other := s.container("c1"), s.container("c2")
	_, err := r.Setup(t.Context(), "c2", other)
	wantNil(t, err)
	s.takeCalls()
	wantNil(t, r.Remove(t.Context(), "c1", path))
	wantNil(t, r.Remove(t.Context(), "c1", other))
	var got []string
	for _, c := range s.takeCalls() {
		got = append(got, fmt.Sprintf("%s %s %s", c.Verb, c.ContainerID, c.NetNS))
	}
	wantSame(t, "calls", got, []string{"DEL c1 " + path, "DEL c1 "})

	// No record is read for it, however many there are.
	unread()[syscall.EISDIR](s, s.recordFile("c2")+".json")
	var log logged
	wantNil(t, s.runtime(log.logger(), cni.WithConfListBytes(s.network("net", "1.0.0", "p"))).Remove(t.Context(), "c1", path))
	wantSame(t, "warnings", log.lines("WARN"), []string{})
	wantSame(t, "CNI_NETNS", s.takeCalls()[0].NetNS, path)
}

// What go-cni attached has a path in libcni's cache only. Setup clears what is
// dead before it attaches, and the path can be another container's.
func TestFault_F40_SetupClearsNothingInAnothersNamespace(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
	link := s.path("path")
	old, other, path := s.container("old"), s.container("c2"), s.container("c1")
	wantNil(t, os.Symlink(old, link))
	_, err := r.Setup(t.Context(), "c1", link)
	wantNil(t, err)
	s.unrecord("c1")
	wantNil(t, os.Remove(link))
	wantNil(t, os.Symlink(other, link))
	_, err = r.Setup(t.Context(), "c2", other)
	wantNil(t, err)
	s.takeCalls()
	_, err = r.Setup(t.Context(), "c1", path)
	wantNil(t, err)
	var got []string
	for _, c := range s.takeCalls() {
		got = append(got, fmt.Sprintf("%s %s %s", c.Verb, c.ContainerID, c.NetNS))
	}
	wantSame(t, "calls", got, []string{"DEL c1 ", "ADD c1 " + path})
}
