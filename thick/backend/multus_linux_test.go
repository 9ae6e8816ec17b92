package backend_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/thick/backend"
	"github.com/embedcni/cni/thick/multinet"
	"github.com/embedcni/cni/thick/server"
)

// TestAPodMayHaveAnotherDefaultNetwork: what the runtime wants of the interface it gets, too.
func TestAPodMayHaveAnotherDefaultNetwork(t *testing.T) {
	for what, tt := range map[string]struct {
		value, more string // of the configuration
		calls       []string
		looked      string
		code        uint
	}{
		"a name":              {value: "a", calls: []string{"ADD q c1/eth0", "ADD r c1/net1"}, looked: "kube-system/a open"},
		"a namespace":         {value: "infra/a", calls: []string{"ADD q c1/eth0", "ADD r c1/net1"}, looked: "infra/a"},
		"the named namespace": {value: "infra/a", more: `"multusNamespace": "infra",`, calls: []string{"ADD q c1/eth0", "ADD r c1/net1"}, looked: "infra/a open"},
		"another interface":   {value: `[{"name": "a", "interface": "mgmt"}]`, calls: []string{"ADD q c1/mgmt", "ADD r c1/net1"}, looked: "kube-system/a open"},
		"blank":               {value: " ", calls: []string{"ADD p c1/eth0", "ADD r c1/net1"}},
		"two":                 {value: "a,a", code: types.ErrInvalidNetworkConfig},
		"none":                {value: "[]", code: types.ErrInvalidNetworkConfig},
		"not there":           {value: "zzz", code: 999, looked: "kube-system/zzz open"},
	} {
		t.Run(what, func(t *testing.T) {
			s := newStage(t)
			looked := ""
			b := s.annotated("b", backend.Options{
				DefaultNetwork: func(context.Context, *server.Request) (string, error) { return tt.value, nil },
				Lookup: func(_ context.Context, _ *server.Request, sel multinet.Selection) (multinet.Definition, error) {
					switch sel.Name {
					case "b":
						return multinet.Definition{Config: []byte(`{"type": "r"}`)}, nil
					case "a":
						looked = sel.Network() + map[bool]string{true: " open"}[sel.Open]
						return multinet.Definition{Config: []byte(`{"type": "q", "capabilities": {"portMappings": true}}`)}, nil
					}
					looked = sel.Network() + map[bool]string{true: " open"}[sel.Open]
					return multinet.Definition{}, errors.New("there is none")
				},
			})
			config := strings.Replace(delegating("node", delegate("cluster", "p")), "{", "{"+tt.more+`"runtimeConfig": {"portMappings": [{"hostPort": 80}]},`, 1)
			r := s.request("c1", "eth0", config)
			_, err := b.Add(t.Context(), r)
			expect.Same(t, "looked up", looked, tt.looked)
			if tt.code != 0 {
				expect.Same(t, "code", code(t, err), tt.code)
				expect.Same(t, "calls", s.Took(), []string{})
				return
			}
			expect.NoError(t, err)
			calls := s.TakeCalls()
			expect.Same(t, "calls", testhost.Rendered(calls), tt.calls)
			if tt.looked != "" {
				expect.Same(t, "runtimeConfig", testhost.Request(t, calls[0])["runtimeConfig"], `{"portMappings":[{"hostPort":80}]}`)
			}
			expect.NoError(t, b.Del(t.Context(), r))
			expect.Same(t, "recorded", len(s.recorded()), 0)
		})
	}
}

// TestWhatHasNoEffectIsLogged: keys of an element that nobody passes on.
func TestWhatHasNoEffectIsLogged(t *testing.T) {
	s := newStage(t)
	var log strings.Builder
	b := s.annotated(`[{"name": "b", "vlan": 7, "ipam-claim-reference": "claim"}]`, backend.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	expect.Value(b.Add(t.Context(), s.request("c1", "eth0", delegating("node", delegate("cluster", "p")))))(t)
	for _, want := range []string{"keys=[vlan]", "ipam-claim-reference", "claim=claim"} {
		expect.That(t, strings.Contains(log.String(), want), "the log lacks %q:\n%s", want, log.String())
	}
}

// someDevices are those of every pod, without files.
type someDevices map[string][]string

func (d someDevices) IDs(context.Context, *server.Request) (map[string][]string, error) {
	found := map[string][]string{}
	for resource, ids := range d {
		found[resource] = ids
	}
	return found, nil
}
func (someDevices) Publish(resource, id, attachment string) (string, error) {
	return fmt.Sprintf("/devices/%s/%s", resource, attachment), errors.New("torn")
}
func (someDevices) Info(string) (json.RawMessage, error) { return nil, errors.New("damaged") }
func (someDevices) Forget(string) error                  { return nil }

// TestDevicesAreNamedToPlugins: in the configuration if the kubelet has given them, as the
// capability if the plugin declares it or the pod has named the device.
func TestDevicesAreNamedToPlugins(t *testing.T) {
	s := newStage(t)
	lookup := func(_ context.Context, _ *server.Request, sel multinet.Selection) (multinet.Definition, error) {
		resource := map[string]string{"vf": "x/vf", "declares": "x/vf", "none": "x/none"}[sel.Name]
		plugin := `{"type": "q"}`
		if sel.Name == "declares" || sel.Name == "named" {
			plugin = `{"type": "q", "capabilities": {"deviceID": true, "CNIDeviceInfoFile": true}}`
		}
		return multinet.Definition{Config: []byte(`{"plugins": [` + plugin + `]}`), Resource: resource}, nil
	}
	annotation := `[{"name": "vf", "deviceID": "z"}, {"name": "declares"}, {"name": "named", "deviceID": "n"}, {"name": "none"}]`
	r := s.request("c1", "eth0", delegating("node", delegate("cluster", "p")))
	r.Pod = server.Pod{Namespace: "shop", Name: "web"}
	_, err := s.annotated(annotation, backend.Options{Lookup: lookup}).Add(t.Context(), r)
	expect.Same(t, "without devices", code(t, err), types.ErrInvalidNetworkConfig)
	var log strings.Builder
	var status string
	b := s.annotated(annotation, backend.Options{
		Lookup: lookup, Devices: someDevices{"x/vf": {"a", "b"}}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		OnStatus: func(_ context.Context, _ *server.Request, value string) error { status = value; return nil },
	})
	expect.Value(b.Add(t.Context(), r))(t)
	var got []string
	for _, call := range s.TakeCalls()[1:] {
		fields := testhost.Request(t, call)
		got = append(got, strings.Join([]string{call.IfName, fields["deviceID"], fields["pciBusID"], fields["runtimeConfig"]}, " "))
	}
	expect.Same(t, "devices", got, []string{
		`net1 "a" "a" `,
		`net2 "b" "b" {"CNIDeviceInfoFile":"/devices/x/vf/shop/declares-c1_net2","deviceID":"b"}`,
		`net3   {"CNIDeviceInfoFile":"/devices//shop/named-c1_net3","deviceID":"n"}`,
		`net4   `,
	})
	expect.That(t, !strings.Contains(status, "device-info"), "status %s", status)
	for _, want := range []string{"network=shop/none", "deviceID=z", "torn", "damaged"} {
		expect.That(t, strings.Contains(log.String(), want), "the log lacks %q:\n%s", want, log.String())
	}
}
