package ipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/plugin"
)

func parsed(t *testing.T, text string) *types100.Result {
	t.Helper()
	r := &types100.Result{}
	expect.NoError(t, json.Unmarshal([]byte(text), r))
	return r
}

func TestPlan(t *testing.T) {
	got, err := plan(parsed(t, `{"cniVersion": "1.1.0",
		"ips": [{"address": "10.1.0.2/24"}, {"address": "10.2.0.2/24", "gateway": "10.2.0.1"}, {"address": "10.3.0.2/24", "gateway": "10.3.0.1"}, {"address": "fd00::2/64", "gateway": "fd00::1"}],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "10.7.1.0/16", "gw": "10.1.0.9", "mtu": 1400, "advmss": 1300, "priority": 5, "table": 7, "scope": 253}]}`))
	expect.NoError(t, err)
	want := wanted{
		addresses: []netip.Prefix{
			netip.MustParsePrefix("10.1.0.2/24"), netip.MustParsePrefix("10.2.0.2/24"),
			netip.MustParsePrefix("10.3.0.2/24"), netip.MustParsePrefix("fd00::2/64"),
		},
		routes: []links.Route{
			{Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.2.0.1")},
			{Dst: netip.MustParsePrefix("::/0"), Via: netip.MustParseAddr("fd00::1")},
			{Dst: netip.MustParsePrefix("10.7.0.0/16"), Via: netip.MustParseAddr("10.1.0.9"), MTU: 1400, AdvMSS: 1300, Priority: 5, Table: 7, Scope: 253},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestPlanErrors(t *testing.T) {
	tests := map[string]string{
		`{}`: "the result has no address",
		`{"ips": [{"address": "10.1.0.2/24"}, null]}`:                                                                  "the result's address 1 is null",
		`{"ips": [{"address": "10.1.0.2/24", "gateway": "fd00::1"}]}`:                                                  `the result's address 10.1.0.2/24: the gateway "fd00::1" is of another family`,
		`{"ips": [{"address": "10.1.0.2/24"}], "routes": [null]}`:                                                      "the result's route 0 is null",
		`{"ips": [{"address": "10.1.0.2/24"}], "routes": [{"dst": "10.7.0.0/16", "gw": "fd00::1"}]}`:                   `the result's route 0: to 10.7.0.0/16: the gateway "fd00::1" is of another family`,
		`{"ips": [{"address": "10.1.0.2/24"}], "routes": [{"dst": "10.7.0.0/16", "scope": 256}]}`:                      "the result's route 0: to 10.7.0.0/16: scope 256 is not between 0 and 255",
		`{"ips": [{"address": "10.1.0.2/24"}], "routes": [{"dst": "10.7.0.0/16", "table": -1}]}`:                       "the result's route 0: to 10.7.0.0/16: a negative table, priority, mtu or advmss",
		`{"ips": [{"address": "10.1.0.2/24"}], "routes": [{"dst": "10.7.0.0/16"}, {"dst": "10.8.0.0/16", "mtu": -1}]}`: "the result's route 1: to 10.8.0.0/16: a negative table, priority, mtu or advmss",
	}
	for text, want := range tests {
		if _, err := plan(parsed(t, text)); err == nil || err.Error() != want {
			t.Errorf("%s: got %v\nwant %s", text, err, want)
		}
	}
	expect.Fails(t, "nothing is a plan", expect.Err(plan(nil)))
	noAddress := &types100.Result{IPs: []*types100.IPConfig{{}}}
	if _, err := plan(noAddress); err == nil || err.Error() != `the result's address 0: invalid address "<nil>"` {
		t.Errorf("got %v", err)
	}
}

// TestAddGivesBack: after a failure on either side the addresses are released
// once.
func TestAddGivesBack(t *testing.T) {
	boom := errors.New("boom")
	const address = `{"ips": [{"address": "10.1.0.2/24"}]}`
	tests := map[string]struct {
		result    string
		add       error
		meanwhile func() error
		verbs     []string
		want      string
	}{
		"nothing fails":       {address, nil, func() error { return nil }, []string{"ADD"}, ""},
		"the other side":      {address, nil, func() error { return boom }, []string{"ADD", "DEL"}, "boom"},
		"the other panics":    {address, nil, func() error { panic("x") }, []string{"ADD", "DEL"}, "panic: x"},
		"IPAM fails":          {"", errors.New("full"), func() error { return nil }, []string{"ADD"}, `IPAM plugin "x": full`},
		"both fail":           {"", errors.New("full"), func() error { return boom }, []string{"ADD"}, `boom; IPAM plugin "x": full`},
		"a result of no use":  {`{}`, nil, func() error { return nil }, []string{"ADD", "DEL"}, `IPAM plugin "x": the result has no address`},
		"no use, other fails": {`{}`, nil, func() error { return boom }, []string{"ADD", "DEL"}, `boom; IPAM plugin "x": the result has no address`},
	}
	for name, test := range tests {
		var verbs []string
		ctx, cancel := context.WithCancel(t.Context())
		r := &plugin.Request{Type: "t", Delegate: func(ctx context.Context, verb, typ string, _ json.RawMessage) (*types100.Result, error) {
			verbs = append(verbs, verb)
			if verb == "ADD" {
				cancel() // the release must not depend on it
				if test.add != nil {
					return nil, test.add
				}
				return parsed(t, test.result), nil
			}
			return nil, ctx.Err()
		}}
		result, err := lease(ctx, r, "x", test.meanwhile)
		got := ""
		if err != nil {
			got = err.Error()
			if e := (&types.Error{}); name == "the other panics" && errors.As(err, &e) {
				got = e.Msg
			}
		}
		if got != test.want || (result == nil) != (test.want != "") || !slices.Equal(verbs, test.verbs) {
			t.Errorf("%s: got %v, %q after %v", name, result, got, verbs)
		}
		cancel()
	}
}

func TestAddWithoutAType(t *testing.T) {
	_, err := lease(t.Context(), &plugin.Request{Type: "t"}, "", func() error { return fmt.Errorf("called") })
	e := &types.Error{}
	if want := `"ipam": plugin "t" needs an IPAM plugin: its "type" is missing`; !errors.As(err, &e) || e.Code != types.ErrInvalidNetworkConfig || e.Msg != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
