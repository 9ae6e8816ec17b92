package backend_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/thick/backend"
	"github.com/embedcni/cni/thick/multinet"
	"github.com/embedcni/cni/thick/server"
)

// pod attaches a container to a bridge that is the default gateway, and to the networks of
// an annotation: bridges whose names are their networks'.
func pod(t *testing.T, h *testhost.RealHost, annotation string) (*backend.Backend, *server.Request, error) {
	t.Helper()
	return podBeside(t, h, annotation, "")
}

// podBeside is pod with another default network, unless that is empty.
func podBeside(t *testing.T, h *testhost.RealHost, annotation, cluster string) (*backend.Backend, *server.Request, error) {
	t.Helper()
	bridge := func(name, subnet, more string) string {
		return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [{"type": "bridge", "bridge": %[1]q, %s, "capabilities": {"ips": true, "mac": true},
			"ipam": {"type": "host-local", "dataDir": %q, "subnet": %q, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.0.2.0/24"}]}}]}`,
			name, more, h.Path("ipam"), subnet)
	}
	subnets := map[string]string{"blue": "10.91.0.0/24", "green": "10.92.0.0/24"}
	b := backend.New(h.Runtime(cni.WithBuiltinPlugins()), backend.Options{
		Networks: func(context.Context, *server.Request) (string, error) { return annotation, nil },
		Lookup: func(_ context.Context, _ *server.Request, s multinet.Selection) (multinet.Definition, error) {
			return multinet.Definition{Config: []byte(bridge(s.Name, subnets[s.Name], `"isGateway": true`))}, nil
		},
	})
	cluster = cmp.Or(cluster, bridge("red", "10.90.0.0/24", `"isDefaultGateway": true`))
	config := `{"cniVersion": "1.0.0", "name": "node", "type": "shim", "delegates": [` + cluster + `]}`
	r := &server.Request{
		ContainerID: "c1", NetNS: h.Container("c1"), IfName: "eth0", Config: json.RawMessage(config), Network: "node", CNIVersion: "1.0.0",
		Pod: server.Pod{Namespace: "shop", Name: "web"},
	}
	_, err := b.Add(t.Context(), r)
	return b, r, err
}

// defaults are the default routes of a namespace.
func defaults(h *testhost.RealHost, path string) (all []string) {
	h.T.Helper()
	h.Inside(path, func() error {
		routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
		for _, r := range routes {
			if r.Dst == nil || r.Dst.IP.IsUnspecified() {
				l, err := netlink.LinkByIndex(r.LinkIndex)
				if err != nil {
					return err
				}
				all = append(all, fmt.Sprint(l.Attrs().Name, " ", r.Gw))
			}
		}
		return err
	})
	slices.Sort(all)
	return all
}

// TestRealPodWithThreeNetworks has the default route where its annotation wants it, and
// CHECK and Repair agree with it.
func TestRealPodWithThreeNetworks(t *testing.T) {
	h := testhost.NewReal(t)
	before := h.Audit()
	b, r, err := pod(t, h, `[{"name": "blue", "default-route": ["10.91.0.1"], "ips": ["10.91.0.77/24"], "mac": "02:00:00:00:00:77"}, {"name": "green", "interface": "third"}]`)
	expect.NoError(t, err)
	expect.Same(t, "default routes", defaults(h, r.NetNS), []string{"net1 10.91.0.1"})
	h.Inside(r.NetNS, func() error {
		for _, name := range []string{"eth0", "net1", "third"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if name == "net1" {
				expect.Same(t, "MAC", l.Attrs().HardwareAddr.String(), "02:00:00:00:00:77")
			}
		}
		return nil
	})
	h.Serve(r.NetNS, 80)
	h.WantAnswers(testhost.Both("", testhost.HostPort("10.91.0.77", 80), "10.91.0.1"))
	expect.NoError(t, b.Check(t.Context(), r))
	later := h.Runtime(cni.WithBuiltinPlugins())
	report := expect.Value(later.Repair(t.Context(), "c1", cni.RepairOptions{}))(t)
	expect.NoError(t, report.Err())
	expect.NoError(t, backend.New(later, backend.Options{}).Del(t.Context(), r))
	left, _ := h.Left(before)
	left = slices.DeleteFunc(left, func(line string) bool {
		return strings.Contains(line, "red") || strings.Contains(line, "blue") || strings.Contains(line, "green") || strings.Contains(line, "ip_forward")
	})
	expect.Same(t, "left", len(left), 0)
}

func TestRealDefaultRoutesWithoutOrAgainstAnAnnotation(t *testing.T) {
	for annotation, want := range map[string][]string{
		"": {"eth0 10.90.0.1"},
		`[{"name": "blue", "default-route": []}]`: {"net1 10.91.0.1"},
	} {
		h := testhost.NewReal(t)
		b, r, err := pod(t, h, annotation)
		expect.NoError(t, err)
		expect.Same(t, annotation, defaults(h, r.NetNS), want)
		expect.NoError(t, b.Del(t.Context(), r))
	}
}

// TestRealDefaultRouteBesideFlannel: the default route of the cluster's network is its delegate's.
func TestRealDefaultRouteBesideFlannel(t *testing.T) {
	for annotation, want := range map[string][]string{
		"": {"eth0 10.90.1.1"},
		`[{"name": "blue", "default-route": ["10.91.0.1"]}]`: {"net1 10.91.0.1"},
	} {
		h := testhost.NewReal(t)
		lease := h.Path("subnet.env")
		expect.NoError(t, os.WriteFile(lease, []byte("FLANNEL_NETWORK=10.90.0.0/16\nFLANNEL_SUBNET=10.90.1.1/24\nFLANNEL_MTU=1400\nFLANNEL_IPMASQ=false\n"), 0o600))
		cluster := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "red", "plugins": [{"type": "flannel", "subnetFile": %q, "dataDir": %q,
			"ipam": {"dataDir": %q}, "delegate": {"bridge": "red", "isDefaultGateway": true}}]}`, lease, h.Path("flannel"), h.Path("ipam"))
		b, r, err := podBeside(t, h, annotation, cluster)
		expect.NoError(t, err)
		expect.Same(t, annotation, defaults(h, r.NetNS), want)
		expect.NoError(t, b.Check(t.Context(), r), b.Del(t.Context(), r))
	}
}

// TestDefaultRoutesThatPluginsDecide: a network whose plugins make one in spite of its
// configuration, or do not make the one that is asked for, fails the ADD.
func TestDefaultRoutesThatPluginsDecide(t *testing.T) {
	for what, tt := range map[string]struct{ result, want string }{
		"another makes one":      {`{"cniVersion": "1.0.0", "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}]}`, "its plugins make a default route by 10.0.0.1"},
		"without a gateway":      {`{"cniVersion": "1.0.0", "routes": [{"dst": "::/0"}]}`, "its plugins make a default route"},
		"it is not made":         {`{"cniVersion": "1.0.0"}`, "its plugins did not make the default route by 10.9.0.1"},
		"plugins without object": {`{"cniVersion": "1.0.0", "routes": [{"dst": "192.0.2.0/24", "gw": "10.9.0.1"}]}`, "its plugins did not make"},
	} {
		s := newStage(t)
		answer := tt.result
		action := s.Scripts["p"].Verbs["ADD"]
		action.Stdout = &answer
		s.On("p", "ADD", action)
		b := s.annotated(`[{"name": "b", "default-route": ["10.9.0.1"]}]`, backend.Options{})
		_, err := b.Add(t.Context(), s.request("c1", "eth0", delegating("node", delegate("cluster", "p"))))
		expect.Says(t, what, err, tt.want)
		expect.Same(t, what+": recorded", len(s.recorded()), 0)
	}
}
