package ipam

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/plugin"
)

func request(conf, args string) *plugin.Request {
	return &plugin.Request{Type: "static", CNIVersion: "1.0.0", Config: json.RawMessage(conf), Args: args}
}

func TestAdd(t *testing.T) {
	const ipam = `"ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}, {"address": "fd00::2/64"}]}`
	tests := map[string]struct{ conf, args, want string }{
		"configured": {`{"ipam": {"addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}],
			"routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.1.0.53"]}}}`, "",
			`{"ips": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}], "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.1.0.53"]}}`},
		"CNI_ARGS beside them": {`{` + ipam + `}`, "IP=10.2.0.2/24, fd00:2::2/64;GATEWAY=10.2.0.1,fd00::1",
			`{"ips": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}, {"address": "fd00::2/64", "gateway": "fd00::1"},
				{"address": "10.2.0.2/24", "gateway": "10.2.0.1"}, {"address": "fd00:2::2/64"}]}`},
		"args instead": {`{` + ipam + `, "args": {"cni": {"ips": ["10.3.0.2/24"]}}}`, "IP=10.2.0.2/24",
			`{"ips": [{"address": "10.3.0.2/24"}]}`},
		"the runtime's instead": {`{` + ipam + `, "args": {"cni": {"ips": ["10.3.0.2/24"]}}, "runtimeConfig": {"ips": ["10.4.0.2/24", "fd00:4::2/64"]}}`, "",
			`{"ips": [{"address": "10.4.0.2/24"}, {"address": "fd00:4::2/64"}]}`},
		"IPv4 in the form of IPv6": {`{"ipam": {"addresses": [{"address": "::ffff:10.1.0.2/120"}]}}`, "",
			`{"ips": [{"address": "10.1.0.2/24"}]}`},
		"none": {`{"ipam": {}}`, "", `{}`},
	}
	for name, test := range tests {
		result, err := Static{}.Add(t.Context(), request(test.conf, test.args))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		data := expect.Value(json.Marshal(result))(t)
		var got, want map[string]any
		expect.NoError(t, errors.Join(json.Unmarshal(data, &got), json.Unmarshal([]byte(test.want), &want)))
		want["cniVersion"] = types100.ImplementedSpecVersion
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %s\nwant %s", name, data, test.want)
		}
	}
}

func TestAddErrors(t *testing.T) {
	const form = ` is not an address with the length of its subnet, as in 10.1.0.2/24: `
	tests := map[string]struct {
		conf, args, want string
		code             uint
	}{
		"no ipam":      {`{}`, "", `"ipam" is missing`, types.ErrInvalidNetworkConfig},
		"address":      {`{"ipam": {"addresses": [{"address": "10.1.0.2"}]}}`, "", `"ipam.addresses": "10.1.0.2"` + form, types.ErrInvalidNetworkConfig},
		"args":         {`{"ipam": {}, "args": {"cni": {"ips": ["x"]}}}`, "", `"args.cni.ips": "x"` + form, types.ErrInvalidNetworkConfig},
		"runtime":      {`{"ipam": {}, "runtimeConfig": {"ips": ["10.1.0.2/33"]}}`, "", `"runtimeConfig.ips": "10.1.0.2/33"` + form, types.ErrInvalidNetworkConfig},
		"CNI_ARGS":     {`{"ipam": {}}`, "IP=10.1.0.2", `"IP in CNI_ARGS": "10.1.0.2"` + form, types.ErrInvalidNetworkConfig},
		"gateway":      {`{"ipam": {}}`, "GATEWAY=x", `"GATEWAY in CNI_ARGS": `, types.ErrInvalidNetworkConfig},
		"unknown args": {`{"ipam": {}}`, "X=y", `CNI_ARGS: `, types.ErrInvalidEnvironmentVariables},
		"mapped":       {`{"ipam": {"addresses": [{"address": "::ffff:10.1.0.2/64"}]}}`, "", `"ipam.addresses": "::ffff:10.1.0.2/64" is an IPv4 address in the form of IPv6`, types.ErrInvalidNetworkConfig},
		"no JSON":      {`[]`, "", `configuration of plugin "static"`, types.ErrDecodingFailure},
	}
	for name, test := range tests {
		_, err := Static{}.Add(t.Context(), request(test.conf, test.args))
		e := &types.Error{}
		if !errors.As(err, &e) || e.Code != test.code || !strings.HasPrefix(e.Msg, test.want) {
			t.Errorf("%s: got %v, want %s (code %d)", name, err, test.want, test.code)
		}
	}
}

func TestOldVersionsHaveOneAddressPerFamily(t *testing.T) {
	r := request(`{"ipam": {"addresses": [{"address": "10.1.0.2/24"}, {"address": "fd00::2/64"}, {"address": "10.2.0.2/24"}]}}`, "")
	r.CNIVersion = "0.2.0"
	_, err := Static{}.Add(t.Context(), r)
	if want := "CNI version 0.2.0 does not have more than one address per family"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	r.Config = json.RawMessage(`{"ipam": {"addresses": [{"address": "10.1.0.2/24"}, {"address": "fd00::2/64"}]}}`)
	if _, err := (Static{}).Add(t.Context(), r); err != nil {
		t.Error(err)
	}
}

func TestCheck(t *testing.T) {
	const conf = `{"ipam": {"addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}, {"address": "fd00::2/64"}]}}`
	tests := map[string]struct{ ips, want string }{
		"as it was":       {`[{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}, {"address": "fd00::2/64", "gateway": "fd00::1"}]`, ""},
		"no address":      {`[{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}]`, ""},
		"another gateway": {`[{"address": "fd00::2/64"}, {"address": "10.1.0.2/24", "gateway": "10.1.0.7"}]`, "the gateway of address 10.1.0.2/24 is 10.1.0.7, not 10.1.0.1"},
		"no gateway":      {`[{"address": "fd00::2/64"}, {"address": "10.1.0.2/24"}]`, "the gateway of address 10.1.0.2/24 is <nil>, not 10.1.0.1"},
	}
	for name, test := range tests {
		r := request(conf, "")
		r.PrevResult = &types100.Result{}
		expect.NoError(t, json.Unmarshal([]byte(`{"cniVersion": "1.0.0", "ips": `+test.ips+`}`), r.PrevResult))
		got := ""
		if err := (Static{}).Check(t.Context(), r); err != nil {
			got = err.Error()
		}
		expect.Same(t, name, got, test.want)
	}
	err := Static{}.Check(t.Context(), request(conf, ""))
	if want := "prevResult is missing: there is nothing to check against"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestDelOfAnything(t *testing.T) {
	if err := (Static{}).Del(context.Background(), request(`{}`, "")); err != nil {
		t.Error(err)
	}
}
