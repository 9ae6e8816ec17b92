package cni

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
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

// TestDuty_R44_ByNameToo: values of this package's types are converted if they
// are given by name, alone or behind pointers. All other values stay unchanged.
func TestDuty_R44_ByNameToo(t *testing.T) {
	const ports, ranges = `[{"hostPort":1,"containerPort":2,"protocol":"tcp"}]`, `[[{"subnet":"10.0.0.0/8"}]]`
	mapping, bandwidth, dns := PortMapping{HostPort: 1, ContainerPort: 2}, BandWidth{EgressRate: 3}, DNS{Servers: []string{"s"}}
	for _, test := range []struct {
		value any
		want  string
	}{
		{mapping, ports}, {[]PortMapping{mapping}, ports}, {[]PortMapping{}, `[]`},
		{[]IPRanges{{Subnet: "10.0.0.0/8"}}, ranges}, {[][]IPRanges{{{Subnet: "10.0.0.0/8"}}}, ranges},
		{bandwidth, `{"egressRate":3}`}, {&bandwidth, `{"egressRate":3}`}, {BandWidth{}, `{}`},
		{dns, `{"servers":["s"]}`}, {&dns, `{"servers":["s"]}`},
		{map[string]int{"HostPort": 1}, `{"HostPort":1}`}, {nil, `null`}, {json.RawMessage(`{"n":9007199254740993}`), `{"n":9007199254740993}`},
	} {
		got, err := wireOf(WithCapability("any", test.value))
		want := `{"any":` + test.want + `}`
		expect.That(t, err == nil && got == want, "%#v: %s, %v; want %s", test.value, got, err, want)
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
		"capability ipRanges: subnet: netip.ParsePrefix":     ranges(IPRanges{Subnet: "10.0.0.0"}),
		"range of 10.0.0.0/8: ParseAddr(\"s\")":              ranges(IPRanges{Subnet: "10.0.0.0/8", RangeStart: "s"}),
		"range of 10.0.0.0/8: ParseAddr(\"e\")":              ranges(IPRanges{Subnet: "10.0.0.0/8", RangeEnd: "e"}),
		"range of 10.0.0.0/8: ParseAddr(\"g\")":              ranges(IPRanges{Subnet: "10.0.0.0/8", Gateway: "g"}),
		"capability bandwidth: nil":                          WithCapability("bandwidth", (*BandWidth)(nil)),
		"capability dns: nil":                                WithCapability("dns", (*DNS)(nil)),
		"capability portMappings: port mapping :0->0/tcp":    WithCapabilityPortMap([]PortMapping{{}}),
	} {
		got, err := wireOf(opt)
		expect.That(t, errors.Is(err, ErrInvalidArgument) && strings.Contains(err.Error(), want),
			"%s, %v; want ErrInvalidArgument with %q", got, err, want)
	}
}

// TestCapabilitiesAreCopied: a caller's later changes to its values do not
// reach a container that is being set up.
func TestCapabilitiesAreCopied(t *testing.T) {
	ports, sets, ips := []PortMapping{{HostPort: 1, ContainerPort: 2}}, [][]IPRanges{{{Subnet: "10.0.0.0/8"}}}, []string{"10.0.0.1"}
	opts := []NamespaceOpts{WithCapabilityPortMap(ports), WithCapabilityIPRangeSets(sets), WithCapabilityIPs(ips...)}
	before := expect.Value(wireOf(opts...))(t)
	ports[0].HostPort, sets[0][0].Subnet, ips[0] = 9, "192.168.0.0/16", "10.0.0.9"
	expect.Same(t, "after the others", expect.Value(wireOf(opts...))(t), before)
}
