package interchange

import (
	"context"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

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

func linkUp(names ...string) error {
	for _, name := range names {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
	}
	return nil
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
