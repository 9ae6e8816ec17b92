package backend_test

import (
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/thick/backend"
	"github.com/embedcni/cni/thick/server"
)

// TestPlan: what a call waits for is what its pod has beside others.
func TestPlan(t *testing.T) {
	s := newStage(t, testhost.ListOfTypes("one", "p"), testhost.ListOfTypes("two", "q", "r"))
	plain, annotated := backend.New(s.runtime, backend.Options{}), s.annotated("a,b", backend.Options{})
	node := delegating("node", `{"name": "cluster", "type": "p", "ipam": {"type": "static"}}`, delegate("more", "q"))
	loaded := `{"cniVersion": "1.1.0", "name": "loaded", "type": "shim"}`
	for _, c := range []struct {
		name, verb string
		b          *backend.Backend
		config     string
		want       server.Use
	}{
		{"networks of the request", "ADD", plain, node, server.Use{Networks: []string{"cluster", "more"}, Plugins: []string{"p", "static", "q"}}},
		{"networks of the pod", "ADD", annotated, node, server.Use{Networks: []string{"a", "b"}, Plugins: []string{"q", "r"}}},
		{"loaded networks", "ADD", plain, loaded, server.Use{Networks: []string{"one", "two"}, Plugins: []string{"p", "q", "r"}}},
		{"STATUS", "STATUS", annotated, node, server.Use{Networks: []string{"cluster", "more"}, Plugins: []string{"p", "static", "q"}}},
		{"GC of loaded networks", "GC", plain, loaded, server.Use{Networks: []string{"one", "two"}, Plugins: []string{"p", "q", "r"}}},
		{"DEL of what is not on record", "DEL", annotated, node, server.Use{Networks: []string{"cluster", "more"}, Plugins: []string{"p", "static", "q"}}},
		{"no configuration", "DEL", plain, `{"cniVersion": "1.1.0", "name": "bad", "delegates": "x"}`, server.Use{Networks: []string{"bad"}}},
	} {
		got, err := c.b.Plan(t.Context(), c.verb, s.request("c1", "eth0", c.config))
		expect.NoError(t, err)
		expect.Same(t, c.name, got, c.want)
	}
	r := s.request("c1", "eth0", delegating("node", delegate("cluster", "p")))
	expect.Value(annotated.Plan(t.Context(), "ADD", r))(t)
	expect.Value(plain.Add(t.Context(), r))(t) // which would not have found the pod's networks
	expect.Same(t, "an ADD does as it was planned", s.Took(), []string{"ADD p c1/eth0", "ADD q c1/net1", "ADD r c1/net2"})
	for _, verb := range []string{"DEL", "CHECK"} {
		got, err := plain.Plan(t.Context(), verb, s.request("c1", "eth0", string(r.Config)))
		expect.NoError(t, err)
		expect.Same(t, verb, got, server.Use{Networks: []string{"a", "second"}, Plugins: []string{"q", "r"}})
	}
	r.Plan = nil
	expect.NoError(t, plain.Del(t.Context(), r))
	_, err := s.annotated("zzz", backend.Options{}).Plan(t.Context(), "ADD", r)
	expect.Says(t, "a network that does not exist", err, "there is none")
}
