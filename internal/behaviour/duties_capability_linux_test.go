package behaviour_test

import (
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
		says(t, err, `capability "bandwidth" is declared by no plugin`)
	}
	for _, c := range s.Calls() {
		if c.Verb == "ADD" {
			t.Errorf("ADD ran: %s", c.Exact)
		}
	}
}

// TestDuty_R44_M15_CapabilitiesAsThePluginReadsThem checks the keys and shapes of all
// well-known capabilities against CONVENTIONS.md, to the byte.
func TestDuty_R44_M15_CapabilitiesAsThePluginReadsThem(t *testing.T) {
	all := `"capabilities":{"portMappings":true,"bandwidth":true,"dns":true,"ipRanges":true,"ips":true,"mac":true,
		"infinibandGUID":true,"deviceID":true,"aliases":true,"cgroupPath":true,"io.example":true}`
	s := newStage(t)
	r := s.Runtime(s.only(all))
	for want, opt := range map[string]cni.NamespaceOpts{
		`{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"sctp","hostIP":"127.0.0.1"},` +
			`{"hostPort":1,"containerPort":65535,"protocol":"tcp","hostIP":"2001:db8::1"},` +
			`{"hostPort":53,"containerPort":53,"protocol":"udp"},{"hostPort":54,"containerPort":54,"protocol":"tcp"}]}`: cni.WithCapabilityPortMap([]cni.PortMapping{
			{HostPort: 8080, ContainerPort: 80, Protocol: "Sctp", HostIP: "127.0.0.1"}, {HostPort: 1, ContainerPort: 65535, Protocol: "tcp", HostIP: "2001:db8::1"},
			{HostPort: 53, ContainerPort: 53, Protocol: "UDP"}, {HostPort: 54, ContainerPort: 54}}),
		`{"bandwidth":{"ingressRate":2048,"ingressBurst":1600,"egressRate":4096,"egressBurst":1600}}`: cni.WithCapabilityBandWidth(
			cni.BandWidth{IngressRate: 2048, IngressBurst: 1600, EgressRate: 4096, EgressBurst: 1600}),
		`{"dns":{"servers":["8.8.8.8"],"searches":["a.example"],"options":["ndots:2"]}}`: cni.WithCapabilityDNS(
			cni.DNS{Servers: []string{"8.8.8.8"}, Searches: []string{"a.example"}, Options: []string{"ndots:2"}}),
		`{"ipRanges":[[{"subnet":"10.1.2.0/24","rangeStart":"10.1.2.3","rangeEnd":"10.1.2.99","gateway":"10.1.2.254"}],` +
			`[{"subnet":"2001:db8::/64"}]]}`: cni.WithCapabilityIPRanges([]cni.IPRanges{
			{Subnet: "10.1.2.0/24", RangeStart: "10.1.2.3", RangeEnd: "10.1.2.99", Gateway: "10.1.2.254"}, {Subnet: "2001:db8::/64"}}),
		`{"ipRanges":[[{"subnet":"10.1.0.0/24"},{"subnet":"10.2.0.0/24"}]]}`: cni.WithCapabilityIPRangeSets(
			[][]cni.IPRanges{{{Subnet: "10.1.0.0/24"}, {Subnet: "10.2.0.0/24"}}}),
		`{"ips":["10.1.2.3","2001:db8::3/64"]}`:        cni.WithCapabilityIPs("10.1.2.3", "2001:db8::3/64"),
		`{"mac":"c2:11:22:33:44:55"}`:                  cni.WithCapabilityMAC("c2:11:22:33:44:55"),
		`{"infinibandGUID":"c2:11:22:33:44:55:66:77"}`: cni.WithCapabilityInfinibandGUID("c2:11:22:33:44:55:66:77"),
		`{"deviceID":"0000:04:00.5"}`:                  cni.WithCapabilityDeviceID("0000:04:00.5"),
		`{"aliases":["db","primary"]}`:                 cni.WithCapability("aliases", []string{"db", "primary"}),
		`{"cgroupPath":"/kubelet/pod1"}`:               cni.WithCapabilityCgroupPath("/kubelet/pod1"),
		`{"io.example":{"k":"v"}}`:                     cni.WithCapability("io.example", map[string]any{"k": "v"}),
	} {
		for _, c := range s.wholeLife(r, opt) {
			expect.Same(t, c.Verb, testhost.Request(t, c)["runtimeConfig"], want)
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
