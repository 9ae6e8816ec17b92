package netfilter

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// TestIPTablesAnAttachmentIsOneProcess: all rules of one attachment's plugins
// take one process for each family. In the nf_tables variant their removal
// takes none.
func TestIPTablesAnAttachmentIsOneProcess(t *testing.T) {
	h := newHost(t, "nft")
	log := filepath.Join(h.dir, "log")
	bin := t.TempDir()
	for _, tool := range []string{"iptables-nft-restore", "ip6tables-nft-restore", "iptables-nft-save", "ip6tables-nft-save"} {
		real, err := iptables.LookPath(tool)
		must(t, err)
		text := fmt.Sprintf("#!/bin/sh\necho %s >>%s\nexec %s \"$@\"\n", tool, log, real)
		must(t, os.WriteFile(filepath.Join(bin, tool), []byte(text), 0o755))
	}
	fw := Open(h.ns, Options{})
	must(t, fw.Add(t.Context(), fwrules.IPTables, everything("c0", 3)))
	shared := h.filters()
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	run := func(what func(r fwrules.Rules)) {
		t.Helper()
		must(t, os.WriteFile(log, nil, 0o600))
		r := everything("c1", 4)
		what(fwrules.Rules{Masquerade: r.Masquerade})
		what(fwrules.Rules{HostPorts: r.HostPorts})
		what(fwrules.Rules{Forward: r.Forward})
	}
	processes := func() string {
		t.Helper()
		out, err := os.ReadFile(log)
		must(t, err)
		return strings.Join(strings.Fields(string(out)), " ")
	}
	adding, removing := &batch.Batch{}, &batch.Batch{}
	fw.Batch = adding
	run(func(r fwrules.Rules) { must(t, fw.Add(t.Context(), fwrules.IPTables, r)) })
	wantLines(t, "before the flush", h.filters(), shared)
	must(t, os.WriteFile(log, nil, 0o600)) // the listing was not part of the flush
	must(t, adding.Flush(t.Context()))
	if got, want := processes(), "iptables-nft-restore ip6tables-nft-restore"; got != want {
		t.Errorf("to add took %s, want %s", got, want)
	}
	must(t, fw.Check(t.Context(), fwrules.IPTables, everything("c1", 4)))
	fw.Batch = removing
	run(func(r fwrules.Rules) { must(t, fw.Remove(t.Context(), fwrules.IPTables, r)) })
	must(t, removing.Flush(t.Context()))
	// The audit has made the legacy variant's tables by listing them.
	if got := processes(); got != "" {
		t.Errorf("to remove took %s", got)
	}
	left, _ := audit.Diff(shared, h.filters())
	if left != nil {
		t.Errorf("left:\n%s", strings.Join(left, "\n"))
	}
}
