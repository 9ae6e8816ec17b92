package chain

import (
	"context"
	"slices"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestCheckCallsAreTheCallsOfCheck: a comparison gets the request that CHECK sends.
func TestCheckCallsAreTheCallsOfCheck(t *testing.T) {
	r := &recorder{}
	c := newChain(t, r, `{"cniVersion": "1.0.0", "name": "net", "plugins": [
		{"type": "a", "capabilities": {"mac": true}}, {"type": "b", "f": 1.0}]}`)
	a := container("eth0")
	a.CapabilityArgs = map[string]any{"mac": "c2:11:22:33:44:55"}
	result := Partial(`{"cniVersion":"1.0.0"}`)
	expect.NoError(t, c.Check(context.Background(), a, result))
	for i, want := range r.calls {
		got := expect.Value(c.CheckCalls(a, result)(i))(t)
		got.Parsed, want.Parsed = nil, nil // a function cannot be compared
		expect.Same(t, "call", got, want)
	}
}

func TestCheckSomeAsksThosePlugins(t *testing.T) {
	for _, asked := range [][]int{{}, {0}, {1, 2}, {0, 1, 2}} {
		r := &recorder{}
		c := newChain(t, r, `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "0"}, {"type": "1"}, {"type": "2"}]}`)
		asks := func(position int) bool { return slices.Contains(asked, position) }
		expect.NoError(t, c.CheckSome(context.Background(), container("eth0"), Partial(`{}`), asks))
		var want []string
		for _, i := range asked {
			want = append(want, "CHECK "+string(rune('0'+i)))
		}
		expect.Same(t, "calls", r.names(), want)
	}
}

func TestResultsListInterfacesSince030(t *testing.T) {
	for version, want := range map[string]bool{"0.1.0": false, "0.2.0": false, "0.3.0": true, "0.3.1": true, "1.1.0": true} {
		c := newChain(t, &recorder{}, `{"cniVersion": "`+version+`", "name": "net", "plugins": [{"type": "a"}]}`)
		expect.Same(t, version, c.ListsInterfaces(), want)
	}
}
