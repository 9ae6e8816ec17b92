package observed

import (
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/record"
)

func result(t *testing.T, text string) *types100.Result {
	t.Helper()
	var r types100.Result
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

func has(gateway string, prefixes ...string) Interface {
	i := Interface{}
	if gateway != "" {
		i.Gateways = []netip.Addr{netip.MustParseAddr(gateway)}
	}
	for _, p := range prefixes {
		i.Addresses = append(i.Addresses, netip.MustParsePrefix(p))
	}
	return i
}

func seen(ifName, prefix, gateway string) record.ObservedAddress {
	a := record.ObservedAddress{Interface: ifName, Prefix: netip.MustParsePrefix(prefix)}
	if gateway != "" {
		a.Gateway = netip.MustParseAddr(gateway)
	}
	return a
}

// TestObserved: the addresses found, and the result with them. Applied to their own
// result once more they change nothing.
func TestObserved(t *testing.T) {
	const bridge = `{"cniVersion": "1.0.0", "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/c"}], "ips": [
		{"interface": 0, "address": "10.1.0.1/24"}, {"interface": 1, "address": "10.1.0.2/24", "gateway": "10.1.0.1"}, {"interface": 1, "address": "fd00::2/64"}]}`
	for what, tt := range map[string]struct {
		result    string
		namespace map[string]Interface
		want      []record.ObservedAddress
		applied   string
	}{
		"unchanged": {
			bridge, map[string]Interface{"eth0": has("", "fe80::1/64", "fd00::2/64", "10.1.0.2/24")},
			[]record.ObservedAddress{seen("eth0", "10.1.0.2/24", "10.1.0.1"), seen("eth0", "fd00::2/64", "")}, bridge,
		},
		"one is gone, and others have come": {
			bridge, map[string]Interface{"eth0": has("fe80::9", "10.1.0.9/16", "fd00::2/64", "2001:db8::2/64"), "eth1": has("", "10.3.0.1/24")},
			[]record.ObservedAddress{seen("eth0", "fd00::2/64", ""), seen("eth0", "10.1.0.9/16", ""), seen("eth0", "2001:db8::2/64", "fe80::9")},
			`{"cniVersion": "1.0.0", "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/c"}], "ips": [
				{"interface": 0, "address": "10.1.0.1/24"}, {"interface": 1, "address": "fd00::2/64"},
				{"interface": 1, "address": "10.1.0.9/16"}, {"interface": 1, "address": "2001:db8::2/64", "gateway": "fe80::9"}]}`,
		},
		"the kernel has another length": {
			bridge, map[string]Interface{"eth0": has("", "10.1.0.2/32")},
			[]record.ObservedAddress{seen("eth0", "10.1.0.2/24", "10.1.0.1")},
			`{"cniVersion": "1.0.0", "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/c"}], "ips": [
				{"interface": 0, "address": "10.1.0.1/24"}, {"interface": 1, "address": "10.1.0.2/24", "gateway": "10.1.0.1"}]}`,
		},
		"none is left": {
			bridge, map[string]Interface{"eth0": has("10.1.0.1")}, nil,
			`{"cniVersion": "1.0.0", "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/c"}], "ips": [{"interface": 0, "address": "10.1.0.1/24"}]}`,
		},
		"loopback and link-local that were reported": {
			`{"cniVersion": "1.0.0", "interfaces": [{"name": "lo", "sandbox": "/c"}], "ips": [{"interface": 0, "address": "127.0.0.1/8"}, {"interface": 0, "address": "fe80::5/64"}]}`,
			map[string]Interface{"lo": has("", "127.0.0.1/8", "::1/128", "fe80::5/64", "fe80::6/64")},
			[]record.ObservedAddress{seen("lo", "127.0.0.1/8", ""), seen("lo", "fe80::5/64", "")},
			`{"cniVersion": "1.0.0", "interfaces": [{"name": "lo", "sandbox": "/c"}], "ips": [{"interface": 0, "address": "127.0.0.1/8"}, {"interface": 0, "address": "fe80::5/64"}]}`,
		},
		"a result without interfaces": {
			`{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}]}`,
			map[string]Interface{"eth0": has("10.1.0.1", "10.1.0.2/24", "10.2.0.2/24")},
			[]record.ObservedAddress{seen("eth0", "10.1.0.2/24", "10.1.0.1"), seen("eth0", "10.2.0.2/24", "10.1.0.1")},
			`{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}, {"address": "10.2.0.2/24", "gateway": "10.1.0.1"}]}`,
		},
		"an interface without a sandbox": {
			`{"cniVersion": "1.0.0", "interfaces": [{"name": "x"}, {"name": "eth0"}]}`,
			map[string]Interface{"eth0": has("", "10.1.0.2/24")},
			[]record.ObservedAddress{seen("eth0", "10.1.0.2/24", "")},
			`{"cniVersion": "1.0.0", "interfaces": [{"name": "x"}, {"name": "eth0"}], "ips": [{"interface": 1, "address": "10.1.0.2/24"}]}`,
		},
		"no interface in the container": {
			`{"cniVersion": "1.0.0", "interfaces": [{"name": "0000:04:00.5"}]}`, nil, nil,
			`{"cniVersion": "1.0.0", "interfaces": [{"name": "0000:04:00.5"}]}`,
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := result(t, tt.result)
			got, err := In(tt.namespace, r, "eth0")
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Fatalf("%+v, %v, want %+v", got, err, tt.want)
			}
			o := &record.Observed{Addresses: got}
			applied := Apply(r, "eth0", o)
			wantSame(t, "applied", applied, result(t, tt.applied))
			wantSame(t, "the result of the ADD", r, result(t, tt.result))
			wantSame(t, "applied twice", Apply(applied, "eth0", o), applied)
		})
	}
}

func wantSame(t *testing.T, what string, got, want *types100.Result) {
	t.Helper()
	texts := make([]string, 2)
	for i, r := range []*types100.Result{got, want} {
		data, err := json.MarshalIndent(r, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(data)
	}
	if texts[0] != texts[1] {
		t.Errorf("%s: %s\nwant %s", what, texts[0], texts[1])
	}
}

func TestAMissingInterfaceIsNoEmptyOne(t *testing.T) {
	r := result(t, `{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/c"}]}`)
	got, err := In(map[string]Interface{"eth1": {}}, r, "eth0")
	if missing := (*MissingError)(nil); got != nil || !errors.As(err, &missing) || missing.Name != "eth0" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestNothingObservedChangesNothing(t *testing.T) {
	r := &types100.Result{}
	if Apply(r, "eth0", nil) != r || Apply(nil, "eth0", &record.Observed{}) != nil {
		t.Error("another result")
	}
}
