package misspelt

import (
	"encoding/json"
	"fmt"
	"net"
	"reflect"
	"strings"
	"testing"
)

type plain struct {
	Gateway net.IP `json:"gateway"`
	Subnet  string `json:"subnet"`
}

type embedded struct {
	MTU  int `json:"mtu,omitempty"`
	Mode string
}

// example has fields of all kinds.
type example struct {
	embedded
	*plain
	IsGateway bool              `json:"isGateway"`
	Ranges    [][]plain         `json:"ranges"`
	IPAM      *plain            `json:"ipam"`
	Sysctl    map[string]string `json:"sysctl"`
	Raw       json.RawMessage   `json:"raw"`
	Any       any               `json:"anything"`
	Hidden    string            `json:"-"`
	hidden    plain
}

func TestOf(t *testing.T) {
	below := Names{"gateway": nil, "subnet": nil}
	want := Names{
		"mtu": nil, "Mode": nil, "gateway": nil, "subnet": nil, "isGateway": nil, "ranges": below, "ipam": below,
		"sysctl": nil, "raw": nil, "anything": nil,
	}
	if got := Of(example{hidden: plain{}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, v := range []any{nil, 1, "", map[string]plain{}, net.IPNet{}.IP, json.RawMessage{}} {
		if got := Of(v); got != nil {
			t.Errorf("%T: got %v", v, got)
		}
	}
}

func TestFind(t *testing.T) {
	for config, want := range map[string]string{
		`{}`: "",
		`{"isGateway": true, "mtu": 1, "Mode": "", "ipam": {"subnet": "", "gateway": ""}}`: "",
		`{"ISGATEWAY": true, "MTU": 1, "mode": "", "Ipam": {"SubNet": ""}}`:                "",

		`{"isGatway": true}`:                           "isGatway: isGateway",
		`{"is-gateway": true, "isGatewya": true}`:      "is-gateway: isGateway\nisGatewya: isGateway",
		`{"Gatway": ""}`:                               "Gatway: gateway",
		`{"mut": 1}`:                                   "mut: mtu",
		`{"ipam": {"subnt": ""}}`:                      "ipam.subnt: ipam.subnet",
		`{"IPAM": {"subnt": ""}}`:                      "ipam.subnt: ipam.subnet",
		`{"ranges": [[{"subnet": ""}, {"subne": 1}]]}`: "ranges.subne: ranges.subnet",
		`{"ipams": {"subnt": ""}}`:                     "ipams: ipam",

		// Unknown, and near to nothing.
		`{"mac": "", "m": 1, "note": "", "comment": "", "isDefaultGateway": true, "network": ""}`: "",
		`{"_mtu": 1, "//mtu": 1, "#mtu": 1, "$mtu": 1, "x-mtu": 1, "": 1, "mtu:": 1, "mtu/": 1}`:  "",
		// Below a value that can be anything.
		`{"sysctl": {"mtuu": "1"}, "raw": {"subnt": 1}, "anything": {"subnt": 1}}`: "",
		// Of another type, which the plugin refuses.
		`{"ipam": "subnt", "ranges": [1, null, "subnt"]}`: "",
		`null`: "", `[]`: "", `"isGatway"`: "", `{`: "",
	} {
		var lines []string
		for _, f := range Find(json.RawMessage(config), Of(example{})) {
			lines = append(lines, fmt.Sprintf("%s: %s", f.Name, f.Nearest))
		}
		if got := strings.Join(lines, "\n"); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", config, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for pair, want := range map[[2]string]int{
		{"", ""}: 0, {"", "abc"}: 3, {"subnet", "subnet"}: 0, {"subnet", "subnets"}: 1, {"subnet", "sbunet"}: 1,
		{"subnet", "sunbet"}: 1, {"subnet", "submit"}: 2, {"mtu", "mac"}: 2, {"größe", "grösse"}: 2,
	} {
		for _, p := range [][2]string{pair, {pair[1], pair[0]}} {
			if got := distance(p[0], p[1]); got != want {
				t.Errorf("%q to %q: got %d, want %d", p[0], p[1], got, want)
			}
		}
	}
}

func FuzzFind(f *testing.F) {
	f.Add(`{"isGatway": [[{}]], "ipam": {"subnt": null}}`)
	f.Fuzz(func(t *testing.T, config string) {
		known := Of(example{})
		for _, found := range Find(json.RawMessage(config), known) {
			if found.Name == found.Nearest || found.Nearest == "" {
				t.Errorf("%q: got %+v", config, found)
			}
		}
	})
}
