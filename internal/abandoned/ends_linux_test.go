package abandoned

import (
	"strings"
	"testing"
)

// TestTiedToHost: the host shows the end of a namespace only if each plugin
// makes a veth pair, or leaves nothing that the sweep cannot find.
func TestTiedToHost(t *testing.T) {
	swept := func(types ...string) (all []Plugin) {
		for _, typ := range types {
			all = append(all, Plugin{Type: typ, Swept: true})
		}
		return all
	}
	for what, test := range map[string]struct {
		plugins []Plugin
		want    string // empty means tied
	}{
		"bridge":                 {swept("bridge"), ""},
		"ptp with more":          {swept("ptp", "portmap", "firewall"), ""},
		"macvlan":                {swept("macvlan"), `"macvlan" keeps no interface on the host`},
		"loopback first":         {swept("loopback", "bridge"), `"loopback" keeps no interface on the host`},
		"two veth pairs":         {swept("bridge", "ptp"), `"ptp" may have more`},
		"a device of the host's": {swept("bridge", "host-device"), `"host-device" may have more`},
		"the caller's":           {[]Plugin{{Type: "bridge", Callers: true}}, `"bridge" is the caller's`},
		"one that is not swept":  {append(swept("bridge"), Plugin{Type: "mesh"}), `"mesh" may have more`},
	} {
		a := &Attachment{Network: "net", IfName: "eth0", Plugins: test.plugins}
		err := a.tiedToHost()
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := HostEnds(nil, nil, []Attachment{{Network: "net", Plugins: swept("loopback")}})
	if err == nil || !strings.Contains(err.Error(), "no interface but lo") {
		t.Errorf("only lo: %v", err)
	}
}
