package behaviour_test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// lostRecords runs a test on a host with the network podnet, by built-in plugins and by
// executables.
func lostRecords(t *testing.T, test func(t *testing.T, h *realHost, r func(opts ...cni.Opt) *cni.Runtime)) {
	for _, builtIn := range []bool{true, false} {
		t.Run(fmt.Sprintf("built in %v", builtIn), func(t *testing.T) {
			h := newRealHost(t)
			everything := testhost.Everything()
			conf := cni.WithConfListBytes(everything.Conf("podnet", "1.0.0", h.Path("ipam")))
			test(t, h, func(opts ...cni.Opt) *cni.Runtime {
				opts = append([]cni.Opt{conf, cni.WithOwner("tester")}, opts...)
				if builtIn {
					return h.Runtime(append(opts, cni.WithBuiltinPlugins())...)
				}
				return h.Real(opts...)
			})
		})
	}
}

// enteredPod notes c1 on podnet as earlier versions did.
func (h *realHost) enteredPod() {
	h.T.Helper()
	h.Entered("tester", record.Line{
		Key:  record.Key{ContainerID: "c1", Network: "podnet", IfName: "eth0"},
		Dirs: []string{h.Path("ipam", "podnet")}, Time: time.Now(),
	})
}

// TestFault_F73_GCReclaimsALostRecordThatLibcnisCacheNames, and an earlier version's ledger:
// the container is dead, so nobody else can have attached it.
func TestFault_F73_GCReclaimsALostRecordThatLibcnisCacheNames(t *testing.T) {
	reclaimed := 0
	lostRecords(t, func(t *testing.T, h *realHost, new func(...cni.Opt) *cni.Runtime) {
		r := new()
		before, links := h.Audit(), h.links()
		dies(t, r, "c1", onePort)
		h.enteredPod()
		h.Unrecord("c1")
		h.waitForLinks(links)
		for _, dry := range []bool{true, false} {
			report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true, DryRun: dry})
			expect.NoError(t, err, report.Err())
			expect.Same(t, "left", report.Left, nil)
			for _, what := range []string{"address 10.77.0.2", "address fd77::2", "iptables", "cached result"} {
				if !slices.ContainsFunc(report.Reclaimed, func(line string) bool { return strings.Contains(line, what) }) {
					t.Errorf("dry %v: no %s in\n%v", dry, what, report)
				}
			}
			if !dry {
				reclaimed += len(report.Reclaimed)
			}
		}
		h.WantClean(before)
	})
	t.Logf("F73: %d leftovers reclaimed", reclaimed)
}

// TestFault_F73_GCNamesALostRecordThatOnlyLibcnisCacheNames: whose the container was is not
// known, so it stays until somebody calls Remove. One to keep is not named, nor is one that
// lives.
func TestFault_F73_GCNamesALostRecordThatOnlyLibcnisCacheNames(t *testing.T) {
	lostRecords(t, func(t *testing.T, h *realHost, new func(...cni.Opt) *cni.Runtime) {
		r := new()
		before, links := h.Audit(), h.links()
		dies(t, r, "c1", onePort)
		h.Unrecord("c1")
		h.waitForLinks(links)
		leaves := func(o cni.GCOptions, want ...string) {
			t.Helper()
			report, err := r.GC(t.Context(), o)
			expect.NoError(t, err, report.Err())
			expect.Same(t, "report", *report, cni.Report{Left: want})
		}
		line := `c1 eth0 on network "podnet": it is on no record, but in libcni's cache, perhaps by another program, and its interfaces are gone; ` +
			`call Remove if the container is gone`
		there := h.Audit()
		for _, dry := range []bool{true, false} {
			leaves(cni.GCOptions{KeepNone: true, DryRun: dry}, line)
			leaves(cni.GCOptions{Keep: []string{"c1"}, DryRun: dry})
		}
		left, gone := h.Left(there)
		expect.Unchanged(t, "host", left, gone)
		expect.NoError(t, r.Remove(t.Context(), "c1", ""))
		leaves(cni.GCOptions{KeepNone: true})
		h.WantClean(before)
	})
}

// TestFault_F73_GCLeavesALostRecordsContainerThatLives, and says so: another program may
// have attached it since. If the container once left nothing behind, one has.
func TestFault_F73_GCLeavesALostRecordsContainerThatLives(t *testing.T) {
	lostRecords(t, func(t *testing.T, h *realHost, new func(...cni.Opt) *cni.Runtime) {
		r, others := new(), new(cni.WithOwner("another program"))
		path := h.Container("c1")
		unchanged := func(want []string) {
			t.Helper()
			h.Unrecord("c1")
			for _, at := range []string{path, h.Path("netns", "moved")} { // the cache has the first
				before := h.Audit()
				report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
				expect.NoError(t, err, report.Err())
				expect.Same(t, "reclaimed", report.Reclaimed, nil)
				expect.Same(t, "left", report.Left, want)
				left, gone := h.Left(before)
				expect.Unchanged(t, "host", left, gone)
				h.Inside(at, func() error { _, err := net.InterfaceByName("eth0"); return err })
				if at == path {
					h.moveNetNS(path, h.Path("netns", "moved"))
				}
			}
			h.moveNetNS(h.Path("netns", "moved"), path)
		}
		_, err := r.Setup(t.Context(), "c1", path, onePort)
		expect.NoError(t, err, r.Remove(t.Context(), "c1", path))
		testhost.MustSetUp(t, others, "c1", path, onePort)
		unchanged(nil)
		expect.NoError(t, others.Remove(t.Context(), "c1", path))

		testhost.MustSetUp(t, r, "c1", path, onePort)
		h.enteredPod()
		unchanged([]string{`c1 eth0 on network "podnet": it is on no record, but in libcni's cache, perhaps by another program, and it lives; ` +
			`call Remove if the container is gone`})
		expect.NoError(t, r.Remove(t.Context(), "c1", path))
	})
}

// moveNetNS mounts a namespace at another path.
func (h *realHost) moveNetNS(from, to string) {
	h.T.Helper()
	ns := expect.Value(netns.Open(from))(h.T)
	expect.NoError(h.T, netns.Pin(ns, to), ns.Close(), netns.Remove(from))
}
