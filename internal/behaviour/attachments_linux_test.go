package behaviour_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// TestAttachmentsHaveTheParametersOfTheSetup: a restarted program needs no notes of
// its own to know the ports, arguments and pods of its containers.
func TestAttachmentsHaveTheParametersOfTheSetup(t *testing.T) {
	s, r, path := threeNetworks(t)
	port := cni.PortMapping{HostPort: 8080, ContainerPort: 80, Protocol: "tcp", HostIP: "192.0.2.1"}
	_, err := r.Setup(t.Context(), "c1", path,
		cni.WithArgs("K8S_POD_NAME", "web"), cni.WithLabels(map[string]string{"tier": "front"}),
		cni.WithMetadata(map[string]string{"pod": "web", "zone": "a"}),
		cni.WithCapabilityPortMap([]cni.PortMapping{port}),
		cni.WithNetwork("one", cni.WithMetadata(map[string]string{"zone": "b"})),
		cni.WithNetwork("two", cni.WithArgs("K8S_POD_NAME", "other")))
	expect.NoError(t, err)
	for _, c := range s.TakeCalls() {
		if strings.Contains(string(c.Stdin), "zone") {
			t.Errorf("%s of %s has the caller's metadata: %s", c.Verb, c.Type, c.Stdin)
		}
	}
	all := expect.Value(s.Runtime().Attachments())(t)
	args := map[string]string{"K8S_POD_NAME": "web", "tier": "front"}
	other := maps.Clone(args)
	other["K8S_POD_NAME"] = "other"
	for i, want := range []cni.Attachment{
		{Network: "one", Args: args, Metadata: map[string]string{"pod": "web", "zone": "b"}, Plugins: map[string]string{"p": "executable"}},
		{Network: "two", Args: other, Metadata: map[string]string{"pod": "web", "zone": "a"}, Plugins: map[string]string{"q": "executable"}},
	} {
		got := all[i]
		expect.Same(t, want.Network, cni.Attachment{Network: got.Network, Args: got.Args, Metadata: got.Metadata, Plugins: got.Plugins}, want)
		expect.Same(t, want.Network+": ports", got.Ports, []cni.PortMapping{port})
	}
	expect.Same(t, "number", len(all), 2)
}

// TestAnAttachmentHasOnlyItsOwnFailure: the failure of one network is not that of the
// others, which stay on record only because of it.
func TestAnAttachmentHasOnlyItsOwnFailure(t *testing.T) {
	s, r, path := threeNetworks(t)
	testhost.MustSetUp(t, r, "c1", path)
	s.TakeCalls()
	s.On("q", "DEL", testhost.Says(5, "stuck"))
	expect.Same(t, "errors", testhost.Messages(r.Remove(t.Context(), "c1", "")), []string{"q: stuck"})
	all := expect.Value(r.Attachments())(t)
	for _, a := range all {
		failed := a.Network == "two"
		if state := map[bool]cni.AttachmentState{true: cni.Failed, false: cni.Detaching}[failed]; a.State != state {
			t.Errorf("network %s is %s, want %s", a.Network, a.State, state)
		}
		if has := strings.Contains(a.LastError, "stuck"); has != failed || (a.Failures > 0) != failed || a.LastTry.IsZero() == failed {
			t.Errorf("network %s: %d failures, the last %v: %q", a.Network, a.Failures, a.LastTry, a.LastError)
		}
	}
	expect.Same(t, "number", len(all), 3)

	// Who restarts after the failure, removes all of them, and not before the failed
	// one is due.
	restarted := s.Runtime()
	report := expect.Value(restarted.Recover(t.Context()))(t)
	expect.Same(t, "adopted", report.Adopted, nil)
	expect.Same(t, "failed", len(report.Failed), 1)
	s.On("q", "DEL", scripted.Action{})
	expect.NoError(t, restarted.Remove(t.Context(), "c1", ""))
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
}
