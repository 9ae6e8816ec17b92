package behaviour_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// byLibcni attaches a container as a program does that uses libcni directly, in the state
// directory of the library. It returns the function that detaches it.
func (h *realHost) byLibcni(id, path string, port int) (detach func()) {
	h.T.Helper()
	list, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "theirs", "plugins": [
		{"type": "bridge", "bridge": "br-theirs", "isGateway": true, "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.9.0.0/24"}]]}},
		{"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}}]}`, h.Path("ipam")))
	expect.NoError(h.T, err)
	c := libcni.NewCNIConfigWithCacheDir([]string{testhost.ReferencePlugins(h.T)}, h.Path("state"), nil)
	rt := &libcni.RuntimeConf{ContainerID: id, NetNS: path, IfName: "eth0", CapabilityArgs: map[string]any{
		"portMappings": []map[string]any{{"hostPort": port, "containerPort": 80, "protocol": "tcp"}},
	}}
	_, err = c.AddNetworkList(h.T.Context(), list, rt)
	expect.NoError(h.T, err)
	return func() { expect.NoError(h.T, c.DelNetworkList(h.T.Context(), list, rt)) }
}

// TestAContainerOfAnotherProgramHasAPort: it is only in libcni's cache. While it lives, its
// port is refused. Then its rules may still forward it, of which Setup warns.
func TestAContainerOfAnotherProgramHasAPort(t *testing.T) {
	for _, b := range portBackends()[:2] {
		t.Run(b.name, func(t *testing.T) {
			h := newRealHost(t)
			theirs := h.Mortal("theirs")
			detach := h.byLibcni("theirs", theirs, 8080)
			opts := []cni.Opt{h.portNetwork("net", "1", b), cni.WithBuiltinPlugins()}
			r, strict := h.forwarding(b, opts...), h.forwarding(b, append(opts, cni.WithStrictPorts())...)
			path := h.Container("c1")
			for _, r := range []*cni.Runtime{r, strict} {
				_, err := r.Setup(t.Context(), "c1", path, web())
				var e *cni.PortError
				if !errors.Is(err, cni.ErrPortInUse) || !errors.As(err, &e) || e.ContainerID != "theirs" || e.Network != "theirs" || e.IfName != "eth0" {
					t.Errorf("beside a living container: %v", err)
				}
			}
			_, err := r.Setup(t.Context(), "c1", path, mapped(mapping("tcp", "", 8081)))
			expect.NoError(t, err)
			expect.NoError(t, r.Remove(t.Context(), "c1", path))

			expect.NoError(t, netns.Remove(theirs))
			_, err = strict.Setup(t.Context(), "c1", path, web())
			expect.Is(t, err, cni.ErrPortInUse)
			result, err := r.Setup(t.Context(), "c1", path, web())
			expect.NoError(t, err)
			if len(result.PortWarnings) != 1 || result.PortWarnings[0].ContainerID != "theirs" {
				t.Errorf("beside a dead container: warnings %v", result.PortWarnings)
			}
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
			detach()
			_, err = strict.Setup(t.Context(), "c1", path, web())
			expect.NoError(t, err)
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
		})
	}
}

// TestOwnContainersInTheCacheAreNotAnothers: libcni's cache has them too, also under the ID
// of a pool of an earlier version.
func TestOwnContainersInTheCacheAreNotAnothers(t *testing.T) {
	h := newRealHost(t)
	b := portBackends()[0]
	r := h.forwarding(b, h.portNetwork("net", "1", b), cni.WithBuiltinPlugins())
	for id, attach := range map[string]func() error{
		"c1": testhost.SetUp(t.Context(), r, "c1", h.Container("c1"), web()),
		"c2": func() error { pooled(h.Host, r, "warm-2", "c2", web()); return nil },
	} {
		expect.NoError(t, attach())
		_, err := r.Setup(t.Context(), "c3", h.Container("at-"+id), web())
		var e *cni.PortError
		if !errors.As(err, &e) || e.ContainerID != id || e.Owner == "" {
			t.Errorf("beside %s: %v", id, err)
		}
		expect.NoError(t, r.Remove(t.Context(), id, ""))
	}
}
