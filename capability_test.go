package cni

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// wireOf returns the capabilities of these options as the plugins' JSON.
func wireOf(opts ...NamespaceOpts) (string, error) {
	ns, err := newNamespace("c1", "/ns", opts...)
	if err != nil {
		return "", err
	}
	wire, err := wireCapabilities(ns.capabilityArgs)
	if err != nil {
		return "", err
	}
	data, err := json.Marshal(wire)
	return string(data), err
}

// TestDuty_R44_M15_CapabilitiesOnTheWire checks the keys and shapes of all ten
// well-known capabilities against CONVENTIONS.md, which has these examples.
func TestDuty_R44_M15_CapabilitiesOnTheWire(t *testing.T) {
	tests := map[string]struct {
		opt  NamespaceOpts
		want string
	}{
		"portMappings": {
			WithCapabilityPortMap([]PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}, {HostPort: 8000, ContainerPort: 8001, Protocol: "udp"}}),
			`[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":8000,"containerPort":8001,"protocol":"udp"}]`,
		},
		"ipRanges": {
			WithCapabilityIPRanges([]IPRanges{{Subnet: "10.1.2.0/24", RangeStart: "10.1.2.3", RangeEnd: "10.1.2.99", Gateway: "10.1.2.254"}, {Subnet: "2001:db8::/64"}}),
			`[[{"subnet":"10.1.2.0/24","rangeStart":"10.1.2.3","rangeEnd":"10.1.2.99","gateway":"10.1.2.254"}],[{"subnet":"2001:db8::/64"}]]`,
		},
		"bandwidth": {
			WithCapabilityBandWidth(BandWidth{IngressRate: 2048, IngressBurst: 1600, EgressRate: 4096, EgressBurst: 1600}),
			`{"ingressRate":2048,"ingressBurst":1600,"egressRate":4096,"egressBurst":1600}`,
		},
		"dns": {
			WithCapabilityDNS(DNS{Searches: []string{"internal.yoyodyne.net", "corp.tyrell.net"}, Servers: []string{"8.8.8.8", "10.0.0.10"}, Options: []string{"ndots:2"}}),
			`{"servers":["8.8.8.8","10.0.0.10"],"searches":["internal.yoyodyne.net","corp.tyrell.net"],"options":["ndots:2"]}`,
		},
		"ips": {
			WithCapabilityIPs("192.168.0.1", "10.10.0.1/24", "3ffe:ffff:0:01ff::2", "3ffe:ffff:0:01ff::1/64"),
			`["192.168.0.1","10.10.0.1/24","3ffe:ffff:0:01ff::2","3ffe:ffff:0:01ff::1/64"]`,
		},
		"mac":            {WithCapabilityMAC("c2:11:22:33:44:55"), `"c2:11:22:33:44:55"`},
		"infinibandGUID": {WithCapabilityInfinibandGUID("c2:11:22:33:44:55:66:77"), `"c2:11:22:33:44:55:66:77"`},
		"deviceID":       {WithCapabilityDeviceID("0000:04:00.5"), `"0000:04:00.5"`},
		"cgroupPath":     {WithCapabilityCgroupPath("/kubelet.slice/pod.slice"), `"/kubelet.slice/pod.slice"`},
	}
	for name, test := range tests {
		got, err := wireOf(test.opt)
		if want := `{"` + name + `":` + test.want + `}`; err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, want)
		}
	}
}

// TestDuty_R44_ByNameToo: values of this package's types are converted if they
// are given by name, alone or behind pointers. All other values stay unchanged.
func TestDuty_R44_ByNameToo(t *testing.T) {
	const ports, ranges = `[{"hostPort":1,"containerPort":2,"protocol":"tcp"}]`, `[[{"subnet":"10.0.0.0/8"}]]`
	mapping, bandwidth, dns := PortMapping{HostPort: 1, ContainerPort: 2}, BandWidth{EgressRate: 3}, DNS{Servers: []string{"s"}}
	tests := []struct {
		value any
		want  string
	}{
		{mapping, ports}, {[]PortMapping{mapping}, ports}, {[]PortMapping{}, `[]`},
		{[]IPRanges{{Subnet: "10.0.0.0/8"}}, ranges}, {[][]IPRanges{{{Subnet: "10.0.0.0/8"}}}, ranges},
		{bandwidth, `{"egressRate":3}`}, {&bandwidth, `{"egressRate":3}`}, {BandWidth{}, `{}`},
		{dns, `{"servers":["s"]}`}, {&dns, `{"servers":["s"]}`},
		{map[string]int{"HostPort": 1}, `{"HostPort":1}`}, {nil, `null`}, {json.RawMessage(`{"n":9007199254740993}`), `{"n":9007199254740993}`},
	}
	for _, test := range tests {
		got, err := wireOf(WithCapability("any", test.value))
		if want := `{"any":` + test.want + `}`; err != nil || got != want {
			t.Errorf("%#v: %s, %v; want %s", test.value, got, err, want)
		}
	}
}

func TestIPRangeSets(t *testing.T) {
	got, err := wireOf(WithCapabilityIPRangeSets([][]IPRanges{{{Subnet: "10.0.0.0/24"}, {Subnet: "10.0.1.0/24"}}, {{Subnet: "2001:db8::/64"}}}))
	if want := `{"ipRanges":[[{"subnet":"10.0.0.0/24"},{"subnet":"10.0.1.0/24"}],[{"subnet":"2001:db8::/64"}]]}`; err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

func TestCapabilityThatCannotBe(t *testing.T) {
	ranges := func(r IPRanges) NamespaceOpts { return WithCapabilityIPRanges([]IPRanges{r}) }
	for want, opt := range map[string]NamespaceOpts{
		"capability ips: ParseAddr(\"300.0.0.1\")":           WithCapabilityIPs("10.0.0.1", "300.0.0.1"),
		"capability ips: netip.ParsePrefix(\"10.0.0.1/33\")": WithCapabilityIPs("10.0.0.1/33"),
		"capability ips: ParseAddr(\"\")":                    WithCapabilityIPs(""),
		"capability ips: netip.ParsePrefix(\"10.0.0.1/\")":   WithCapabilityIPs("10.0.0.1/"),
		"capability mac: address":                            WithCapabilityMAC("c2:11"),
		"c2:11:22:33:44:55:66:77\" has 8 bytes, not 6":       WithCapabilityMAC("c2:11:22:33:44:55:66:77"),
		"c2:11:22:33:44:55\" has 6 bytes, not 8":             WithCapabilityInfinibandGUID("c2:11:22:33:44:55"),
		"capability ipRanges: subnet: netip.ParsePrefix":     ranges(IPRanges{Subnet: "10.0.0.0"}),
		"range of 10.0.0.0/8: ParseAddr(\"s\")":              ranges(IPRanges{Subnet: "10.0.0.0/8", RangeStart: "s"}),
		"range of 10.0.0.0/8: ParseAddr(\"e\")":              ranges(IPRanges{Subnet: "10.0.0.0/8", RangeEnd: "e"}),
		"range of 10.0.0.0/8: ParseAddr(\"g\")":              ranges(IPRanges{Subnet: "10.0.0.0/8", Gateway: "g"}),
		"capability bandwidth: nil":                          WithCapability("bandwidth", (*BandWidth)(nil)),
		"capability dns: nil":                                WithCapability("dns", (*DNS)(nil)),
		"capability portMappings: port mapping :0->0/tcp":    WithCapabilityPortMap([]PortMapping{{}}),
	} {
		got, err := wireOf(opt)
		if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s, %v; want ErrInvalidArgument with %q", got, err, want)
		}
	}
}

// TestCapabilitiesAreCopied: a caller's later changes to its values do not
// reach a container that is being set up.
func TestCapabilitiesAreCopied(t *testing.T) {
	ports, sets, ips := []PortMapping{{HostPort: 1, ContainerPort: 2}}, [][]IPRanges{{{Subnet: "10.0.0.0/8"}}}, []string{"10.0.0.1"}
	opts := []NamespaceOpts{WithCapabilityPortMap(ports), WithCapabilityIPRangeSets(sets), WithCapabilityIPs(ips...)}
	before, err := wireOf(opts...)
	if err != nil {
		t.Fatal(err)
	}
	ports[0].HostPort, sets[0][0].Subnet, ips[0] = 9, "192.168.0.0/16", "10.0.0.9"
	if after, err := wireOf(opts...); err != nil || after != before {
		t.Errorf("after: %s, %v\nbefore: %s", after, err, before)
	}
}
