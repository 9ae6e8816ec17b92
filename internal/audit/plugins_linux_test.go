package audit

import (
	"io"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/netns"
)

const conflist = `{
  "cniVersion": "1.0.0", "name": "podnet",
  "plugins": [
    {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "BACKEND", "macspoofchk": true,
     "ipam": {"type": "host-local", "dataDir": "STATE/ipam/networks",
              "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]}},
    {"type": "portmap", "backend": "BACKEND", "capabilities": {"portMappings": true}, "snat": true},
    {"type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge"},
    {"type": "bandwidth", "ingressRate": 1000000, "ingressBurst": 1000000}
  ]
}`

// TestSharedAreTheReferencePluginsLeftovers compares Shared with the reference
// plugins: DEL removes everything that ADD made except the shared lines.
func TestSharedAreTheReferencePluginsLeftovers(t *testing.T) {
	plugins := expect.Value(refplugins.Dir(t.Context(), io.Discard))(t)
	for _, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			state := t.TempDir()
			pin := filepath.Join(t.TempDir(), "container")
			container := expect.Value(netns.Create(pin))(t)
			defer func() {
				container.Close()
				expect.Succeeds(t, "Remove", netns.Remove(pin))
			}()
			list := expect.Value(libcni.NetworkConfFromBytes([]byte(strings.NewReplacer("BACKEND", backend, "STATE", state).Replace(conflist))))(t)
			config := libcni.NewCNIConfigWithCacheDir([]string{plugins}, filepath.Join(state, "cache"), nil)
			rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: pin, IfName: "eth0", CapabilityArgs: map[string]any{
				"portMappings": []map[string]any{
					{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
					{"hostPort": 8081, "containerPort": 81, "protocol": "udp"},
				},
			}}
			inNS(t, func() {
				o := Options{StateDirs: []string{filepath.Join(state, "ipam"), filepath.Join(state, "cache")}}
				start := snapshot(t, o)
				expect.Value(config.AddNetworkList(t.Context(), list, rt))(t)
				attached := snapshot(t, o)
				expect.NoError(t, config.DelNetworkList(t.Context(), list, rt))
				checkShared(t, start, attached, snapshot(t, o))
			})
		})
	}
}

func checkShared(t *testing.T, start, attached, detached Lines) {
	t.Helper()
	made, _ := Diff(start, attached)
	left, gone := Diff(start, detached)
	t.Logf("made:\n%s", text(made))
	leaked := left.Without(Shared)
	expect.That(t, leaked == nil && gone == nil, "left and not shared:\n%s\ngone:\n%s", text(leaked), text(gone))
	// A bridge without ports may have another MTU. Nothing else changes.
	shared := made.Without(func(l string) bool { return !Shared(l) })
	if !reflect.DeepEqual(shared, left) {
		added, removed := Diff(shared, left)
		t.Errorf("shared, but gone with the container:\n%s\nand shared only afterwards:\n%s", text(removed), text(added))
	}
	own := made.Without(Shared)
	expect.That(t, len(own) >= 15, "the container's own lines are only:\n%s", text(own))
}
