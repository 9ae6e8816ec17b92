package shim_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/thick/server"
	"github.com/embedcni/cni/thick/shim"
)

// pluginName is the type of the plugin in configurations: a link to this test binary,
// which is the shim if it is executed under that name. The variable has its queue.
const (
	pluginName    = "thickshim"
	queueVariable = "SHIM_QUEUE"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == pluginName {
		shim.Main(shim.Options{QueueDir: os.Getenv(queueVariable)})
	}
	os.Exit(sandbox.Main(m))
}

// book is a Backend that keeps its attachments in memory, as the pairs that it was asked
// for, and remembers the requests.
type book struct {
	mu       sync.Mutex
	attached []server.Attachment
	asked    []string // "verb container interface network"
	configs  []string
}

func (b *book) note(verb string, r *server.Request) {
	b.asked = append(b.asked, strings.TrimSpace(fmt.Sprint(verb, " ", r.ContainerID, " ", r.IfName, " ", r.Network)))
	b.configs = append(b.configs, string(r.Config))
}

func (b *book) find(r *server.Request) int {
	return slices.IndexFunc(b.attached, func(a server.Attachment) bool {
		return a.ContainerID == r.ContainerID && a.IfName == r.IfName && a.Network == r.Network
	})
}

func (b *book) Add(_ context.Context, r *server.Request) (types.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note("ADD", r)
	if b.find(r) < 0 {
		b.attached = append(b.attached, server.Attachment{ContainerID: r.ContainerID, IfName: r.IfName, Network: r.Network, Began: r.Began})
	}
	var conf struct{ Address string }
	if err := json.Unmarshal(r.Config, &conf); err != nil {
		return nil, err
	}
	result := &types100.Result{CNIVersion: "1.1.0", Interfaces: []*types100.Interface{{Name: r.IfName, Mac: "0a:00:00:00:00:07", Sandbox: r.NetNS}}}
	ip, network, err := net.ParseCIDR(conf.Address)
	if err != nil {
		return nil, err
	}
	result.IPs = []*types100.IPConfig{{Interface: types100.Int(0), Address: net.IPNet{IP: ip, Mask: network.Mask}}}
	return result, nil
}

func (b *book) Del(_ context.Context, r *server.Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note("DEL", r)
	if i := b.find(r); i >= 0 {
		b.attached = slices.Delete(b.attached, i, i+1)
	}
	return nil
}

func (b *book) Check(_ context.Context, r *server.Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note("CHECK", r)
	if b.find(r) < 0 {
		return types.NewError(types.ErrUnknownContainer, "not attached", r.ContainerID)
	}
	return nil
}

func (b *book) GC(_ context.Context, r *server.Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note("GC", r)
	return nil
}

func (b *book) Status(_ context.Context, r *server.Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note("STATUS", r)
	return nil
}

// take returns the requests since the last call, and their configurations.
func (b *book) take() (asked, configs []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	asked, configs = b.asked, b.configs
	b.asked, b.configs = nil, nil
	return asked, configs
}

// node is a machine with a plugin directory and a daemon.
type node struct {
	*book
	dir string // of the socket and the plugins
	cni *libcni.CNIConfig
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{book: &book{}, dir: t.TempDir()}
	self := expect.Value(os.Executable())(t)
	bin := filepath.Join(n.dir, "bin")
	expect.NoError(t, os.Mkdir(bin, 0o755), os.Symlink(self, filepath.Join(bin, pluginName)))
	t.Setenv(queueVariable, filepath.Join(n.dir, "dels"))
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{bin}, filepath.Join(n.dir, "cache"), nil)
	s := expect.Value(server.New(n.book, server.Options{}))(t)
	l := expect.Value(s.Listen(filepath.Join(n.dir, "run", "multus.sock")))(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		expect.NoError(t, s.Shutdown(context.Background()))
		expect.Is(t, <-served, http.ErrServerClosed)
	})
	return n
}

// list returns a network whose plugins are shims with these addresses.
func (n *node) list(t *testing.T, version string, addresses ...string) *libcni.NetworkConfigList {
	t.Helper()
	var plugins []string
	for _, address := range addresses {
		plugins = append(plugins, fmt.Sprintf(`{"type": %q, "daemonSocketDir": %q, "address": %q, "capabilities": {"mac": true}}`, pluginName, filepath.Join(n.dir, "run"), address))
	}
	text := fmt.Sprintf(`{"cniVersion": %q, "name": "podnet", "plugins": [%s]}`, version, strings.Join(plugins, ", "))
	return expect.Value(libcni.ConfListFromBytes([]byte(text)))(t)
}

func container(id string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: id, NetNS: "/run/netns/" + id, IfName: "eth0", Args: [][2]string{{"IgnoreUnknown", "1"}},
		CapabilityArgs: map[string]any{"mac": "0a:00:00:00:00:07"},
	}
}

// TestLibcniExecutesTheShim: each verb in each version of a conflist, with one plugin and
// with two of which the second has the result of the first.
func TestLibcniExecutesTheShim(t *testing.T) {
	ctx := t.Context()
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		for _, addresses := range [][]string{{"10.1.0.7/16"}, {"10.1.0.7/16", "10.2.0.7/16"}} {
			t.Run(fmt.Sprint(version, len(addresses)), func(t *testing.T) {
				n := newNode(t)
				list := n.list(t, version, addresses...)
				expect.Value(n.cni.ValidateNetworkList(ctx, list))(t)
				result := expect.Value(n.cni.AddNetworkList(ctx, list, container("c1")))(t)
				expect.Same(t, "version", result.Version(), version)
				converted := expect.Value(types100.NewResultFromResult(result))(t)
				expect.Same(t, "address", converted.IPs[0].Address.String(), addresses[len(addresses)-1])
				asked, configs := n.take()
				expect.Same(t, "asked", asked, repeat("ADD c1 eth0 podnet", len(addresses)))
				wantFields(t, configs[0], `"mac":"0a:00:00:00:00:07"`, !strings.Contains(configs[0], "prevResult"))
				if len(addresses) > 1 {
					wantFields(t, configs[1], `"address":"10.1.0.7/16"`, strings.Contains(configs[1], "prevResult"))
				}
				has := func(verb string, err error) {
					t.Helper()
					expect.NoError(t, err)
					asked, _ := n.take()
					expect.Same(t, verb, asked, repeat(verb, len(addresses)))
				}
				if version != "0.3.1" {
					has("CHECK c1 eth0 podnet", n.cni.CheckNetworkList(ctx, list, container("c1")))
				} else if err := n.cni.CheckNetworkList(ctx, list, container("c1")); err == nil {
					t.Error("CHECK in 0.3.1")
				}
				if version == "1.1.0" {
					has("STATUS   podnet", n.cni.GetStatusNetworkList(ctx, list))
					expect.Value(n.cni.AddNetworkList(ctx, list, container("c2")))(t)
					n.take()
					gc := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}}}
					expect.NoError(t, n.cni.GCNetworkList(ctx, list, gc))
					if asked, _ := n.take(); asked[len(asked)-1] != "GC   podnet" {
						t.Errorf("GC: %v", asked)
					}
				}
				expect.Same(t, "attached", len(n.attached), 1)
				for range 2 { // a DEL is repeated
					has("DEL c1 eth0 podnet", n.cni.DelNetworkList(ctx, list, container("c1")))
				}
				expect.Same(t, "attached", len(n.attached), 0)
			})
		}
	}
}

func repeat(text string, n int) []string { return slices.Repeat([]string{text}, n) }

// wantFields checks that a configuration has a part, and a condition.
func wantFields(t *testing.T, config, part string, holds bool) {
	t.Helper()
	if !strings.Contains(config, part) || !holds {
		t.Errorf("configuration %s", config)
	}
}
