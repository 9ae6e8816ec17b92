package cni_test

import (
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/testhost"
)

// realHost is a host for the reference plugins, see [testhost.RealHost], whose
// methods it has under the names that the tests of this package use.
type realHost struct {
	*host
	reference *testhost.RealHost
}

func newRealHost(t testing.TB) *realHost {
	t.Helper()
	r := testhost.NewReal(t)
	return &realHost{&host{Host: r.Host, t: t, dir: r.Dir}, r}
}

func noAddressDetection() error        { return testhost.NoAddressDetection() }
func wantProcessAsBefore(t *testing.T) { t.Helper(); testhost.WantProcessAsBefore(t) }

func (h *realHost) container(name string) string        { h.t.Helper(); return h.reference.Container(name) }
func (h *realHost) inside(path string, fn func() error) { h.t.Helper(); h.reference.Inside(path, fn) }
func (h *realHost) real(opts ...cni.Opt) *cni.Runtime   { h.t.Helper(); return h.reference.Real(opts...) }
func (h *realHost) audit() audit.Lines                  { h.t.Helper(); return h.reference.Audit() }
func (h *realHost) left(before audit.Lines) (_, _ audit.Lines) {
	h.t.Helper()
	return h.reference.Left(before)
}
func (h *realHost) wantClean(before audit.Lines)      { h.t.Helper(); h.reference.WantClean(before) }
func (h *realHost) vethPair(name, peer string)        { h.t.Helper(); h.reference.VethPair(name, peer) }
func (h *realHost) normalize(lines []string) []string { return h.reference.Normalize(lines) }
func (h *realHost) linkUp(names ...string)            { h.t.Helper(); h.reference.LinkUp(names...) }

type (
	contents    = testhost.Contents
	contentLink = testhost.ContentLink
)

func (h *realHost) kernelContents(path string, said contents) contents {
	h.t.Helper()
	return h.reference.KernelContents(path, said)
}

func saidContents(result *types100.Result, unsaid contentLink) contents {
	return testhost.SaidContents(result, unsaid)
}

// realCase is a network made of reference plugins, see [testhost.Case].
type realCase struct {
	plugins []string
	prepare func(h *realHost)
	routes  []string
	link    contentLink
}

const (
	v4Range = testhost.V4Range
	v6Range = testhost.V6Range
)

func (c *realCase) conf(network, version, ipam string) []byte {
	return (&testhost.Case{Plugins: c.plugins}).Conf(network, version, ipam)
}

func (h *realHost) wantAsSaid(result *cni.Result, path string, c *realCase) {
	h.t.Helper()
	h.reference.WantAsSaid(result, path, &testhost.Case{Routes: c.routes, Link: c.link})
}

func hostLocal(ranges string, routes ...string) string { return testhost.HostLocal(ranges, routes...) }
func bridgeConf(more string) string                    { return testhost.BridgeConf(more) }
func ptpConf(more string) string                       { return testhost.PtpConf(more) }
func uplink(h *realHost)                               { testhost.Uplink(h.reference) }
