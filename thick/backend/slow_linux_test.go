package backend_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/thick/backend"
	"github.com/embedcni/cni/thick/multinet"
	"github.com/embedcni/cni/thick/server"
)

// TestAPodWithASlowNetworkHoldsUpNoOther: twenty pods ask for a network beside the cluster's,
// whose plugin waits until it is let go. A pod of the cluster's network alone comes and goes
// meanwhile.
func TestAPodWithASlowNetworkHoldsUpNoOther(t *testing.T) {
	const pods, slots = 20, 16
	s := newStage(t)
	b := backend.New(s.runtime, backend.Options{
		Networks: func(_ context.Context, r *server.Request) (string, error) {
			if strings.HasPrefix(r.ContainerID, "slow") {
				return "storage", nil
			}
			return "", nil
		},
		Lookup: func(context.Context, *server.Request, multinet.Selection) ([]byte, error) {
			return []byte(`{"type": "q"}`), nil
		},
	})
	queued := make(chan time.Duration, 3*pods)
	srv := expect.Value(server.New(b, server.Options{Observe: func(o server.Observation) { queued <- o.Queued }}))(t)
	out := `{"cniVersion": "1.0.0"}`
	s.On("q", "ADD", scripted.Action{Block: s.Path("gate-$CNI_CONTAINERID"), Stdout: &out})
	ask := func(verb, id string) error {
		r := s.request(id, "eth0", delegating("node", delegate("cluster", "p")))
		body, err := json.Marshal(map[string]any{"config": r.Config, "env": map[string]string{
			"CNI_COMMAND": verb, "CNI_CONTAINERID": id, "CNI_NETNS": r.NetNS, "CNI_IFNAME": "eth0",
		}})
		if err != nil {
			return err
		}
		w := httptest.NewRecorder()
		srv.ServeHTTP(w, httptest.NewRequest("POST", "/cni", bytes.NewReader(body)))
		if w.Code != 200 {
			return fmt.Errorf("%s of %s: status %d: %s", verb, id, w.Code, w.Body)
		}
		return nil
	}
	var slow []string
	inPlugin := make(chan func(), pods) // what lets it go
	for i := range pods {
		id := fmt.Sprint("slow", i)
		gate := s.Gate(id)
		slow = append(slow, id)
		s.request(id, "eth0", delegating("node", delegate("cluster", "p"))) // makes its namespace
		go func() { inPlugin <- s.Arrive(gate) }()
	}
	added := testhost.Begin(func() error {
		return testhost.InParallel(pods, func(i int) error { return ask("ADD", slow[i]) })
	})
	var hanging []func()
	for range slots {
		hanging = append(hanging, expect.Await(t, "the plugins of slow pods", inPlugin))
	}
	for _, verb := range []string{"ADD", "CHECK", "DEL", "ADD", "DEL"} {
		expect.NoError(t, ask(verb, "normal"))
		t.Logf("%s of a normal pod beside %d slow ones: waited %v", verb, pods, expect.Await(t, "its observation", queued))
	}
	for _, letGo := range hanging {
		letGo()
	}
	for range pods - slots {
		expect.Await(t, "the plugins of the other slow pods", inPlugin)()
	}
	expect.NoError(t, expect.Await(t, "the slow pods", added))
	for _, id := range slow {
		expect.NoError(t, ask("DEL", id))
	}
	expect.Same(t, "recorded", len(s.recorded()), 0)
}
