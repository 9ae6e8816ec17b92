package inprocess

import (
	"encoding/json"
	"fmt"
	"net"
	"reflect"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/expect"
)

// filled returns a result with every field.
func filled() *types100.Result {
	scope, table := 253, 0
	r := oneAddress()
	r.Interfaces[0].SocketPath, r.Interfaces[0].PciID = "/run/<a>&b", "0000:00:1f.6"
	r.Interfaces = append(r.Interfaces, &types100.Interface{}, nil)
	r.IPs = append(r.IPs, &types100.IPConfig{}, nil)
	r.Routes = append(r.Routes, &types.Route{
		Dst: net.IPNet{IP: net.ParseIP("fd00::"), Mask: net.CIDRMask(64, 128)}, GW: net.ParseIP("fe80::1"),
		MTU: 9000, AdvMSS: 1, Priority: 100_000_000, Table: &table, Scope: &scope,
	}, &types.Route{}, nil)
	r.DNS = types.DNS{Nameservers: []string{"10.0.0.1"}, Domain: "é\u2028\"", Search: []string{"a", ""}, Options: []string{"ndots:5"}}
	return r
}

func TestEncodedResultIsItsMarshalJSON(t *testing.T) {
	results := []*types100.Result{
		filled(), oneAddress(), {}, {CNIVersion: "1.0.0"}, {DNS: types.DNS{Search: []string{}}}, {DNS: types.DNS{Domain: "d"}},
		{Interfaces: []*types100.Interface{}, IPs: []*types100.IPConfig{}, Routes: []*types.Route{}}, nil,
		{Interfaces: []*types100.Interface{nil}},
		{IPs: []*types100.IPConfig{{Gateway: net.IP{1, 2, 3}}}}, // an error
		{Routes: []*types.Route{{GW: net.IP{1}}}},
	}
	for i, r := range results {
		want, wantErr := json.Marshal(r)
		got, err := encode(r)
		expect.Same(t, "error", asText(err), asText(wantErr))
		if string(got) != string(want) {
			t.Errorf("result %d:\ngot  %s\nwant %s", i, got, want)
		}
	}
}

func asText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestEncodedResultOfEveryVersion(t *testing.T) {
	for _, v := range version.All.SupportedVersions() {
		r := expect.Value(oneAddress().GetAsVersion(v))(t)
		want := expect.Value(json.Marshal(r))(t)
		expect.Same(t, v, string(expect.Value(encode(r))(t)), string(want))
	}
}

// TestEncodedResultHasEveryField fails if the CNI project's library adds a field. It is
// not lost then, but encoding takes longer.
func TestEncodedResultHasEveryField(t *testing.T) {
	for _, one := range []struct{ ours, theirs any }{
		{encoded{}, types100.Result{}}, {encodedDNS{}, types.DNS{}}, {encodedInterface{}, types100.Interface{}},
		{encodedIP{}, types100.IPConfig{}}, {encodedRoute{}, types.Route{}},
	} {
		expect.Same(t, fmt.Sprintf("fields of %T", one.theirs), reflect.TypeOf(one.ours).NumField(), reflect.TypeOf(one.theirs).NumField())
	}
	expect.Same(t, "all fields are known", knowsAllFields(), true)
}
