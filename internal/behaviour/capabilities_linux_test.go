package behaviour_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

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
		"IPs":            {[]cni.Opt{lo, bridge}, []cni.NamespaceOpts{ips}, `capability "ips" is declared by no plugin of network "cni-loopback", network "pods": add "capabilities": {"ips": true} to plugin "bridge" of network "pods": invalid argument`},
		"MAC":            {[]cni.Opt{bridge}, []cni.NamespaceOpts{cni.WithCapabilityMAC("02:00:00:00:00:01")}, `add "capabilities": {"mac": true} to plugin "bridge" of network "pods"`},
		"range sets":     {[]cni.Opt{a}, []cni.NamespaceOpts{cni.WithCapabilityIPRangeSets([][]cni.IPRanges{{{Subnet: "10.9.0.0/24"}}})}, `add "capabilities": {"ipRanges": true} to plugin "p" of network "a"`},
		"device":         {[]cni.Opt{bridge}, []cni.NamespaceOpts{cni.WithCapabilityDeviceID("0000:04:00.5")}, `add a plugin that reads it (host-device) with "capabilities": {"deviceID": true}`},
		"GUID":           {[]cni.Opt{a}, []cni.NamespaceOpts{cni.WithCapabilityInfinibandGUID("c2:11:22:33:44:55:66:77")}, `add "capabilities": {"infinibandGUID": true} to the plugin that reads it`},
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
			if err == nil && result.Ignored != nil {
				t.Errorf("%s: ignored %q", what, result.Ignored)
			}
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
			continue
		}
		expect.Is(t, err, cni.ErrInvalidArgument)
		says(t, err, c.want)
		_, perr := r.Plan("c1", path, c.opts...)
		expect.Is(t, perr, cni.ErrInvalidArgument)
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
	result = setup(r, "c3", ports)
	if text := string(expect.Value(json.Marshal(result))(t)); strings.Contains(text, "Ignored") {
		t.Errorf("nothing was ignored: %s", text)
	}
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
