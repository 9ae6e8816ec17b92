package graph

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
)

// records answers as a Runtime would whose records and kernel are these.
type records struct {
	attachments []cni.Attachment
	results     map[string]*cni.Result
	verdicts    []cni.Health
	config      cni.ConfigResult
	asked       cni.HealthOptions
}

func (r *records) Attachments(...string) ([]cni.Attachment, error) { return r.attachments, nil }
func (r *records) GetConfig() *cni.ConfigResult                    { return &r.config }

func (r *records) Lookup(id string) (*cni.Result, error) {
	if result := r.results[id]; result != nil {
		return result, nil
	}
	return nil, cni.ErrNotAttached
}

func (r *records) Health(_ context.Context, o cni.HealthOptions) ([]cni.Health, error) {
	r.asked = o
	return r.verdicts, nil
}

func address(prefix, gateway string) cni.Address {
	a := cni.Address{Prefix: netip.MustParsePrefix(prefix)}
	if gateway != "" {
		a.Gateway = netip.MustParseAddr(gateway)
	}
	return a
}

func loaded(name, bridge, source string) *cni.ConfNetwork {
	return &cni.ConfNetwork{IFName: "eth0", Config: &cni.NetworkConfList{Name: name, Plugins: []*cni.NetworkConf{
		{Network: &types.NetConf{Type: bridge}, Source: source}}}}
}

// A container on two bridges, of which one is broken; one without a record that says where
// it is; one of another owner on a network without a bridge; a damaged record; a network
// without containers.
func TestLook(t *testing.T) {
	onTwo := []*cni.NetworkResult{
		{Name: "pods", IfName: "eth0", Interfaces: []*cni.Interface{{Name: "pods0"}, {Name: "veth1"}, {Name: "eth0", Sandbox: "/run/netns/a"}},
			Ports: []cni.PortMapping{{HostPort: 9090, ContainerPort: 90, Protocol: "UDP"}, {HostPort: 8080, ContainerPort: 80}}},
		{Name: "dmz", IfName: "eth1", Interfaces: []*cni.Interface{{Name: "dmz0"}, {Name: "veth2"}, {Name: "eth1", Sandbox: "/run/netns/a"}}},
	}
	bridge := map[string]string{"bridge": "built in", "host-local": "built in"}
	r := &records{
		attachments: []cni.Attachment{
			{ContainerID: "a", Network: "cni-loopback", IfName: "lo", Owner: "me", Plugins: map[string]string{"loopback": "built in"}},
			{ContainerID: "a", Network: "pods", IfName: "eth0", Owner: "me", NetNS: "/run/netns/a", Plugins: bridge, Addresses: []cni.Address{address("10.1.0.2/24", "10.1.0.1")}},
			{ContainerID: "a", Network: "dmz", IfName: "eth1", Owner: "me", NetNS: "/run/netns/a", Plugins: bridge, Addresses: []cni.Address{address("10.2.0.2/24", "10.2.0.1")}},
			{ContainerID: "b", Network: "pods", IfName: "eth0", Owner: "me", State: cni.Attaching},
			{ContainerID: "c", Network: "edge", IfName: "eth0", Owner: "nomad", Plugins: map[string]string{"ptp": "executable"}, Addresses: []cni.Address{address("fd00::2/64", "fd00::1")}},
			{State: cni.Unknown, LastError: "damaged attachment record"},
		},
		results: map[string]*cni.Result{"a": {Networks: onTwo}, "c": {Networks: []*cni.NetworkResult{
			{Name: "edge", IfName: "eth0", Interfaces: []*cni.Interface{{Name: "veth3"}, {Name: "eth0", Sandbox: "/run/netns/c"}}}}}},
		verdicts: []cni.Health{
			{ContainerID: "a", State: cni.StateBroken, Differences: []cni.Difference{
				{Network: "dmz", IfName: "eth1", Plugin: "bridge", Kind: "bridge", Object: "dmz0", Repairable: true},
				{Network: "dmz", IfName: "eth1", Plugin: "bridge", Kind: "address", Object: "10.2.0.1/24 on dmz0", Repairable: true},
				{Network: "dmz", IfName: "eth1", Plugin: "bridge", Kind: "bridge port", Object: "veth2", Why: "it is a test"},
			}},
			{ContainerID: "b", State: cni.StateUnknown, Reason: errors.New("it is being attached")},
			{ContainerID: "c", State: cni.StateHealthy},
		},
		config: cni.ConfigResult{Networks: []*cni.ConfNetwork{
			loaded("pods", "bridge", `{"type": "bridge", "bridge": "pods0"}`), loaded("spare", "bridge", `{"type": "bridge"}`),
			{IFName: "lo", Config: &cni.NetworkConfList{Name: "cni-loopback"}},
		}},
	}
	got, err := Look(t.Context(), r, Options{Name: "n", WithoutCheck: true})
	expect.NoError(t, err)
	expect.Same(t, "what Health was asked", r.asked, cni.HealthOptions{Containers: []string{"a", "b", "c"}, WithoutCheck: true})
	want := Host{Name: "n", Segments: []Segment{
		{Networks: []string{}, Addresses: []string{}, Members: []Member{
			{State: cni.StateUnknown, Words: []string{"damaged attachment record"}, Addresses: []string{}, Ports: []Port{}}}},
		{Kind: "ptp", Networks: []string{"edge"}, Addresses: []string{}, Members: []Member{
			{ContainerID: "c", Network: "edge", IfName: "eth0", HostIfName: "veth3", Owner: "nomad", Addresses: []string{"fd00::2/64"}, Ports: []Port{}, State: cni.StateHealthy}}},
		{Bridge: "cni0", Kind: "bridge", Networks: []string{"spare"}, Addresses: []string{}, Members: []Member{}},
		{Bridge: "dmz0", Kind: "bridge", Networks: []string{"dmz"}, Addresses: []string{"10.2.0.1/24"},
			Broken: []string{"bridge dmz0 is missing", "address 10.2.0.1/24 on dmz0 is missing"},
			Members: []Member{{ContainerID: "a", Network: "dmz", IfName: "eth1", HostIfName: "veth2", NetNS: "/run/netns/a", Owner: "me", Addresses: []string{"10.2.0.2/24"},
				Ports: []Port{}, State: cni.StateBroken, Words: []string{"bridge port veth2 is missing (not repairable)"}, Elsewhere: []string{"eth0 on pods0"}}}},
		{Bridge: "pods0", Kind: "bridge", Networks: []string{"pods"}, Addresses: []string{"10.1.0.1/24"}, Members: []Member{
			{ContainerID: "a", Network: "pods", IfName: "eth0", HostIfName: "veth1", NetNS: "/run/netns/a", Owner: "me", Addresses: []string{"10.1.0.2/24"},
				Ports: []Port{{"", 8080, 80, "tcp"}, {"", 9090, 90, "udp"}}, State: cni.StateHealthy, Elsewhere: []string{"eth1 on dmz0"}},
			{ContainerID: "b", Network: "pods", IfName: "eth0", Owner: "me", Addresses: []string{}, Ports: []Port{}, State: cni.StateUnknown, Words: []string{"it is being attached"}},
		}},
	}}
	for i := range max(len(got.Segments), len(want.Segments)) {
		expect.Must(t, i < len(got.Segments) && i < len(want.Segments), "segments:\n got %+v\nwant %+v", got.Segments, want.Segments)
		expect.Same(t, want.Segments[i].Bridge, got.Segments[i], want.Segments[i])
	}
	expect.Same(t, "summary", got.summary(), "4 containers, 4 networks, 1 broken, 2 not known to be healthy")

	mine, err := Look(t.Context(), r, Options{Name: "n", Owner: "nomad"})
	expect.NoError(t, err)
	expect.Same(t, "containers of one owner", r.asked.Containers, []string{"c"})
	expect.That(t, slices.ContainsFunc(mine.Segments, func(s Segment) bool { return s.Kind == "ptp" && len(s.Members) == 1 }), "nomad's container is not there: %+v", mine)
	all, _, _ := mine.count()
	expect.Same(t, "number of nomad's containers", all, 1)
}
