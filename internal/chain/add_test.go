package chain

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
)

// TestAPartIsCachedWithTheLast: an attachment made in two steps does not exist
// before the second.
func TestAPartIsCachedWithTheLast(t *testing.T) {
	r := &recorder{}
	c := newChain(t, r, `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "a"}, {"type": "b"}]}`)
	var ended []string
	c.OnEnd = func(_ context.Context, verb string) error { ended = append(ended, verb); return nil }
	a := container("eth0")
	_, partial, err := c.Add(t.Context(), a, Part{To: 1})
	if err != nil {
		t.Fatal(err)
	}
	if cached, err := c.cached(a).Load(); cached != nil || err != nil {
		t.Errorf("the first step cached %v, %v", cached, err)
	}
	result, _, err := c.Add(t.Context(), a, Part{From: 1, To: 2, Result: partial})
	if err != nil || result.IPs[0].Address.String() != "10.0.0.2/24" {
		t.Errorf("got %v, %v", result, err)
	}
	if got, want := r.names(), []string{"ADD a", "ADD b"}; !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
	if prev := decoded(t, r.calls[1].Stdin).(map[string]any)["prevResult"]; !reflect.DeepEqual(prev, decoded(t, partial)) {
		t.Errorf("b got %v, want %s", prev, partial)
	}
	if cached, err := c.cached(a).Load(); cached == nil || err != nil {
		t.Errorf("the second step cached %v, %v", cached, err)
	}
	if want := []string{"ADD", "ADD"}; !slices.Equal(ended, want) {
		t.Errorf("ends %q, want %q", ended, want)
	}
}

// TestAnInvalidResultLeavesTheOneBefore for the DEL.
func TestAnInvalidResultLeavesTheOneBefore(t *testing.T) {
	const ofA = `{"cniVersion":"1.0.0"}`
	r := &recorder{answer: func(call Call) ([]byte, error) {
		return []byte(map[string]string{"a": ofA, "b": `{"interfaces":[null]}`}[call.Plugin]), nil
	}}
	c := newChain(t, r, `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "a"}, {"type": "b"}]}`)
	_, partial, err := c.Add(t.Context(), container("eth0"), Part{})
	var bad *ResultError
	if !errors.As(err, &bad) || bad.Plugin != "b" || !errors.Is(err, ErrInvalidResult) || string(partial) != ofA {
		t.Errorf("got %s, %v", partial, err)
	}
}
