package shim_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/internal/testhost/servertest"
	"github.com/embedcni/cni/thick/server"
	"github.com/embedcni/cni/thick/shim"
)

// pluginName is the type of the plugin in configurations: a link to this test binary,
// which is the shim if it is executed under that name.
const pluginName = "thickshim"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == pluginName {
		shim.Main(shim.Options{})
	}
	os.Exit(sandbox.Main(m))
}

// node is a machine with a plugin directory and a daemon.
type node struct {
	*servertest.Ledger
	dir   string
	cni   *libcni.CNIConfig
	taken int // of the calls
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Ledger: &servertest.Ledger{}, dir: t.TempDir()}
	n.Do = func(_ context.Context, verb string, r *server.Request) (types.Result, error) {
		var conf struct{ Address string }
		if err := json.Unmarshal(r.Config, &conf); err != nil {
			return nil, err
		}
		if err := n.Keep(verb, r); err != nil || verb != "ADD" {
			return nil, err
		}
		return servertest.Addressed(r.IfName, r.NetNS, conf.Address), nil
	}
	self := expect.Value(os.Executable())(t)
	bin := filepath.Join(n.dir, "bin")
	expect.NoError(t, os.Mkdir(bin, 0o755), os.Symlink(self, filepath.Join(bin, pluginName)))
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{bin}, filepath.Join(n.dir, "cache"), nil)
	servertest.Serve(t, n, server.Options{}, filepath.Join(n.dir, "run", "multus.sock"))
	return n
}

// take returns the requests since the last call, "verb container interface network", and
// their configurations.
func (n *node) take() (asked, configs []string) {
	all := n.Calls()
	for _, c := range all[n.taken:] {
		asked = append(asked, strings.TrimSpace(fmt.Sprint(c.Verb, " ", c.Request.ContainerID, " ", c.Request.IfName, " ", c.Request.Network)))
		configs = append(configs, string(c.Request.Config))
	}
	n.taken = len(all)
	return asked, configs
}

// pairs returns what is attached.
func (n *node) pairs() (all []string) {
	for _, a := range n.Attached {
		all = append(all, a.ContainerID+"/"+a.IfName)
	}
	return all
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
					second := container("c1")
					second.IfName = "eth1" // a valid pair keeps no other interface of its container
					expect.Value(n.cni.AddNetworkList(ctx, list, second))(t)
					n.take()
					// A libcni that has attached nothing repeats no DEL: the daemon alone collects.
					collector := libcni.NewCNIConfigWithCacheDir(n.cni.Path, t.TempDir(), nil)
					gc := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}}}
					has("GC   podnet", collector.GCNetworkList(ctx, list, gc))
				}
				expect.Same(t, "attached", n.pairs(), []string{"c1/eth0"})
				for range 2 { // a DEL is repeated
					has("DEL c1 eth0 podnet", n.cni.DelNetworkList(ctx, list, container("c1")))
				}
				expect.Same(t, "attached", n.pairs(), nil)
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
