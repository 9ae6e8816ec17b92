package behaviour_test

import (
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

const declaresPorts = `"capabilities":{"portMappings":true,"bandwidth":false}`

func TestDuty_R37_RuntimeConfigHasDeclaredAndGivenCapabilities(t *testing.T) {
	s := newStage(t)
	var log testhost.Log
	r := s.Runtime(s.only(declaresPorts), log.Logger())
	calls := s.wholeLife(r, cni.WithCapabilityBandWidth(cni.BandWidth{IngressRate: 1}), cni.WithCapability("aliases", nil),
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8080, ContainerPort: 80}}))
	for _, c := range calls {
		expect.Same(t, c.Verb, testhost.Canonical(t, testhost.Request(t, c)["runtimeConfig"]),
			`{"portMappings":[{"containerPort":80,"hostPort":8080,"protocol":"tcp"}]}`)
	}
	expect.Same(t, "warnings", log.Lines("WARN"), []string{
		`msg="capability is declared by no plugin and has no effect" capability=bandwidth container=c1`})
}

func TestDuty_R37_StrictlyAnUndeclaredCapabilityIsAnErrorAndNothingRuns(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(s.only(declaresPorts), cni.WithStrictCapabilities())
	path := s.Container("c1")
	for _, setup := range []string{"Setup", "SetupSerially"} {
		err := s.everyVerb(r, "c1", path, cni.WithCapabilityBandWidth(cni.BandWidth{IngressRate: 1}))[setup]
		expect.Is(t, err, cni.ErrInvalidArgument)
		if want := `capability "bandwidth" is declared by no plugin`; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q in it", setup, err, want)
		}
	}
	for _, c := range s.Calls() {
		if c.Verb == "ADD" {
			t.Errorf("ADD ran: %s", c.Exact)
		}
	}
}

func TestDuty_R44_M15_CapabilitiesAsThePluginReadsThem(t *testing.T) {
	all := `"capabilities":{"portMappings":true,"bandwidth":true,"dns":true,"ipRanges":true,"ips":true,"mac":true,
		"infinibandGUID":true,"deviceID":true,"aliases":true,"cgroupPath":true,"io.example":true}`
	tests := []struct {
		name string
		opt  cni.NamespaceOpts
		want string
	}{
		{"ports", cni.WithCapabilityPortMap([]cni.PortMapping{
			{HostPort: 8080, ContainerPort: 80, Protocol: "TCP", HostIP: "127.0.0.1"}, {HostPort: 53, ContainerPort: 53, Protocol: "udp"}}),
			`{"portMappings":[{"containerPort":80,"hostIP":"127.0.0.1","hostPort":8080,"protocol":"tcp"},{"containerPort":53,"hostPort":53,"protocol":"udp"}]}`},
		{"bandwidth", cni.WithCapabilityBandWidth(cni.BandWidth{IngressRate: 2048, IngressBurst: 1600, EgressRate: 4096, EgressBurst: 1600}),
			`{"bandwidth":{"egressBurst":1600,"egressRate":4096,"ingressBurst":1600,"ingressRate":2048}}`},
		{"one direction", cni.WithCapability("bandwidth", cni.BandWidth{EgressRate: 1}), `{"bandwidth":{"egressRate":1}}`},
		{"dns", cni.WithCapabilityDNS(cni.DNS{Servers: []string{"8.8.8.8"}, Searches: []string{"a.example"}, Options: []string{"ndots:2"}}),
			`{"dns":{"options":["ndots:2"],"searches":["a.example"],"servers":["8.8.8.8"]}}`},
		{"ranges", cni.WithCapabilityIPRanges([]cni.IPRanges{
			{Subnet: "10.1.2.0/24", RangeStart: "10.1.2.3", RangeEnd: "10.1.2.99", Gateway: "10.1.2.254"}, {Subnet: "2001:db8::/64"}}),
			`{"ipRanges":[[{"gateway":"10.1.2.254","rangeEnd":"10.1.2.99","rangeStart":"10.1.2.3","subnet":"10.1.2.0/24"}],[{"subnet":"2001:db8::/64"}]]}`},
		{"range sets", cni.WithCapabilityIPRangeSets([][]cni.IPRanges{{{Subnet: "10.1.0.0/24"}, {Subnet: "10.2.0.0/24"}}}),
			`{"ipRanges":[[{"subnet":"10.1.0.0/24"},{"subnet":"10.2.0.0/24"}]]}`},
		{"ips", cni.WithCapabilityIPs("10.1.2.3", "2001:db8::3/64"), `{"ips":["10.1.2.3","2001:db8::3/64"]}`},
		{"mac", cni.WithCapabilityMAC("c2:11:22:33:44:55"), `{"mac":"c2:11:22:33:44:55"}`},
		{"guid", cni.WithCapabilityInfinibandGUID("c2:11:22:33:44:55:66:77"), `{"infinibandGUID":"c2:11:22:33:44:55:66:77"}`},
		{"device", cni.WithCapabilityDeviceID("0000:04:00.5"), `{"deviceID":"0000:04:00.5"}`},
		{"aliases", cni.WithCapability("aliases", []string{"db", "primary"}), `{"aliases":["db","primary"]}`},
		{"cgroup", cni.WithCapabilityCgroupPath("/kubelet/pod1"), `{"cgroupPath":"/kubelet/pod1"}`},
		{"any", cni.WithCapability("io.example", map[string]any{"k": "<&>"}), `{"io.example":{"k":"<&>"}}`},
	}
	s := newStage(t)
	r := s.Runtime(s.only(all))
	for _, tt := range tests {
		for _, c := range s.wholeLife(r, tt.opt) {
			expect.Same(t, tt.name+" at "+c.Verb, testhost.Canonical(t, testhost.Request(t, c)["runtimeConfig"]), tt.want)
		}
		s.RemoveNetNS("c1")
	}
}

func TestDuty_R45_ArgsInTheConfigurationBesideCNI_ARGS(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(s.only(`"args":{"cni":{"x":9007199254740993,"y":2},"other":[1]}`))
	calls := s.wholeLife(r, cni.WithConfigArgs("y", "new"), cni.WithConfigArgs("labels", []string{"a", "b"}), cni.WithArgs("K", "v"))
	for _, c := range calls {
		expect.Same(t, c.Verb+": args", testhost.Request(t, c)["args"],
			`{"cni":{"x":9007199254740993,"y":"new","labels":["a","b"]},"other":[1]}`)
		expect.Same(t, c.Verb+": CNI_ARGS", c.Args, "K=v")
	}
}
