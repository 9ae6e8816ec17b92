package behaviour_test

import (
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// TestRealRemoveByExecutablesSweepsOurTable: if the configuration names no
// backend, built-in plugins use a table that executables do not know. Records
// of earlier versions do not name the kind that attached.
func TestRealRemoveByExecutablesSweepsOurTable(t *testing.T) {
	h := newRealHost(t)
	c := testhost.Case{Plugins: []string{
		testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range+","+testhost.V6Range)),
		`{"type": "portmap", "capabilities": {"portMappings": true}}`}}
	conf := cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam")))
	inside := h.Runtime(conf, cni.WithBuiltinPlugins())
	neighbour := h.Container("c2")
	_, err := inside.Setup(t.Context(), "c2", neighbour, cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8081, ContainerPort: 80}}))
	expect.NoError(t, err)
	path := h.Container("c1")
	before := h.Audit()
	_, err = inside.Setup(t.Context(), "c1", path, onePort)
	expect.NoError(t, err)
	if left, _ := h.Left(before); len(left) == 0 {
		t.Fatal("the audit sees nothing of a container that is attached")
	}
	h.ForgetKinds("c1")
	expect.NoError(t, h.Real(conf, cni.WithoutBuiltinPlugins()).Remove(t.Context(), "c1", path))
	h.WantClean(before)
	expect.NoError(t, inside.Check(t.Context(), "c2", neighbour))
	expect.NoError(t, inside.Remove(t.Context(), "c2", neighbour))
}
