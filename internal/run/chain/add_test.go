package chain

import (
	"errors"
	"testing"
)

// TestAnInvalidResultLeavesTheOneBefore for the DEL.
func TestAnInvalidResultLeavesTheOneBefore(t *testing.T) {
	const ofA = `{"cniVersion":"1.0.0"}`
	r := &recorder{answer: func(call Call) ([]byte, error) {
		return []byte(map[string]string{"a": ofA, "b": `{"interfaces":[null]}`}[call.Plugin]), nil
	}}
	c := newChain(t, r, `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "a"}, {"type": "b"}]}`)
	_, partial, err := c.Add(t.Context(), container("eth0"), nil)
	var bad *ResultError
	if !errors.As(err, &bad) || bad.Plugin != "b" || !errors.Is(err, ErrInvalidResult) || string(partial) != ofA {
		t.Errorf("got %s, %v", partial, err)
	}
}
