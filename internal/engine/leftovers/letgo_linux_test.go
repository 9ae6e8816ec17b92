package leftovers

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
)

// chained returns an attachment of plugins of these types. The program registered
// the type "callers".
func chained(all ...string) *Attachment {
	a := &Attachment{
		List: &libcni.NetworkConfigList{Name: "net"},
		Ran:  Ran{IsRegistered: func(typ string) bool { return typ == "callers" }},
	}
	for _, typ := range all {
		a.List.Plugins = append(a.List.Plugins, &libcni.PluginConfig{Network: &types.PluginConf{Type: typ}})
	}
	return a
}

// TestTiedToHost: the host shows the end of a namespace only if each plugin
// makes a veth pair, or leaves nothing that the sweep cannot find.
func TestTiedToHost(t *testing.T) {
	for what, test := range map[string]struct {
		plugins []string
		want    string // empty means tied
	}{
		"bridge":                 {[]string{"bridge"}, ""},
		"ptp with more":          {[]string{"ptp", "portmap", "firewall"}, ""},
		"macvlan":                {[]string{"macvlan"}, `"macvlan" keeps no interface on the host`},
		"loopback first":         {[]string{"loopback", "bridge"}, `"loopback" keeps no interface on the host`},
		"two veth pairs":         {[]string{"bridge", "ptp"}, `"ptp" may have more`},
		"a device of the host's": {[]string{"bridge", "host-device"}, `"host-device" may have more`},
		"the caller's":           {[]string{"callers"}, `"callers" is the caller's`},
		"one that is not swept":  {[]string{"bridge", "mesh"}, `"mesh" may have more`},
	} {
		err := chained(test.plugins...).tiedToHost()
		expect.That(t, (err == nil) == (test.want == "") && (err == nil || strings.Contains(err.Error(), test.want)), "%s: %v", what, err)
	}
	expect.Says(t, "only lo", expect.Err(hostEnds(nil, nil, []*Attachment{chained("loopback")})), "no interface but lo")
}
