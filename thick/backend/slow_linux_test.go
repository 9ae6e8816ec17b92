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

// slowStage is a stage with a Server, whose pods that are named slow… ask for a network beside the
// cluster's. Its plugin waits at the gate of the container.
type slowStage struct {
	*stage
	server *server.Server
	queued chan time.Duration // how long each call waited
}

func newSlowStage(t *testing.T, calls int) *slowStage {
	s := &slowStage{stage: newStage(t), queued: make(chan time.Duration, calls)}
	b := backend.New(s.runtime, backend.Options{
		Networks: func(_ context.Context, r *server.Request) (string, error) {
			if strings.HasPrefix(r.ContainerID, "slow") {
				return "storage", nil
			}
			return "", nil
		},
		Lookup: func(context.Context, *server.Request, multinet.Selection) (multinet.Definition, error) {
			return multinet.Definition{Config: []byte(`{"type": "q"}`)}, nil
		},
	})
	s.server = expect.Value(server.New(b, server.Options{Observe: func(o server.Observation) { s.queued <- o.Queued }}))(t)
	out := `{"cniVersion": "1.0.0"}`
	s.On("q", "ADD", scripted.Action{Block: s.Path("gate-$CNI_CONTAINERID"), Stdout: &out})
	return s
}

// ask makes a call for a container, whose namespace exists.
func (s *slowStage) ask(verb, id string) error {
	body, err := json.Marshal(map[string]any{"config": json.RawMessage(delegating("node", delegate("cluster", "p"))), "env": map[string]string{
		"CNI_COMMAND": verb, "CNI_CONTAINERID": id, "CNI_NETNS": s.Path("netns", id), "CNI_IFNAME": "eth0",
	}})
	if err != nil {
		return err
	}
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, httptest.NewRequest("POST", "/cni", bytes.NewReader(body)))
	if w.Code != 200 {
		return fmt.Errorf("%s of %s: status %d: %s", verb, id, w.Code, w.Body)
	}
	return nil
}

// TestAPodWithASlowNetworkHoldsUpNoOther: twenty pods ask for a network whose plugin waits until
// it is let go. A pod of the cluster's network alone comes and goes meanwhile.
func TestAPodWithASlowNetworkHoldsUpNoOther(t *testing.T) {
	const pods, slots = 20, 16
	s := newSlowStage(t, 3*pods)
	inPlugin := make(chan func(), pods) // what lets it go
	for i := range pods {
		id := fmt.Sprint("slow", i)
		s.Container(id)
		gate := s.Gate(id)
		go func() { inPlugin <- s.Arrive(gate) }()
	}
	added := testhost.Begin(func() error {
		return testhost.InParallel(pods, func(i int) error { return s.ask("ADD", fmt.Sprint("slow", i)) })
	})
	var hanging []func()
	for range slots {
		hanging = append(hanging, expect.Await(t, "the plugins of slow pods", inPlugin))
	}
	s.Container("normal")
	for _, verb := range []string{"ADD", "CHECK", "DEL", "ADD", "DEL"} {
		expect.NoError(t, s.ask(verb, "normal"))
		t.Logf("%s of a normal pod beside %d slow ones: waited %v", verb, pods, expect.Await(t, "its observation", s.queued))
	}
	for _, letGo := range hanging {
		letGo()
	}
	for range pods - slots {
		expect.Await(t, "the plugins of the other slow pods", inPlugin)()
	}
	expect.NoError(t, expect.Await(t, "the slow pods", added))
	for i := range pods {
		expect.NoError(t, s.ask("DEL", fmt.Sprint("slow", i)))
	}
	expect.Same(t, "recorded", len(s.recorded()), 0)
}
