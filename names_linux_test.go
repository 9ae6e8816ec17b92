package cni_test

import (
	"strings"
	"testing"

	"github.com/embedcni/cni"
)

// A container on one network is removed, whatever else is loaded by then: its ID
// and the other network's name are longer together than libcni's cache takes.
func TestFault_C9_ANameTooLongBesideDoesNotKeepAContainerAttached(t *testing.T) {
	s := newStage(t)
	short, long := s.network("a", "1.0.0", "p"), s.network(strings.Repeat("b", 180), "1.0.0", "q")
	r := s.runtime(cni.WithConfListBytes(short))
	id, path := strings.Repeat("c", 90), s.container("c1")
	_, err := r.Setup(t.Context(), id, path)
	wantNil(t, err)
	wantNil(t, r.Load(cni.WithConfListBytes(short), cni.WithConfListBytes(long)))
	s.took()

	_, err = r.Setup(t.Context(), id, path)
	wantIs(t, err, cni.ErrInvalidArgument)
	wantNil(t, r.Remove(t.Context(), id, path))
	wantSame(t, "calls", s.took(), []string{"DEL p " + id + "/eth0"})
	// And once more without a record.
	wantNil(t, r.Remove(t.Context(), id, path))
	wantSame(t, "calls", s.took(), []string{"DEL p " + id + "/eth0"})
}

// A record of an earlier version can have such a name.
func TestFault_C10_AnInterfaceNameThatTheKernelFillsInIsRefused(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
	path := s.container("c1")
	s.refusedByAll(r, "eth%d", "c1", path, cni.ErrInvalidArgument, cni.WithNetwork("net", cni.WithInterfaceName("eth%d")))
	_, err := cni.New(cni.WithInterfacePrefix("eth%d"))
	wantIs(t, err, cni.ErrInvalidArgument)
	_, err = r.CleanUp(t.Context(), cni.CleanUpTarget{ContainerID: "c1", Network: "net", IfName: "eth%d"})
	wantNil(t, err)
}
