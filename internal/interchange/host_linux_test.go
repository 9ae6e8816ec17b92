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

// host is a network namespace that stands for a host, and a directory for all
// that its plugins keep. The test itself stays outside, so that a plugin which
// works in the namespace of its caller rather than its host's is found out.
type host struct {
	t       testing.TB
	dir     string
	plugins string // the reference plugins
	ns      *netns.Handle
	ours    map[string]plugin.Plugin
	bus     string // the address of the host's D-Bus; empty: it has none
}

// builtin is our plugin of a type. Each host keeps its own, as a runtime does,
// with what the plugin remembers from one call to the next.
func (h *host) builtin(typ string) plugin.Plugin {
	if h.ours[typ] == nil {
		h.ours[typ] = builtin.Lookup(typ)
	}
	return h.ours[typ]
}

func newHost(t testing.TB) *host {
	t.Helper()
	plugins, err := refplugins.Dir(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
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
	if err := h.ns.Do(fn); err != nil {
		h.t.Fatal(err)
	}
}

func (c *container) do(h *host, fn func() error) {
	h.t.Helper()
	if err := c.ns.Do(fn); err != nil {
		h.t.Fatal(err)
	}
}

// cable makes two ends that belong to the host: what macvlan sits on and what
// host-device takes.
func cable(name, peer string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer})
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

// audit is what exists on the host and in the container.
func (h *host) audit(c *container) audit.Lines {
	h.t.Helper()
	var lines audit.Lines
	h.do(func() error {
		all, err := audit.Snapshot(context.Background(), audit.Options{
			StateDirs: []string{h.path("state"), h.path("cache")}, WithoutProcess: true})
		for _, l := range all {
			lines = append(lines, lastReserved.ReplaceAllString(l, "$1 host-local"))
		}
		return err
	})
	h.noneMissing(lines)
	// No rules are looked for in the container: a plugin that made them there
	// rather than on the host lacks them on the host.
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

// noneMissing makes sure that the audit sees everything.
func (h *host) noneMissing(lines audit.Lines) {
	h.t.Helper()
	for _, l := range lines {
		if strings.HasPrefix(l, "missing ") {
			h.t.Fatalf("the audit is blind: %s: install iptables and nftables", l)
		}
	}
}

// lastReserved is the file in which host-local keeps which address of a network
// it gave out last, which is not a container's.
var lastReserved = regexp.MustCompile(`(/last_reserved_ip\.\d+) sha256:\w+ host-local$`)

// shared is what stays when the last container goes: what the audit knows by its
// default name, and what the networks of these tests name otherwise.
func shared(line string) bool {
	return audit.Shared(line) || strings.HasPrefix(line, "dir ") && strings.HasSuffix(line, "/state/tuning/") ||
		adminChain.MatchString(line)
}

// adminChain is what firewall makes of the option iptablesAdminChainName: the
// chain, empty, and a jump to it.
var adminChain = regexp.MustCompile(`^ip6?tables-\w+ filter (-N ADMIN|-A CNI-FORWARD .*-j ADMIN)$`)
