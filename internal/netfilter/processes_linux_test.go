package netfilter

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// starts has the tools of the nf_tables variant note that they were started, and returns
// a function that returns these notes since its last call.
func (h *host) starts() func() string {
	h.t.Helper()
	dir, log := filepath.Join(h.dir, "noting"), filepath.Join(h.dir, "started")
	expect.NoError(h.t, os.Mkdir(dir, 0o755))
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, purpose := range []string{"save", "restore"} {
			name := family + "-nft-" + purpose
			tool, err := iptables.LookPath(name)
			expect.NoError(h.t, err)
			script := fmt.Sprintf("#!/bin/sh\necho %s \"$@\" >>%s\nexec %s \"$@\"\n", name, log, tool)
			expect.NoError(h.t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
		}
	}
	h.t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() string {
		notes, err := os.ReadFile(log)
		if errors.Is(err, fs.ErrNotExist) {
			return ""
		}
		expect.NoError(h.t, errors.Join(err, os.Remove(log)))
		return string(notes)
	}
}

// allForms are rules of every form but conditions, which only iptables can read.
func allForms(id string, n int) fwrules.Rules {
	r := everything(id, n)
	r.HostPorts[0].Ports = append(r.HostPorts[0].Ports,
		fwrules.HostPort{HostPort: uint16(20000 + n), ContainerPort: 53, Protocol: "udp", HostIP: netip.MustParseAddr("192.0.2.1")},
		fwrules.HostPort{HostPort: uint16(20000 + n), ContainerPort: 53, Protocol: "udp", HostIP: netip.MustParseAddr("2001:db8::1")},
		fwrules.HostPort{HostPort: uint16(30000 + n), ContainerPort: 9, Protocol: "sctp"})
	r.HostPorts[0].MasqAll = n%2 == 0
	r.Forward[0].Ingress, r.Forward[0].Bridge = "isolated", "cni0"
	return r
}

// TestIPTablesStartsNoProcess: rules of the nf_tables variant are made, checked and deleted
// by messages to the kernel, in a form that iptables takes for its own.
func TestIPTablesStartsNoProcess(t *testing.T) {
	h := newHost(t, "nft")
	fw, started := Open(h.ns, Options{}), h.starts()
	wantNone := func(when string) {
		t.Helper()
		if notes := started(); notes != "" {
			t.Errorf("%s started\n%s", when, notes)
		}
	}
	for n := range 4 {
		r := allForms(fmt.Sprint("c", n), n+1)
		must(t, fw.Add(t.Context(), fwrules.IPTables, r))
		must(t, fw.Check(t.Context(), fwrules.IPTables, r))
	}
	wantNone("ADD and CHECK")
	for n := range 4 {
		r := allForms(fmt.Sprint("c", n), n+1)
		other := allForms(fmt.Sprint("c", n), n+2)
		if err := fw.Check(t.Context(), fwrules.IPTables, other); !errors.Is(err, fwrules.ErrMissing) {
			t.Errorf("another's rules: %v", err)
		}
		must(t, fw.Remove(t.Context(), fwrules.IPTables, r))
		o := r.Masquerade[0].Owner
		plan, err := Find(t.Context(), fw, fwrules.Target{Owner: o, Addresses: r.Forward[0].Addresses})
		must(t, err)
		if !plan.Empty() {
			t.Errorf("left behind:\n%s", plan)
		}
	}
	wantNone("CHECK, DEL and the search for leftovers")
}

// TestIPTablesStillRunsForOtherForms: a condition that only iptables can read, with
// everything else of its family, and a refusal of the kernel, which iptables explains.
func TestIPTablesStillRunsForOtherForms(t *testing.T) {
	h := newHost(t, "nft")
	fw, started := Open(h.ns, Options{}), h.starts()
	r := allForms("c1", 1)
	r.HostPorts[0].ConditionsV4 = []string{"-m", "limit", "--limit", "5/s"}
	must(t, fw.Add(t.Context(), fwrules.IPTables, r))
	if notes := started(); notes != "iptables-nft-restore --noflush\n" {
		t.Errorf("ADD with a condition for IPv4 started\n%s", notes)
	}
	must(t, fw.Check(t.Context(), fwrules.IPTables, r))
	must(t, fw.Remove(t.Context(), fwrules.IPTables, r))
	started()

	h.sh("nft flush ruleset; nft add table ip nat; nft 'add chain ip nat POSTROUTING { type nat hook postrouting priority 99; }'")
	err := fw.Add(t.Context(), fwrules.IPTables, allForms("c2", 2))
	if err == nil || started() == "" {
		t.Errorf("an ADD into a foreign chain: %v", err)
	}
}
