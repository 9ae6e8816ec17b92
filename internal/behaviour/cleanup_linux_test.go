package behaviour_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// swappable is a host whose reference plugins can be replaced by scripted ones.
// Its network leaves something in every place that plugins can.
type swappable struct {
	*realHost
	conf []byte
}

func newSwappable(t *testing.T) *swappable {
	t.Helper()
	h := newRealHost(t)
	h.linkPlugins()
	c := testhost.Everything()
	conf := string(c.Conf("podnet", "1.0.0", h.Path("ipam")))
	for _, typ := range []string{"bridge", "portmap", "bandwidth", "firewall"} {
		key := fmt.Sprintf(`"type": %q`, typ)
		conf = strings.ReplaceAll(conf, key, fmt.Sprintf(`%s, "script": %q`, key, h.Path("script-"+typ)))
	}
	return &swappable{h, []byte(conf)}
}

// swap replaces a plugin by one with this action at DEL.
func (h *swappable) swap(typ string, del scripted.Action) {
	h.T.Helper()
	expect.NoError(h.T, os.Remove(h.Path("bin", typ)))
	h.Plugin(scripted.Script{Verbs: map[string]scripted.Action{"DEL": del}}, typ)
}

// wantSwapped sets c1 up beside c2, which keeps its attachment, replaces
// plugins, and removes c1.
func (h *swappable) wantSwapped(what string, swap func(), opts ...cni.Opt) error {
	h.T.Helper()
	r := h.Runtime(append(opts, cni.WithConfListBytes(h.conf))...)
	_, err := r.Setup(h.T.Context(), "c2", h.Container("c2"), cni.WithCapabilityPortMap(
		[]cni.PortMapping{{HostPort: 8081, ContainerPort: 80, Protocol: "tcp"}}))
	expect.NoError(h.T, err)
	path := h.Container("c1")
	before := h.Audit()
	testhost.MustSetUp(h.T, r, "c1", path, onePort)
	swap()
	err = r.Remove(h.T.Context(), "c1", path)
	left, gone := h.Left(before)
	expect.Unchanged(h.T, what, left, gone)
	expect.Same(h.T, what+": on record", testhost.Recorded(h.T, r), []string{"c2/eth0 attached"})
	return err
}

func TestFault_F3_TheSweepMakesUpForADELThatFails(t *testing.T) {
	fails, killed, idle, rubbish := testhost.Says(5, "stuck"), scripted.Action{Signal: 9}, scripted.Action{}, scripted.Action{Exit: 3, StdoutBytes: 100}
	for what, dels := range map[string]map[string]scripted.Action{
		"each by itself": {"bridge": fails}, "with a neighbour": {"portmap": killed, "firewall": idle},
		"a shaper": {"bandwidth": rubbish}, "nothing is done": {"bridge": idle, "portmap": idle, "bandwidth": idle, "firewall": idle},
		"all fail": {"bridge": killed, "portmap": fails, "bandwidth": fails, "firewall": rubbish},
	} {
		t.Run(what, func(t *testing.T) {
			h := newSwappable(t)
			expect.NoError(t, h.wantSwapped(what, func() {
				for typ, del := range dels {
					h.swap(typ, del)
				}
			}))
		})
	}
	t.Run("none of them there", func(t *testing.T) {
		h := newSwappable(t)
		expect.NoError(t, h.wantSwapped("no plugins", func() { expect.NoError(t, os.RemoveAll(h.Path("bin"))) }))
	})
}

func TestTeardownErrorsAreReportedIfAskedFor(t *testing.T) {
	h := newSwappable(t)
	var log testhost.Log
	expect.NoError(t, h.wantSwapped("by default", func() { h.swap("portmap", testhost.Says(5, "stuck")) }, log.Logger()))
	warned := strings.Join(log.Lines("WARN"), "\n")
	if !strings.Contains(warned, `msg="DEL failed, and nothing is left" container=c1`) || !strings.Contains(warned, "stuck") {
		t.Errorf("warnings %s", warned)
	}
	h = newSwappable(t)
	err := h.wantSwapped("asked for", func() { h.swap("portmap", testhost.Says(5, "stuck")) }, cni.WithTeardownErrors())
	expect.Same(t, "errors", testhost.Messages(err), []string{"portmap: stuck"})
}

func TestAFailedDELOfAnUnknownPlugin(t *testing.T) {
	s := newStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	path := s.Container("c1")
	before := s.Audit()
	testhost.MustSetUp(t, r, "c1", path)
	s.On("p", "DEL", testhost.Says(5, "stuck"))
	for range 2 {
		expect.Same(t, "errors", testhost.Messages(r.Remove(t.Context(), "c1", path)), []string{"p: stuck"})
		expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 failed"})
		expect.Same(t, "kept", s.Pinned("c1"), true)
	}
	s.On("p", "DEL", scripted.Action{})
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
	s.TakeCalls() // the file does not belong to the container
	s.wantCleanBut(before, s.Path("script-p"))
}

// wantCleanBut is wantClean for a test that changes a file itself.
func (s *stage) wantCleanBut(before audit.Lines, path string) {
	s.T.Helper()
	own := func(line string) bool {
		return strings.Contains(line, path) || strings.Contains(line, s.Path("state", "embedcni"))
	}
	added, gone := s.Since(before)
	expect.Same(s.T, "left", strings.Join(added.Without(audit.Shared).Without(own), "\n"), "")
	expect.Same(s.T, "gone", strings.Join(gone.Without(own), "\n"), "")
}
