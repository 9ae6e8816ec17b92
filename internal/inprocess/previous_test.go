package inprocess

import (
	"encoding/json"
	"fmt"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/expect"
)

func TestPreviousIsDecodeResult(t *testing.T) {
	var p, none *Previous = &Previous{}, nil
	for _, version := range []string{"1.0.0", "0.4.0", "1.1.0"} {
		for _, data := range []string{
			"", "null", "{", "7", `{}`, `{"cniVersion":"1.0.0"}`, `{"cniVersion":"9.9"}`, `{"cniVersion":"1.9"}`, `{"cniVersion":"1.0.0","ips":7}`,
			`{"cniVersion":"1.0.0","cniVersion":"0.4.0","interfaces":[{"name":"a"}]}`, `{"cniVersion":"1.0.0","CNIVersion":""}`,
			`{"cniVersion":"1.1.0","interfaces":[{"name":"a"},null],"ips":[null,{"address":"10.0.0.2/24"}],"routes":[null],"dns":{"domain":"d"}}`,
			string(expect.Value(encode(oneAddress()))(t)), string(expect.Value(json.Marshal(filled()))(t)),
		} {
			want, wantErr := DecodeResult(version, json.RawMessage(data))
			for range 2 {
				for _, p := range []*Previous{p, none} {
					got, err := p.decode(version, json.RawMessage(data))
					expect.Same(t, fmt.Sprintf("error of %q", data), asText(err), asText(wantErr))
					expect.Same(t, "nil", got == nil, want == nil)
					expect.Same(t, "result", asJSON(t, got), asJSON(t, want))
				}
			}
		}
	}
}

// TestAPreviousResultIsTheCallersOwn: changes to it are not seen by the next plugin.
func TestAPreviousResultIsTheCallersOwn(t *testing.T) {
	var p Previous
	added := oneAddress()
	added.CNIVersion = "1.1.0"
	want := string(expect.Value(encode(added))(t))
	for range 3 {
		request := []byte(want)
		got := expect.Value(p.decode("1.0.0", request))(t)
		clear(request)
		expect.Same(t, "result", string(expect.Value(encode(got))(t)), want)
		got.CNIVersion, got.Interfaces[0].Name, *got.IPs[0].Interface = "", "changed", 5
		got.IPs[0].Address.IP[15%len(got.IPs[0].Address.IP)]++
		got.IPs[0].Gateway[0]++
		got.Routes[0].MTU, got.DNS.Nameservers[0] = 1, "changed"
		got.Interfaces = append(got.Interfaces[:1], &types100.Interface{})
	}
	other := expect.Value(p.decode("1.0.0", []byte(`{"cniVersion":"1.0.0"}`)))(t)
	expect.Same(t, "interfaces of another result", len(other.Interfaces), 0)
}
