package testhost

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/netns"
)

// RealHost is a host for the reference plugins. Its audits omit the pins of
// namespaces, which belong to the test.
type RealHost struct{ *Host }

func NewReal(t testing.TB) *RealHost {
	t.Helper()
	h := &RealHost{New(t)}
	h.withoutPins = true
	expect.NoError(t, nettest.NoAddressDetection())
	return h
}

func (h *RealHost) Container(name string) string {
	h.T.Helper()
	path := h.Host.Container(name)
	h.Inside(path, nettest.NoAddressDetection)
	return path
}

// Inside runs fn in the namespace at path.
func (h *RealHost) Inside(path string, fn func() error) {
	h.T.Helper()
	expect.NoError(h.T, netns.Do(path, fn))
}

// Real returns a Runtime with the reference plugins.
func (h *RealHost) Real(opts ...cni.Opt) *cni.Runtime {
	h.T.Helper()
	return h.Runtime(append([]cni.Opt{cni.WithPluginDir([]string{ReferencePlugins(h.T)})}, opts...)...)
}

// VethPair makes a pair on the host with both ends down.
func (h *RealHost) VethPair(name, peer string) {
	h.T.Helper()
	expect.NoError(h.T, netlink.LinkAdd(&netlink.Veth{LinkAttrs: nettest.Attrs(name), PeerName: peer}))
}

func (h *RealHost) LinkUp(names ...string) {
	h.T.Helper()
	h.with("", func(ns *netns.Handle) { nettest.SetUp(h.T, ns, names...) })
}

// ReferencePlugins returns the reference plugins' directory.
func ReferencePlugins(t testing.TB) string {
	t.Helper()
	return expect.Value(refplugins.Dir(context.Background(), os.Stderr))(t)
}

var (
	randomVeth = regexp.MustCompile(`\bveth[0-9a-f]{8}\b`)
	anyMAC     = regexp.MustCompile(`\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b`)
	// tuning keeps the earlier hardware address.
	tuningFile = regexp.MustCompile(`(DIR/ipam/c1_eth0\.json) sha256:\w+`)
)

// Normalize removes the parts that differ between runs.
func (h *RealHost) Normalize(lines []string) []string {
	var normal []string
	for _, l := range lines {
		l = strings.ReplaceAll(l, h.Dir, "DIR")
		l = randomVeth.ReplaceAllString(l, "vethRANDOM")
		l = tuningFile.ReplaceAllString(l, "$1")
		normal = append(normal, anyMAC.ReplaceAllString(l, "MAC"))
	}
	slices.Sort(normal)
	return normal
}

// Mortal makes a container's namespace that only its path keeps alive.
func (h *RealHost) Mortal(name string) string {
	h.T.Helper()
	path := h.Path("netns", name)
	ns := expect.Value(netns.Create(path))(h.T)
	expect.NoError(h.T, errors.Join(ns.Do(nettest.NoAddressDetection), ns.Close()))
	h.T.Cleanup(func() { expect.NoError(h.T, netns.Remove(path)) })
	return path
}

// MapPort maps a TCP port of the host to port 80 of the container.
func MapPort(port int32) cni.NamespaceOpts {
	return cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: port, ContainerPort: 80, Protocol: "tcp"}})
}
