package cni_test

import (
	"encoding/json"
	"net"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
)

const (
	plannedPods = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
	{"type": "bridge"}, {"type": "portmap", "capabilities": {"portMappings": true}}]}`
	plannedBare = `{"cniVersion": "1.0.0", "name": "bare", "plugins": [{"type": "ptp"}]}`
)

func newPlanner(t *testing.T, opts ...cni.Opt) *cni.Runtime {
	t.Helper()
	all := []cni.Opt{cni.WithOwner("o"), cni.WithConfListBytes([]byte(plannedPods)), cni.WithConfListBytes([]byte(plannedBare))}
	return expect.Value(cni.New(append(all, opts...)...))(t)
}

func TestPlanHasWhatSetupWouldAsk(t *testing.T) {
	ports := []cni.PortMapping{{HostPort: 8080, ContainerPort: 80}}
	p, err := newPlanner(t).Plan("c1", "/nowhere",
		cni.WithNetwork("bare"),
		cni.WithNetwork("pods", cni.WithInterfaceName("net1"), cni.WithArgs("K", "one"), cni.WithConfigArgs("a", 5)),
		cni.WithNewNetNS(), cni.WithArgs("K", "all"), cni.WithMetadata(map[string]string{"pod": "p"}), cni.WithCapabilityPortMap(ports))
	expect.NoError(t, err)
	wire := map[string]json.RawMessage{"portMappings": json.RawMessage(`[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]`)}
	metadata := map[string]string{"pod": "p"}
	want := cni.Plan{ContainerID: "c1", NetNS: "/nowhere", NewNetNS: true, Owner: "o", FirstPort: 20000, LastPort: 29999, Attachments: []cni.PlannedAttachment{
		{Network: "bare", IfName: "eth1", Args: map[string]string{"K": "all"}, Capabilities: wire, Metadata: metadata},
		{Network: "pods", IfName: "net1", Args: map[string]string{"K": "one"}, Capabilities: wire,
			ConfigArgs: map[string]json.RawMessage{"a": json.RawMessage("5")},
			Ports:      []cni.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}}, Metadata: metadata},
	}}
	for i, a := range p.Attachments {
		var list struct{ Name string }
		expect.NoError(t, json.Unmarshal(a.Config, &list))
		expect.Same(t, "network of the configuration", list.Name, a.Network)
		p.Attachments[i].Config = nil
	}
	expect.Same(t, "plan", asJSON(t, p), asJSON(t, want))
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	return string(expect.Value(json.MarshalIndent(v, "", " "))(t))
}

func TestPlanRefusesWhatSetupRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		id   string
		opts []cni.NamespaceOpts
		want error
	}{
		"bad ID":             {"-", nil, cni.ErrInvalidArgument},
		"network not loaded": {"c1", []cni.NamespaceOpts{cni.WithNetwork("none")}, cni.ErrNotFound},
		"bad interface name": {"c1", []cni.NamespaceOpts{cni.WithNetwork("pods", cni.WithInterfaceName("a/b"))}, cni.ErrInvalidArgument},
		"bad port":           {"c1", []cni.NamespaceOpts{cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 70000}})}, cni.ErrInvalidArgument},
		"not JSON":           {"c1", []cni.NamespaceOpts{cni.WithConfigArgs("a", func() {})}, cni.ErrInvalidArgument},
		"bad argument":       {"c1", []cni.NamespaceOpts{cni.WithArgs("K", "a;b")}, cni.ErrInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := newPlanner(t).Plan(c.id, "", c.opts...)
			expect.Is(t, err, c.want)
			expect.Same(t, "plan", p, nil)
		})
	}
	expect.Is(t, expect.Err(expect.Value(cni.New())(t).Plan("c1", "")), cni.ErrCNINotInitialized)
}

func TestPlanConvertsResultsAsSetup(t *testing.T) {
	p, err := newPlanner(t, cni.WithInterfacePrefix("net")).Plan("c1", "/ns",
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8080, ContainerPort: 80}}))
	expect.NoError(t, err)
	results := make([]*types100.Result, 2)
	for i, name := range []string{"net0", "net1"} {
		index := 0
		results[i] = &types100.Result{
			Interfaces: []*types100.Interface{{Name: name, Sandbox: "/ns"}},
			IPs:        []*types100.IPConfig{{Interface: &index, Address: net.IPNet{IP: net.IPv4(10, 1, byte(i), 2), Mask: net.CIDRMask(24, 32)}}},
		}
	}
	result, err := p.Result(results)
	expect.NoError(t, err)
	expect.Same(t, "address", result.IPv4().Prefix.String(), "10.1.0.2/24")
	expect.Same(t, "ports", result.Networks[0].Ports, []cni.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}})
	expect.Same(t, "ports of a network without portmap", result.Networks[1].Ports, nil)
	expect.Same(t, "results", result.Raw(), results)

	expect.Is(t, expect.Err(p.Result(results[:1])), cni.ErrInvalidArgument)
	expect.Is(t, expect.Err(p.Result([]*types100.Result{results[0], nil})), cni.ErrInvalidResult)
}
