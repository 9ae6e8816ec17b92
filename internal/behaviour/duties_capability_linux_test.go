package behaviour_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
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
		expect.Same(t, c.Verb, expect.JSON(t, testhost.Request(t, c)["runtimeConfig"]),
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
		fails(t, err, `capability "bandwidth" is declared by no plugin`)
	}
	expect.Empty(t, "ADDs that ran", slices.DeleteFunc(s.Calls(), func(c scripted.Call) bool { return c.Verb != "ADD" }))
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
		`{"infinibandGUID":"c2:11:22:33:44:55:66:77"}`: cni.WithCapability("infinibandGUID", "c2:11:22:33:44:55:66:77"),
		`{"deviceID":"0000:04:00.5"}`:                  cni.WithCapability("deviceID", "0000:04:00.5"),
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

// declaring is a network of one plugin that declares these capabilities.
func (s *stage) declaring(name, typ string, capabilities ...string) cni.Opt {
	s.T.Helper()
	script := s.Plugin(s.Scripts[typ], typ)
	declared := map[string]bool{}
	for _, c := range capabilities {
		declared[c] = true
	}
	data := expect.Value(json.Marshal(declared))(s.T)
	return cni.WithConfListBytes(fmt.Appendf(nil,
		`{"cniVersion": "1.0.0", "name": %q, "plugins": [{"type": %q, "script": %q, "ipam": {"type": "host-local"}, "capabilities": %s}]}`, name, typ, script, data))
}

// defaultLog is slog's default logger for the duration of a test.
func defaultLog(t *testing.T) *bytes.Buffer {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	var log bytes.Buffer
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})))
	return &log
}

// TestFault_F70_AnOptionThatNoNetworkTakesIsAnError: go-cni does not have these options, so
// no program relies on their being lost.
func TestFault_F70_AnOptionThatNoNetworkTakesIsAnError(t *testing.T) {
	s := newStage(t)
	path := s.Container("c1")
	lo, a, b := cni.WithLoNetwork, s.declaring("a", "p"), s.declaring("b", "q", "ips", "mac", "ipRanges")
	bridge := cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [
		{"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}}, {"type": "firewall"}]}`))
	ips := cni.WithCapabilityIPs("10.9.0.77")
	for what, c := range map[string]struct {
		networks []cni.Opt
		opts     []cni.NamespaceOpts
		want     string // in the error; none: no error
	}{
		"IPs":            {[]cni.Opt{lo, bridge}, []cni.NamespaceOpts{ips}, `capability "ips" is declared by no plugin of network "pods": add "capabilities": {"ips": true} to plugin "bridge" of network "pods": invalid argument`},
		"MAC":            {[]cni.Opt{bridge}, []cni.NamespaceOpts{cni.WithCapabilityMAC("02:00:00:00:00:01")}, `add "capabilities": {"mac": true} to plugin "bridge" of network "pods"`},
		"range sets":     {[]cni.Opt{a}, []cni.NamespaceOpts{cni.WithCapabilityIPRangeSets([][]cni.IPRanges{{{Subnet: "10.9.0.0/24"}}})}, `add "capabilities": {"ipRanges": true} to plugin "p" of network "a"`},
		"two networks":   {[]cni.Opt{a, s.declaring("x", "q")}, []cni.NamespaceOpts{ips}, `no plugin of network "a", network "x": `},
		"one of two":     {[]cni.Opt{lo, a, b}, []cni.NamespaceOpts{ips, cni.WithCapabilityMAC("02:00:00:00:00:01")}, ""},
		"one is meant":   {[]cni.Opt{a, b}, []cni.NamespaceOpts{cni.WithNetwork("a", ips), cni.WithNetwork("b")}, `no plugin of network "a": `},
		"both are meant": {[]cni.Opt{a, b}, []cni.NamespaceOpts{cni.WithNetwork("a", ips), cni.WithNetwork("b", cni.WithCapabilityIPs("10.9.0.78"))}, `no plugin of network "a": `},
		"the right one":  {[]cni.Opt{a, b}, []cni.NamespaceOpts{cni.WithNetwork("a"), cni.WithNetwork("b", ips)}, ""},
		"nothing":        {[]cni.Opt{a}, []cni.NamespaceOpts{cni.WithCapabilityIPs(), cni.WithCapability("aliases", []string{})}, ""},
		"the later wins": {[]cni.Opt{a}, []cni.NamespaceOpts{ips, cni.WithCapability("ips", []string{})}, ""},
		"two of one name": {[]cni.Opt{s.declaring("n", "p"), s.declaring("n", "q", "ips")}, []cni.NamespaceOpts{
			cni.WithNetwork("n", ips)}, ""},
	} {
		s.TakeCalls()
		r := s.Runtime(c.networks...)
		result, err := r.Setup(t.Context(), "c1", path, c.opts...)
		if c.want == "" {
			expect.NoError(t, err)
			expect.Same(t, what+": ignored", result.Ignored, nil)
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
			continue
		}
		expect.Is(t, err, cni.ErrInvalidArgument)
		fails(t, err, c.want)
		expect.Is(t, expect.Err(r.Plan("c1", path, c.opts...)), cni.ErrInvalidArgument)
		expect.Same(t, what+": calls", testhost.Rendered(s.TakeCalls()), []string{})
		expect.NoError(t, r.Remove(t.Context(), "c1", path, cni.WithCapabilityIPs("10.9.0.77")))
	}
}

// TestFault_F70_AnOptionOfGoCNIThatNoNetworkTakesIsReported, and does not fail: programs give
// these to all networks. The default logger gets it once, because they give them to all
// containers, and the program's own each time.
func TestFault_F70_AnOptionOfGoCNIThatNoNetworkTakesIsReported(t *testing.T) {
	s := newStage(t)
	ports := cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8080, ContainerPort: 80}})
	all := []cni.NamespaceOpts{
		ports, cni.WithCapabilityBandWidth(cni.BandWidth{IngressRate: 8}), cni.WithCapabilityDNS(cni.DNS{Servers: []string{"10.9.0.1"}}),
		cni.WithCapabilityCgroupPath("/pods/1"), cni.WithCapabilityIPRanges([]cni.IPRanges{{Subnet: "10.9.0.0/24"}}),
		cni.WithCapability("ips", []string{"10.9.0.77"}), cni.WithCapability("io.kubernetes.cri.pod-annotations", map[string]string{}),
	}
	names := []string{"bandwidth", "cgroupPath", "dns", "ipRanges", "ips", "portMappings"}
	warning := `level=WARN msg="capability is declared by no plugin and has no effect" capability=`
	networks := []cni.Opt{cni.WithLoNetwork, s.declaring("a", "p"), s.declaring("b", "q", "portMappings")}
	log := defaultLog(t)
	setup := func(r *cni.Runtime, id string, opts ...cni.NamespaceOpts) *cni.Result {
		t.Helper()
		path := s.Container(id)
		result := expect.Value(r.Setup(t.Context(), id, path, opts...))(t)
		expect.NoError(t, r.Remove(t.Context(), id, path))
		return result
	}
	r := s.Runtime(networks[:2]...)
	result := setup(r, "c1", all...)
	expect.Same(t, "ignored", result.Ignored, names)
	var want string
	for _, name := range names {
		want += warning + name + " container=c1\n"
	}
	expect.Same(t, "logged", log.String(), want)
	var persisted map[string]any
	expect.NoError(t, json.Unmarshal(expect.Value(json.Marshal(result))(t), &persisted))
	expect.Same(t, "persisted", fmt.Sprint(persisted["Ignored"]), fmt.Sprint(names))

	log.Reset()
	expect.Same(t, "the next container", setup(r, "c2", all...).Ignored, names)
	expect.Same(t, "logged again", log.String(), "")

	// One network of several takes the ports.
	r = s.Runtime(networks...)
	expect.Lacks(t, "the result", string(expect.Value(json.Marshal(setup(r, "c3", ports)))(t)), "Ignored")
	expect.Same(t, "for one network", setup(r, "c4", cni.WithNetwork("a", ports), cni.WithNetwork("b")).Ignored, []string{"portMappings"})
	expect.Same(t, "logged", log.String(), warning+"portMappings container=c4\n")

	log.Reset()
	var own testhost.Log
	r = s.Runtime(append(networks[:2], own.Logger())...)
	setup(r, "c5", ports)
	setup(r, "c6", ports)
	setup(s.Runtime(append(networks[:2], cni.WithLogger(nil))...), "c7", ports)
	expect.Same(t, "slog's default", log.String(), "")
	expect.Same(t, "the program's logger", len(own.Lines("WARN")), 2)
}
