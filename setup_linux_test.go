package cni_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/scripted"
)

// bridgeList is a network with everything that leaves something on the host.
func (h *host) bridgeList(name, subnet string) []byte {
	return fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": %q, "plugins": [
		{"type": "bridge", "bridge": "br-%s", "isDefaultGateway": true, "ipMasq": true,
		 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "%s.0/24"}]]}},
		{"type": "firewall"},
		{"type": "portmap", "capabilities": {"portMappings": true}}]}`, name, name, h.path("ipam"), subnet)
}

func TestSetupAndRemoveLeaveNothing(t *testing.T) {
	h := newHost(t)
	r := h.runtime(cni.WithPluginDir([]string{referencePlugins(t)}), cni.WithLoNetwork,
		cni.WithConfListBytes(h.bridgeList("podnet", "10.22.1")))
	path := h.container("c1")
	before := h.audit()
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
	h.wantClean(before)
}

func TestScriptedPluginsRunInOrder(t *testing.T) {
	h := newHost(t)
	script := h.plugin(scripted.Script{}, "first", "second")
	r := h.runtime(cni.WithConfListBytes(conflist("net", "1.0.0", map[string]string{"first": script, "second": script}, "first", "second")))
	path := h.container("c1")
	if _, err := r.Setup(context.Background(), "c1", path); err != nil {
		t.Fatal(err)
	}
	if err := r.Remove(context.Background(), "c1", path); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(verbs(h.calls())), "[ADD first ADD second DEL second DEL first]"; got != want {
		t.Errorf("calls %s, want %s", got, want)
	}
}
