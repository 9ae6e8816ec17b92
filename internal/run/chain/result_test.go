package chain

import (
	"errors"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestFault_F10_ResultThatIsNone: any invalid output of a plugin becomes a
// typed error, before code follows a null or an index out of range.
func TestFault_F10_ResultThatIsNone(t *testing.T) {
	const intf = `"interfaces": [{"name": "eth0"}], `
	for name, test := range map[string]struct{ out, err string }{
		"empty object":          {`{}`, ""},
		"usual":                 {`{` + intf + `"ips": [{"interface": 0, "address": "10.0.0.2/24"}], "routes": [{"dst": "0.0.0.0/0"}]}`, ""},
		"no index":              {`{"ips": [{"address": "10.0.0.2/24"}]}`, ""},
		"index null":            {`{"ips": [{"interface": null, "address": "10.0.0.2/24"}]}`, ""},
		"version 0.2.0":         {`{"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.2/24"}}`, ""},
		"nothing":               {``, "unexpected end of JSON input"},
		"text":                  {`ok`, "invalid character"},
		"array":                 {`[]`, "cannot unmarshal array"},
		"index is the length":   {`{` + intf + `"ips": [{"interface": 1, "address": "10.0.0.2/24"}]}`, "ips[0] has interface index 1 of 1 interfaces"},
		"index is negative":     {`{` + intf + `"ips": [{"interface": -1, "address": "10.0.0.2/24"}]}`, "ips[0] has interface index -1 of 1 interfaces"},
		"index of no interface": {`{"ips": [{"interface": 0, "address": "10.0.0.2/24"}]}`, "ips[0] has interface index 0 of 0 interfaces"},
		"index too large":       {`{` + intf + `"ips": [{"interface": 99999999999999999999, "address": "10.0.0.2/24"}]}`, "cannot unmarshal number"},
		"index a string":        {`{` + intf + `"ips": [{"interface": "0", "address": "10.0.0.2/24"}]}`, "cannot unmarshal string"},
		"second is wrong":       {`{` + intf + `"ips": [{"address": "10.0.0.2/24"}, {"interface": 7, "address": "10.0.0.3/24"}]}`, "ips[1] has interface index 7"},
		"interface null":        {`{"interfaces": [{"name": "a"}, null]}`, "interfaces[1] is null"},
		"address null":          {`{"ips": [null]}`, "ips[0] is null"},
		"route null":            {`{"routes": [{"dst": "0.0.0.0/0"}, null]}`, "routes[1] is null"},
		"route without dst":     {`{"routes": [{"gw": "10.0.0.1"}]}`, "routes[0] has no destination"},
		"no address":            {`{"ips": [{}]}`, "ips[0] has no address"},
		"address is null":       {`{"ips": [{"address": null}]}`, "invalid CIDR address"},
		"address without size":  {`{"ips": [{"address": "10.0.0.2"}]}`, "invalid CIDR address"},
		"address empty":         {`{"ips": [{"address": ""}]}`, "invalid CIDR address"},
		"null ip4":              {`{"cniVersion": "0.2.0", "ip4": null}`, ""},
		"ip4 without address":   {`{"cniVersion": "0.2.0", "ip4": {}}`, "ip4 has no address"},
		"ip4 route without dst": {`{"cniVersion": "0.1.0", "ip4": {"ip": "10.0.0.2/24", "routes": [{}]}}`, "ip4.routes[0] has no destination"},
		"ip4 route null":        {`{"cniVersion": "0.1.0", "ip4": {"ip": "10.0.0.2/24", "routes": [null]}}`, "ip4.routes[0] is null"},
		"ip4 today":             {`{"cniVersion": "1.0.0", "ip4": "not a thing of this version"}`, ""},
		"ips of old":            {`{"cniVersion": "0.2.0", "ips": [{"interface": 3, "address": "10.0.0.2/24"}]}`, "ips[0] has interface index 3 of 0 interfaces"},
		"ip6 without address":   {`{"cniVersion": "0.2.0", "ip6": {"gateway": "::1"}}`, "ip6 has no address"},
	} {
		err := ValidateResult([]byte(test.out), "1.0.0")
		switch {
		case test.err == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.err != "" && (!errors.Is(err, ErrInvalidResult) || !strings.Contains(err.Error(), test.err)):
			t.Errorf("%s: error %v, want ErrInvalidResult with %q", name, err, test.err)
		}
	}
}

// TestResultGetsTheConfigurationsVersion if it has none, as in libcni.
func TestResultGetsTheConfigurationsVersion(t *testing.T) {
	for _, test := range []struct{ out, version, want string }{
		{`{"cniVersion": "0.4.0", "ips": []}`, "1.0.0", `{"cniVersion": "0.4.0", "ips": []}`},
		{`{"ips": [], "n": 9007199254740993}`, "1.0.0", `{"ips":[],"n":9007199254740993,"cniVersion":"1.0.0"}`},
		{`{"cniVersion": "", "ips": []}`, "1.0.0", `{"cniVersion":"1.0.0","ips":[]}`},
		{`{"cniVersion": null, "ips": []}`, "1.0.0", `{"cniVersion":"1.0.0","ips":[]}`},
		{`{"cniVersion": 1, "ips": []}`, "1.0.0", `{"cniVersion":"1.0.0","ips":[]}`},
		{`{}`, "", `{"cniVersion":"0.1.0"}`},
		{`null`, "1.0.0", `{"cniVersion":"1.0.0"}`},
		{`[]`, "1.0.0", ""},
	} {
		got, err := withVersion([]byte(test.out), test.version)
		expect.That(t, string(got) == test.want && (err == nil) == (test.want != ""), "%s: %s, %v, want %s", test.out, got, err, test.want)
	}
}
