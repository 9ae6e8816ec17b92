package netfilter

import (
	"context"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// TestIPTablesAnAttachmentIsOneTransaction: all rules of one attachment's plugins take
// one transaction for each family to add, and one for both to remove, without a process.
func TestIPTablesAnAttachmentIsOneTransaction(t *testing.T) {
	h := newHost(t, "nft")
	fw := Open(h.ns, Options{})
	must(t, fw.Add(t.Context(), fwrules.IPTables, everything("c0", 3)))
	shared, started := h.filters(), h.starts()
	run := func(what func(r fwrules.Rules)) {
		t.Helper()
		r := everything("c1", 4)
		what(fwrules.Rules{Masquerade: r.Masquerade})
		what(fwrules.Rules{HostPorts: r.HostPorts})
		what(fwrules.Rules{Forward: r.Forward})
	}
	flush := func(b *batch.Batch, transactions uint32) {
		t.Helper()
		started()
		before, err := fw.generation(t.Context())
		must(t, err)
		must(t, b.Flush(t.Context()))
		after, err := fw.generation(t.Context())
		must(t, err)
		if notes := started(); notes != "" || after-before != transactions {
			t.Errorf("%d transactions, want %d; started:\n%s", after-before, transactions, notes)
		}
	}
	adding, removing := &batch.Batch{}, &batch.Batch{}
	fw.Batch = adding
	run(func(r fwrules.Rules) { must(t, fw.Add(t.Context(), fwrules.IPTables, r)) })
	wantLines(t, "before the flush", h.filters(), shared)
	flush(adding, 2)
	must(t, fw.Check(t.Context(), fwrules.IPTables, everything("c1", 4)))
	fw.Batch = removing
	run(func(r fwrules.Rules) { must(t, fw.Remove(t.Context(), fwrules.IPTables, r)) })
	flush(removing, 1)
	// The audit has made the legacy variant's tables by listing them.
	left, _ := audit.Diff(shared, h.filters())
	if left != nil {
		t.Errorf("left:\n%s", strings.Join(left, "\n"))
	}
}

// generation returns the number of the last change of the packet filters' rules.
func (fw *Firewalls) generation(ctx context.Context) (n uint32, err error) {
	err = fw.sockets.Do(ctx, func(c *nft.Conn) error {
		n, err = c.Generation()
		return err
	})
	return n, err
}
