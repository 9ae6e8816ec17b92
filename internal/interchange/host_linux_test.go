package interchange

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// host is a network namespace that represents a host, and a directory for its
// plugins' files. The test itself stays outside, so that it detects a plugin
// that works in its caller's namespace instead of its host's.
type host struct {
	t       testing.TB
	dir     string
	plugins string // the reference plugins
	ns      *netns.Handle
	ours    map[string]plugin.Plugin
	bus     string // address of the host's D-Bus; empty: none
}

// builtin returns our plugin of a type. Each host has its own plugins, as each
// runtime does, with their memory of earlier calls.
func (h *host) builtin(typ string) plugin.Plugin {
	if h.ours[typ] == nil {
		h.ours[typ] = builtin.New()(typ)
	}
	return h.ours[typ]
}

func newHost(t testing.TB) *host {
	t.Helper()
	plugins := expect.Value(refplugins.Dir(t.Context(), io.Discard))(t)
	h := &host{t: t, dir: t.TempDir(), plugins: plugins, ours: map[string]plugin.Plugin{}}
	h.ns = h.newNetNS("host")
	nettest.SetUp(t, h.ns, "lo")
	return h
}

// container is a namespace that a chain of plugins is attached to.
type container struct {
	id, path string
	ns       *netns.Handle
}

func (h *host) container(id string) *container {
	h.t.Helper()
	return &container{id: id, path: h.path("netns", id), ns: h.newNetNS(id)}
}

func (h *host) newNetNS(name string) *netns.Handle {
	h.t.Helper()
	ns := nettest.At(h.t, h.path("netns", name))
	expect.NoError(h.t, ns.Do(nettest.NoAddressDetection))
	return ns
}

func (h *host) path(elem ...string) string {
	return filepath.Join(append([]string{h.dir}, elem...)...)
}

func (h *host) do(fn func() error) {
	h.t.Helper()
	expect.NoError(h.t, h.ns.Do(fn))
}

func (c *container) do(h *host, fn func() error) {
	h.t.Helper()
	expect.NoError(h.t, c.ns.Do(fn))
}

// cable makes a pair of which both ends belong to the host, for macvlan and
// host-device.
func cable(name, peer string) error {
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: nettest.Attrs(name), PeerName: peer})
}

func linkUp(names ...string) (err error) {
	for _, name := range names {
		err = errors.Join(err, nettest.OnLink(name, netlink.LinkSetUp))
	}
	return err
}

// audit lists the contents of the host and the container.
func (h *host) audit(c *container) audit.Lines {
	h.t.Helper()
	var lines audit.Lines
	h.do(func() error {
		all, err := audit.Snapshot(context.Background(), audit.Options{
			StateDirs: []string{h.path("state"), h.path("cache")}, WithoutProcess: true, Complete: true})
		lines = all
		return err
	})
	// The container's rules are not listed: a plugin that made rules there by
	// mistake lacks them on the host.
	c.do(h, func() error {
		inside, err := namespaceState(&normaliser{names: map[string]string{}, macs: map[string]string{}}, c.id)
		for _, l := range inside {
			if !strings.HasPrefix(l, "sysctl ") {
				lines = append(lines, "container "+l)
			}
		}
		return err
	})
	return lines
}

// shared reports whether a line stays after the last container. The audit knows
// the default names, and this function the other names that these tests use.
func shared(line string) bool {
	return audit.Shared(line) || strings.HasPrefix(line, "dir ") && strings.HasSuffix(line, "/state/tuning/") ||
		adminChain.MatchString(line)
}

// adminChain matches the objects that firewall makes for the option
// iptablesAdminChainName: the empty chain, and a jump to it.
var adminChain = regexp.MustCompile(`^ip6?tables-\w+ filter (-N ADMIN|-A CNI-FORWARD .*-j ADMIN)$`)

// network is a chain of plugins with a runtime's arguments for each attachment.
type network struct {
	version string   // of the specification; empty: 1.0.0
	plugins []string // their configurations; STATE is the directory for files
	caps    string   // the runtime's capability arguments, as JSON
	args    [][2]string
	ifName  string       // empty: eth0
	prepare func() error // prepares the host, in its namespace
	inside  func() error // prepares the container, in its namespace
	faults  []fault
	files   [][2]string // name and content of files in the directory STATE
}

// fault is a verb that wrongly fails in the reference plugin of a type. Ours of
// that type must succeed.
type fault struct{ typ, verb, err string }

// wantNoError checks that the verb succeeds, or fails with the known error of
// that side's reference plugins.
func (n *network) wantNoError(t *testing.T, s side, verb string, err error) {
	t.Helper()
	for _, f := range n.faults {
		if f.verb == verb && !s.ours(f.typ) {
			expect.Says(t, verb+" by the reference plugin "+f.typ, err, f.err)
			return
		}
	}
	expect.Succeeds(t, verb, err)
}

// types returns the types of all plugins and their delegates.
func (n *network) types(t testing.TB) []string {
	t.Helper()
	var all []string
	for _, text := range n.plugins {
		var conf struct {
			Type string
			IPAM struct{ Type string }
		}
		err := json.Unmarshal([]byte(text), &conf)
		expect.Must(t, err == nil, "plugin configuration %s: %v", text, err)
		for _, typ := range []string{conf.Type, conf.IPAM.Type} {
			if typ != "" && !slices.Contains(all, typ) {
				all = append(all, typ)
			}
		}
	}
	return all
}

// attachment is one container on one network of one host.
type attachment struct {
	h    *host
	c    *container
	n    *network
	list *libcni.NetworkConfigList
	rt   *libcni.RuntimeConf
}

const networkName = "podnet"

func (h *host) attachment(n *network, id string) *attachment {
	h.t.Helper()
	a := &attachment{h: h, n: n, c: h.container(id)}
	if n.inside != nil {
		a.c.do(h, n.inside)
	}
	text := fmt.Sprintf(`{"cniVersion": %q, "name": %q, "plugins": [%s]}`,
		cmp.Or(n.version, "1.0.0"), networkName, strings.Join(n.plugins, ",\n"))
	a.list = expect.Value(libcni.NetworkConfFromBytes([]byte(strings.ReplaceAll(text, "STATE", h.path("state")))))(h.t)
	a.rt = &libcni.RuntimeConf{ContainerID: id, NetNS: a.c.path, IfName: cmp.Or(n.ifName, "eth0"), Args: n.args}
	if n.caps != "" {
		expect.NoError(h.t, json.Unmarshal([]byte(n.caps), &a.rt.CapabilityArgs))
	}
	return a
}

// run calls libcni with the plugins of a side. In-process plugins' deferred
// work runs at the end, as in the runtime.
func (a *attachment) run(s side, call func(ctx context.Context, c *libcni.CNIConfig) error) error {
	exec := &runner{side: s, host: a.h}
	config := libcni.NewCNIConfigWithCacheDir([]string{a.h.plugins}, a.h.path("cache"), exec)
	ctx := a.h.t.Context()
	return errors.Join(call(ctx, config), exec.batch.Flush(ctx))
}

// add runs ADD, and returns the result as JSON.
func (a *attachment) add(s side) (result string, err error) {
	err = a.run(s, func(ctx context.Context, c *libcni.CNIConfig) error {
		r, err := c.AddNetworkList(ctx, a.list, a.rt)
		if err != nil {
			return err
		}
		result, err = resultText(r)
		return err
	})
	return result, err
}

func resultText(r types.Result) (string, error) {
	text, err := json.MarshalIndent(r, "", "  ")
	return string(text), err
}

func (a *attachment) check(s side) error {
	return a.run(s, func(ctx context.Context, c *libcni.CNIConfig) error { return c.CheckNetworkList(ctx, a.list, a.rt) })
}

func (a *attachment) del(s side) error {
	return a.run(s, func(ctx context.Context, c *libcni.CNIConfig) error { return c.DelNetworkList(ctx, a.list, a.rt) })
}

// audit lists the contents of the host and the container.
func (a *attachment) audit() audit.Lines { a.h.t.Helper(); return a.h.audit(a.c) }
