package plugin_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"reflect"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/plugin"
)

// wantError checks that an error is the specification's, with these fields.
func wantError(t *testing.T, err error, want types.Error) {
	t.Helper()
	var got *types.Error
	if !errors.As(err, &got) || *got != want {
		t.Errorf("got %+v, want %+v", err, want)
	}
}

func TestErrorfIsAnErrorOfTheSpecificationAndItsCause(t *testing.T) {
	coded := plugin.Errorf(types.ErrTryAgainLater, "open %s: %w", "x", fs.ErrNotExist)
	want := types.Error{Code: types.ErrTryAgainLater, Msg: "open x: file does not exist"}
	wantError(t, coded, want)
	expect.Same(t, "text", coded.Error(), want.Msg)
	expect.Is(t, coded, fs.ErrNotExist)
	expect.Same(t, "an error of every kind", errors.As(coded, new(*net.OpError)), false)
	wantError(t, fmt.Errorf("around: %w", coded), want)
}

// TestErrorfGivesACodeToAnErrorThatHasAnother: the outer code is the plugin's,
// and the inner error can still be matched.
func TestErrorfGivesACodeToAnErrorThatHasAnother(t *testing.T) {
	inner := &types.Error{Code: 7, Msg: "inner", Details: "why"}
	outer := plugin.Errorf(100, "outer: %w", inner)
	wantError(t, outer, types.Error{Code: 100, Msg: "outer: inner; why"})
	expect.Is(t, outer, inner)
}

func TestDecode(t *testing.T) {
	r := &plugin.Request{Type: "mark", Config: json.RawMessage(`{"type": "mark", "mark": 7}`)}
	var conf struct{ Mark int }
	expect.NoError(t, r.Decode(&conf))
	expect.Same(t, "mark", conf.Mark, 7)
	r.Config = json.RawMessage(`{"mark": "seven"}`)
	wantError(t, r.Decode(&conf), types.Error{Code: types.ErrDecodingFailure, Msg: `configuration of plugin "mark": ` +
		json.Unmarshal(r.Config, &conf).Error()})
	if err := r.Decode(&conf); !errors.As(err, new(*json.UnmarshalTypeError)) {
		t.Errorf("the cause of %v is lost", err)
	}
}

func result() *types100.Result {
	prio := 5
	return &types100.Result{
		CNIVersion: "1.1.0",
		Interfaces: []*types100.Interface{{Name: "eth0", Mac: "02:00:00:00:00:01", Mtu: 1400, Sandbox: "/ns"}},
		IPs: []*types100.IPConfig{{
			Interface: types100.Int(0), Address: net.IPNet{IP: net.IP{10, 0, 0, 2}, Mask: net.CIDRMask(24, 32)}, Gateway: net.IP{10, 0, 0, 1},
		}},
		Routes: []*types.Route{{Dst: net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, GW: net.IP{10, 0, 0, 1}, Priority: 3, Table: &prio}},
		DNS:    types.DNS{Nameservers: []string{"10.0.0.1"}, Search: []string{"example"}},
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	data := expect.Value(json.Marshal(v))(t)
	return string(data)
}

// TestChainedIsACopyThatSharesNothing changes every part of the copy.
func TestChainedIsACopyThatSharesNothing(t *testing.T) {
	r := &plugin.Request{Type: "mark", PrevResult: result()}
	chained := expect.Value(r.Chained())(t)
	want := asJSON(t, result())
	expect.Same(t, "result", asJSON(t, chained), want)
	scribble(reflect.ValueOf(chained))
	expect.Same(t, "changed", asJSON(t, chained) != want, true)
	expect.Same(t, "the previous result has become", asJSON(t, r.PrevResult), want)
}

// scribble changes every reachable number, byte and string.
func scribble(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			scribble(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			scribble(v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			scribble(v.Index(i))
		}
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Int:
		v.SetInt(v.Int() + 1)
	case reflect.Uint8:
		v.SetUint(v.Uint() ^ 1)
	case reflect.Bool:
		v.SetBool(!v.Bool())
	default:
		panic(fmt.Sprintf("a result has a %s now: change it here too", v.Type()))
	}
}

func TestChainedNeedsAResult(t *testing.T) {
	result, err := (&plugin.Request{Type: "mark"}).Chained()
	wantError(t, err, types.Error{Code: types.ErrInvalidNetworkConfig, Msg: `plugin "mark" must follow another plugin: there is no result before it`})
	expect.Same(t, "result", result, nil)
}
