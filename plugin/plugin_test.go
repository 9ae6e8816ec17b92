package plugin

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
)

func TestErrorfIsAnErrorOfTheSpecificationAndItsCause(t *testing.T) {
	coded := Errorf(types.ErrTryAgainLater, "open %s: %w", "x", fs.ErrNotExist)
	want := types.Error{Code: types.ErrTryAgainLater, Msg: "open x: file does not exist"}
	var got *types.Error
	if !errors.As(coded, &got) || *got != want || coded.Error() != want.Msg {
		t.Errorf("got %+v, %q; want %+v", got, coded, want)
	}
	expect.Is(t, coded, fs.ErrNotExist)
	if errors.As(coded, new(*net.OpError)) {
		t.Error("it is an error of every kind")
	}
	if err := fmt.Errorf("around: %w", coded); !errors.As(err, &got) || *got != want {
		t.Errorf("wrapped: got %+v, want %+v", got, want)
	}
}

// TestErrorfGivesACodeToAnErrorThatHasAnother: the outer code is the plugin's,
// and the inner error can still be matched.
func TestErrorfGivesACodeToAnErrorThatHasAnother(t *testing.T) {
	inner := &types.Error{Code: 7, Msg: "inner", Details: "why"}
	outer := Errorf(100, "outer: %w", inner)
	var got *types.Error
	if want := (types.Error{Code: 100, Msg: "outer: inner; why"}); !errors.As(outer, &got) || *got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	expect.Is(t, outer, inner)
}

func TestDecode(t *testing.T) {
	r := &Request{Type: "mark", Config: json.RawMessage(`{"type": "mark", "mark": 7}`)}
	var conf struct{ Mark int }
	if err := r.Decode(&conf); err != nil || conf.Mark != 7 {
		t.Errorf("got %+v, %v", conf, err)
	}
	r.Config = json.RawMessage(`{"mark": "seven"}`)
	var got *types.Error
	want := types.Error{Code: types.ErrDecodingFailure, Msg: `configuration of plugin "mark": ` +
		json.Unmarshal(r.Config, &conf).Error()}
	if err := r.Decode(&conf); !errors.As(err, &got) || *got != want {
		t.Errorf("got %+v, want %+v", err, want)
	}
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
	r := &Request{Type: "mark", PrevResult: result()}
	chained := expect.Value(r.Chained())(t)
	want := asJSON(t, result())
	if got := asJSON(t, chained); got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	scribble(reflect.ValueOf(chained))
	if changed := asJSON(t, chained); changed == want {
		t.Fatal("nothing was changed")
	}
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
	var got *types.Error
	want := types.Error{Code: types.ErrInvalidNetworkConfig, Msg: `plugin "mark" must follow another plugin: there is no result before it`}
	if result, err := (&Request{Type: "mark"}).Chained(); !errors.As(err, &got) || *got != want || result != nil {
		t.Errorf("got %v, %v; want %+v", result, err, want)
	}
}
