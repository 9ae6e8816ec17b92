package behaviour_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

func TestSetupAndRemoveLeaveNothing(t *testing.T) {
	h := testhost.New(t)
	r := h.Runtime(cni.WithPluginDir([]string{testhost.ReferencePlugins(t)}), cni.WithLoNetwork,
		cni.WithConfListBytes(h.BridgeList("podnet", "10.22.1")))
	path := h.Container("c1")
	before := h.Audit()
	res, err := r.Setup(context.Background(), "c1", path,
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "TCP"}}))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := res.IPv4().Prefix.String(), "10.22.1.2/24"; got != want {
		t.Errorf("IPv4 %s, want %s", got, want)
	}
	if err := r.Check(context.Background(), "c1", path); err != nil {
		t.Error(err)
	}
	if err := r.Remove(context.Background(), "c1", path); err != nil {
		t.Error(err)
	}
	h.WantClean(before)
}

func TestScriptedPluginsRunInOrder(t *testing.T) {
	h := testhost.New(t)
	script := h.Plugin(scripted.Script{}, "first", "second")
	r := h.Runtime(cni.WithConfListBytes(testhost.Conflist("net", "1.0.0", map[string]string{"first": script, "second": script}, "first", "second")))
	path := h.Container("c1")
	if _, err := r.Setup(context.Background(), "c1", path); err != nil {
		t.Fatal(err)
	}
	if err := r.Remove(context.Background(), "c1", path); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(testhost.Verbs(h.Calls())), "[ADD first ADD second DEL second DEL first]"; got != want {
		t.Errorf("calls %s, want %s", got, want)
	}
}
