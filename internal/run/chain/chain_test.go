package chain

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/conflist"
)

// recorder is a Runner that answers from a function and keeps the calls.
type recorder struct {
	calls  []Call
	answer func(Call) ([]byte, error)
	valid  bool // answers are known to be results
}

func (r *recorder) run(_ context.Context, call Call) (Output, error) {
	r.calls = append(r.calls, call)
	if r.answer == nil {
		return Output{Stdout: []byte(`{"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]}`), Valid: r.valid}, nil
	}
	out, err := r.answer(call)
	return Output{Stdout: out, Valid: r.valid}, err
}

// names returns the calls as "ADD a".
func (r *recorder) names() (names []string) {
	for _, c := range r.calls {
		names = append(names, c.Verb+" "+c.Plugin)
	}
	return names
}

func newChain(t testing.TB, r *recorder, list string) *Chain {
	t.Helper()
	parsed := expect.Value(conflist.Parse([]byte(list)))(t)
	return &Chain{List: parsed, CacheDir: t.TempDir(), Path: []string{"/plugins"}, Run: r.run}
}

func container(ifName string) *Attachment {
	return &Attachment{RuntimeConf: libcni.RuntimeConf{ContainerID: "c1", NetNS: "/run/netns/c1", IfName: ifName}}
}

// TestAKnownResultIsPassedOnUnchanged: to the next plugin, to the
// observer, and at the end.
func TestAKnownResultIsPassedOnUnchanged(t *testing.T) {
	const first, last = `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}],"of":"a"}`, `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.3/24"}],"of":"b"}`
	r := &recorder{valid: true, answer: func(call Call) ([]byte, error) {
		return []byte(map[string]string{"a": first, "b": last}[call.Plugin]), nil
	}}
	c := newChain(t, r, `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "a"}, {"type": "b"}]}`)
	var told []string
	c.OnResult = func(result json.RawMessage) error { told = append(told, string(result)); return nil }
	result, partial, err := c.Add(context.Background(), container("eth0"), nil)
	expect.That(t, err == nil && result.IPs[0].Address.String() == "10.0.0.3/24" && string(partial) == last, "got %v, %s, %v", result, partial, err)
	expect.Same(t, "calls", told, []string{first, last})
	var request struct{ PrevResult json.RawMessage }
	err = json.Unmarshal(r.calls[1].Stdin, &request)
	expect.That(t, err == nil && string(request.PrevResult) == first, "b got %s, %v, want %s", request.PrevResult, err, first)
	cached := c.cached(container("eth0")).Result()
	expect.Same(t, "cached", string(cached), `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.3/24"}]}`)
}

// TestAnInvalidResultLeavesTheOneBefore for the DEL.
func TestAnInvalidResultLeavesTheOneBefore(t *testing.T) {
	const ofA = `{"cniVersion":"1.0.0"}`
	r := &recorder{answer: func(call Call) ([]byte, error) {
		return []byte(map[string]string{"a": ofA, "b": `{"interfaces":[null]}`}[call.Plugin]), nil
	}}
	c := newChain(t, r, `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "a"}, {"type": "b"}]}`)
	_, partial, err := c.Add(t.Context(), container("eth0"), nil)
	var bad *ResultError
	expect.That(t, errors.As(err, &bad) && bad.Plugin == "b" && errors.Is(err, ErrInvalidResult) && string(partial) == ofA,
		"got %s, %v", partial, err)
}

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

// TestCheckAndDelGetTheConfigurationsVersion of a result that a plugin has printed in another
// one: plugins decode it as that. A result of that version stays as it was printed.
func TestCheckAndDelGetTheConfigurationsVersion(t *testing.T) {
	for printed, want := range map[string]string{
		`{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.0.0.2/24"}],"dns":{}}`: `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}`,
		`{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24"}]}`:                        `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}`,
		`{"cniVersion":"1.0.0","later":1.0}`:                                              `{"cniVersion":"1.0.0","later":1.0}`,
		`{"cniVersion":"9.0.0"}`:                                                          `{"cniVersion":"9.0.0"}`,
		`{"dns":{}}`:                                                                      `{"dns":{}}`,
	} {
		r := &recorder{}
		c := newChain(t, r, `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "a"}]}`)
		a := container("eth0")
		expect.NoError(t, c.Check(t.Context(), a, Partial(printed)), c.Del(t.Context(), a, Partial(printed)))
		r.calls = append(r.calls, expect.Value(c.CheckCalls(a, Partial(printed))(0))(t))
		expect.Same(t, "calls", len(r.calls), 3)
		for _, call := range r.calls {
			var request struct{ PrevResult json.RawMessage }
			expect.NoError(t, json.Unmarshal(call.Stdin, &request))
			expect.Same(t, call.Verb+" after "+printed, string(request.PrevResult), want)
		}
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
