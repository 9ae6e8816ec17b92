package veth_test

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// host is a namespace that represents a host, with its containers.
type host struct {
	t     testing.TB
	dir   string
	ns    *netns.Handle
	netNS *string // CNI_NETNS, if not the container's
	side  plugintest.Side
}

// call is the input of a plugin. DIR in its configuration is the host's
// directory.
type call struct {
	typ, id, args, conf string
	prev                []byte
}

const ifName = "eth0"

func newHost(t testing.TB) *host {
	t.Helper()
	h := &host{t: t, dir: t.TempDir()}
	h.ns = h.namespace("host")
	h.side = plugintest.Ours(h.ns, builtin.New())
	nettest.SetUp(t, h.ns, "lo")
	return h
}

// namespace makes a namespace that lives until the test ends.
func (h *host) namespace(name string) *netns.Handle {
	h.t.Helper()
	return nettest.At(h.t, h.path(name))
}

func (h *host) path(name string) string { return filepath.Join(h.dir, "netns", name) }

// sh runs a script on the host.
func (h *host) sh(script string) {
	h.t.Helper()
	nettest.Shell(h.t, h.ns, script)
}

// in runs a script in a container.
func (h *host) in(name, script string) {
	h.t.Helper()
	ns := h.open(name)
	defer ns.Close()
	nettest.Shell(h.t, ns, script)
}

func (h *host) open(name string) *netns.Handle {
	h.t.Helper()
	return expect.Value(netns.Open(h.path(name)))(h.t)
}

// run runs a plugin in process.
func (h *host) run(ctx context.Context, verb string, c call) ([]byte, error) {
	ns := h.path(c.id)
	if h.netNS != nil {
		ns = *h.netNS
	}
	return h.side.Run(ctx, verb, plugintest.Call{
		Type: c.typ, ID: "id-" + c.id, IfName: ifName, NetNS: ns, Args: c.args, Config: h.expand(c.conf), Prev: c.prev,
	})
}

// must runs a verb that must succeed.
func (h *host) must(verb string, c call) []byte {
	h.t.Helper()
	out, err := h.run(h.t.Context(), verb, c)
	if err != nil {
		h.t.Fatalf("%s: %v\n%s", verb, err, c.conf)
	}
	return out
}

// mustFail runs a verb that must fail, and compares the error's text.
func (h *host) mustFail(verb string, c call, want string) {
	h.t.Helper()
	out, err := h.run(h.t.Context(), verb, c)
	if err == nil {
		h.t.Errorf("%s succeeded: %s\nwant %s", verb, out, want)
	} else if got := h.normal(err.Error()); got != want {
		h.t.Errorf("%s: got %s\nwant %s", verb, got, want)
	}
}

var (
	randomMAC  = regexp.MustCompile(`([0-9a-f]{2}:){5}[0-9a-f]{2}`)
	randomName = regexp.MustCompile(`veth[0-9a-f]{8}`)
)

// normal returns text without random parts and parts that are specific to the
// host.
func (h *host) normal(text string) string {
	text = strings.ReplaceAll(text, h.dir, "DIR")
	text = randomName.ReplaceAllString(text, "vethX")
	return randomMAC.ReplaceAllStringFunc(text, func(mac string) string {
		if mac == "02:00:00:00:00:42" { // which a test sets
			return mac
		}
		return "MAC"
	})
}

// expand replaces DIR by this host's directory.
func (h *host) expand(text string) string { return strings.ReplaceAll(text, "DIR", h.dir) }

// snapshot lists everything on the host and in this process.
func (h *host) snapshot() audit.Lines {
	h.t.Helper()
	var lines audit.Lines
	err := h.ns.Do(func() (err error) {
		lines, err = audit.Snapshot(h.t.Context(), audit.Options{StateDirs: []string{filepath.Join(h.dir, "ipam")}})
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return lines
}

// inside returns the state of a container's namespace.
func (h *host) inside(id string) string {
	h.t.Helper()
	ns := h.open(id)
	defer ns.Close()
	return strings.Join(plugintest.Audit(h.t, ns), "\n")
}

// wantClean fails unless the state is as before, apart from shared lines.
func (h *host) wantClean(before audit.Lines) {
	h.t.Helper()
	left, gone := audit.Diff(before, h.snapshot())
	expect.Unchanged(h.t, "host", left.Without(audit.Shared), gone)
}

// Addresses for configurations.
const (
	static4  = `"ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24"}]}`
	staticGW = `"ipam": {"type": "static", "addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.7"}, {"address": "fd00:1::2/64", "gateway": "fd00:1::7"}],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "10.7.0.0/16", "gw": "10.1.0.9", "priority": 50},
			{"dst": "10.8.0.0/16", "table": 300}, {"dst": "10.9.0.0/16", "scope": 0}],
		"dns": {"nameservers": ["10.1.0.53"], "search": ["a.example"]}}`
	hostLocal = `"ipam": {"type": "host-local", "dataDir": "DIR/ipam", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`
)

// attaching is a configuration of a plugin that attaches.
type attaching struct{ name, typ, conf, args string }

func (a attaching) call() call {
	conf := `{"cniVersion": "1.0.0", "name": "net", "type": "` + a.typ + `"`
	if a.conf != "" {
		conf += ", " + a.conf
	}
	return call{typ: a.typ, id: "c1", args: a.args, conf: conf + "}"}
}
