package cni_test

import (
	"testing"

	"github.com/embedcni/cni"
)

// TestRealRemoveByExecutablesSweepsOurTable: without a backend in the
// configuration built-in plugins use a table that executables know nothing of,
// and records of earlier versions do not say which of them attached.
func TestRealRemoveByExecutablesSweepsOurTable(t *testing.T) {
	h := newRealHost(t)
	c := realCase{plugins: []string{
		bridgeConf(`"ipMasq": true, ` + hostLocal(v4Range+","+v6Range)),
		`{"type": "portmap", "capabilities": {"portMappings": true}}`}}
	conf := cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam")))
	inside := h.runtime(conf, cni.WithBuiltinPlugins())
	neighbour := h.container("c2")
	_, err := inside.Setup(t.Context(), "c2", neighbour, cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8081, ContainerPort: 80}}))
	wantNil(t, err)
	path := h.container("c1")
	before := h.audit()
	_, err = inside.Setup(t.Context(), "c1", path, onePort)
	wantNil(t, err)
	if left, _ := h.left(before); len(left) == 0 {
		t.Fatal("the audit sees nothing of a container that is attached")
	}
	h.forgetKinds("c1")
	wantNil(t, h.real(conf, cni.WithoutBuiltinPlugins()).Remove(t.Context(), "c1", path))
	h.wantClean(before)
	wantNil(t, inside.Check(t.Context(), "c2", neighbour))
	wantNil(t, inside.Remove(t.Context(), "c2", neighbour))
}
