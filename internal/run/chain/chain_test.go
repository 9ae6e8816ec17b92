package chain

import (
	"context"
	"encoding/json"
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
	if err != nil || result.IPs[0].Address.String() != "10.0.0.3/24" || string(partial) != last {
		t.Errorf("got %v, %s, %v", result, partial, err)
	}
	expect.Same(t, "calls", told, []string{first, last})
	var request struct{ PrevResult json.RawMessage }
	if err := json.Unmarshal(r.calls[1].Stdin, &request); err != nil || string(request.PrevResult) != first {
		t.Errorf("b got %s, %v, want %s", request.PrevResult, err, first)
	}
	cached := c.cached(container("eth0")).Result()
	expect.Same(t, "cached", string(cached), `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.3/24"}]}`)
}
