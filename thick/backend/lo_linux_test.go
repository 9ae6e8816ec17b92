package backend_test

import (
	"context"
	"slices"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/thick/backend"
	"github.com/embedcni/cni/thick/server"
)

// loRequest is the call with which containerd sets the loopback interface up: the shim is
// installed as the plugin loopback.
const loRequest = `{"cniVersion": "0.3.1", "name": "cni-loopback", "type": "loopback"}`

// podRequest is the call for the loaded networks.
const podRequest = `{"cniVersion": "1.1.0", "name": "node", "type": "shim"}`

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}

// TestARequestForLoIsForTheLoopbackAlone: the networks that are loaded, and those of the pod,
// are for the other interface, whichever of the two is asked for first.
func TestARequestForLoIsForTheLoopbackAlone(t *testing.T) {
	for name, opts := range map[string][]cni.Opt{
		"no loopback is loaded": {testhost.ListOfTypes("one", "p")},
		"a loopback is loaded":  {cni.WithLoNetwork, testhost.ListOfTypes("one", "p")},
	} {
		for _, loFirst := range []bool{true, false} {
			t.Run(name, func(t *testing.T) { loAndPod(t, opts, loFirst) })
		}
	}
}

func loAndPod(t *testing.T, opts []cni.Opt, loFirst bool) {
	s := newStage(t, append(opts, cni.WithBuiltinFallback())...)
	statuses := 0
	b := s.annotated("a", backend.Options{OnStatus: func(context.Context, *server.Request, string) error { statuses++; return nil }})
	loopback, pod := s.request("c1", "lo", loRequest), s.request("c1", "eth0", podRequest)
	order := []*server.Request{pod, loopback}
	if loFirst {
		order = []*server.Request{loopback, pod}
	}
	for _, r := range order {
		result, err := b.Add(t.Context(), r)
		want := map[string][]string{"lo": {"127.0.0.1/8", "::1/128"}, "eth0": {"10.0.0.1/24"}}[r.IfName]
		expect.Same(t, r.IfName, addresses(t, result, err), want)
	}
	var names []string
	for _, a := range expect.Value(s.runtime.Attachments("c1"))(t) {
		names = append(names, a.IfName)
	}
	expect.Same(t, "interfaces on record", sorted(names), []string{"eth0", "lo", "net1"})
	expect.Same(t, "plugins", s.Took(), []string{"ADD p c1/eth0", "ADD q c1/net1"})
	expect.Same(t, "statuses", statuses, 1)
	for _, r := range order {
		expect.NoError(t, b.Del(t.Context(), r))
		expect.NoError(t, b.Del(t.Context(), r))
	}
	expect.Same(t, "recorded", len(s.recorded()), 0)
	for _, line := range s.Took() {
		expect.That(t, line == "DEL p c1/eth0" || line == "DEL q c1/net1", "a DEL of lo ran %q", line)
	}
}

// TestASecondADDOfLoIsRefused, as that of any interface.
func TestASecondADDOfLoIsRefused(t *testing.T) {
	s := newStage(t)
	b := backend.New(s.runtime, backend.Options{})
	r := s.request("c1", "lo", loRequest)
	expect.Value(b.Add(t.Context(), r))(t)
	_, err := b.Add(t.Context(), r)
	expect.Same(t, "a second ADD", code(t, err), uint(999))
	expect.NoError(t, b.Del(t.Context(), r))
}
