package cni_test

import (
	"fmt"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// TestThePlanOfGCReadsEachRecordOnce, with entries in the ledger that it compares with
// the records.
func TestThePlanOfGCReadsEachRecordOnce(t *testing.T) {
	h := newRealHost(t)
	c := testhost.Case{Plugins: []string{testhost.BridgeConf(testhost.HostLocal(testhost.V4Range)), `{"type": "firewall"}`}}
	r := h.Runtime(cni.WithoutReaping(), cni.WithPluginDir(nil), cni.WithConfListBytes(c.Conf("net", "1.0.0", h.Path("ipam"))))
	const n = 3
	for i := range n {
		id := fmt.Sprint("c", i)
		testhost.MustSetUp(t, r, id, h.Container(id))
	}
	read := 0
	r.ReadRecordsBy(func() { read++ })
	report := expect.Value(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c0"}, DryRun: true}))(t)
	expect.Same(t, "report", *report, cni.Report{Removed: report.Removed})
	expect.Same(t, "to remove", len(report.Removed), n-1)
	expect.Same(t, "records read", read, n)
}
