package netfilter

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/nft"
)

// setup is a network that leaves something in a packet filter.
type setup struct {
	variant string // of iptables
	plugins string
}

func setups() map[string]setup {
	const (
		bridge   = `{"type": "bridge", "bridge": "BRIDGE", "isGateway": true, "ipMasq": true, "ipMasqBackend": %q, "macspoofchk": %t, "ipam": IPAM}, `
		ptp      = `{"type": "ptp", "ipMasq": true, "ipMasqBackend": %q, "ipam": IPAM}, `
		portmap  = `{"type": "portmap", "backend": %q, "snat": %t, "masqAll": %t, "capabilities": {"portMappings": true}}, `
		firewall = `{"type": "firewall", "backend": "iptables", "ingressPolicy": %q}`
	)
	return map[string]setup{
		"bridge iptables-nft":    {"nft", fmt.Sprintf(bridge+portmap+firewall, "iptables", true, "iptables", true, false, "same-bridge")},
		"bridge iptables-legacy": {"legacy", fmt.Sprintf(bridge+portmap+firewall, "iptables", true, "iptables", true, true, "isolated")},
		"bridge nftables":        {"nft", fmt.Sprintf(bridge+portmap+firewall, "nftables", false, "nftables", true, false, "isolated")},
		"bridge mixed":           {"legacy", fmt.Sprintf(bridge+portmap+firewall, "iptables", false, "nftables", true, false, "open")},
		"ptp iptables-nft":       {"nft", fmt.Sprintf(ptp+portmap+firewall, "iptables", "iptables", false, false, "open")},
		"ptp iptables-legacy":    {"legacy", fmt.Sprintf(ptp+portmap+firewall, "iptables", "iptables", true, false, "open")},
		"ptp nftables":           {"legacy", fmt.Sprintf(ptp+portmap+firewall, "nftables", "nftables", false, false, "open")},
	}
}

// mappings has a port of each protocol, with and without a host address, and
// more ports than one rule holds.
func mappings(base int) string {
	var ports []string
	add := func(protocol, hostIP string) {
		ports = append(ports, fmt.Sprintf(`{"hostPort": %d, "containerPort": %d, "protocol": %q, "hostIP": %q}`,
			base+len(ports), 80+len(ports), protocol, hostIP))
	}
	for range 17 {
		add("tcp", "")
	}
	add("udp", "")
	add("sctp", "")
	add("tcp", "127.0.0.1")
	add("udp", "0.0.0.0")
	add("tcp", "fd00:99::1")
	add("udp", "::")
	return "[" + strings.Join(ports, ",") + "]"
}

// fewMappings suffice if ports are not the topic.
func fewMappings(port int) string {
	return fmt.Sprintf(`[{"hostPort": %d, "containerPort": 80, "protocol": "tcp"},
		{"hostPort": %d, "containerPort": 53, "protocol": "udp", "hostIP": "127.0.0.1"}]`, port, port)
}

// TestSweepTakesExactlyTheContainers: exactly the container's rules are
// removed, and none of its neighbours' or of others'. "c" and "c1x" have
// similar names.
func TestSweepTakesExactlyTheContainers(t *testing.T) {
	for name, s := range setups() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, s.variant)
			list := h.network("podnet", "1", s.plugins)
			h.mustAdd(list, "c", "eth0", fewMappings(1000))
			h.mustAdd(list, "c1x", "eth0", fewMappings(2000))
			before := h.filters()
			a := h.mustAdd(list, "c1", "eth0", mappings(3000))
			got := fmt.Sprint(a.addr)
			expect.Must(t, got == "[10.1.0.4 fd00:1::4]", "the decoys are for other addresses than %s", got)
			made, _ := audit.Diff(before, h.filters())
			// Only now, because ADD deletes some of them, and ip6tables-legacy
			// -C mistakes some for the rule in question.
			h.decoys()
			with := h.filters()
			plan := h.sweep(a.target())
			gone, come := audit.Diff(h.filters(), with)
			expect.That(t, slices.Equal(gone, made) && len(come) == 0, "made:\n%s\ngone:\n%s\ncome:\n%s\nplan:\n%s",
				strings.Join(made, "\n"), strings.Join(gone, "\n"), strings.Join(come, "\n"), plan)
			expect.That(t, len(made) >= 40, "ADD made only:\n%s", strings.Join(made, "\n"))
		})
	}
}

// TestSweepOfPartsLeavesNothing: plugins that are killed or race leave parts of
// a complete set. All of them are removed.
func TestSweepOfPartsLeavesNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for name, s := range setups() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, s.variant)
			list := h.network("podnet", "1", s.plugins)
			h.mustAdd(list, "c", "eth0", fewMappings(1000))
			before := h.filters()
			a := h.mustAdd(list, "c1", "eth0", mappings(3000))
			state := h.dump()
			for range 4 {
				removeSome(t, random, h.find(a.target()), 0.2+0.7*random.Float64())
				h.duplicateSome(random, a)
				h.sweep(a.target())
				h.wantFilters(before)
				h.load(state)
			}
		})
	}
}

// TestTheEffectOfThePluginsRules: none of a container's rules is missing, whichever plugins
// made them, and each that goes is.
func TestTheEffectOfThePluginsRules(t *testing.T) {
	for name, s := range setups() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, s.variant)
			a := h.mustAdd(h.network("podnet", "1", s.plugins), "c1", "eth0", fewMappings(3000))
			o := a.target().Owner
			v4, v6 := netip.PrefixFrom(a.addr[0], 24), netip.PrefixFrom(a.addr[1], 64)
			r := testRules{
				Masquerade: []testMasquerade{{Owner: o, Addresses: []netip.Prefix{v4, v6}}},
				HostPorts: []testPorts{{Owner: o, V4: v4, V6: v6, MasqAll: strings.Contains(name, "bridge iptables-legacy"),
					SNAT: name != "ptp iptables-nft" && name != "ptp nftables", Ports: []HostPort{
						{HostPort: 3000, ContainerPort: 80, Protocol: "tcp"},
						{HostPort: 3000, ContainerPort: 53, Protocol: "udp", HostIP: netip.MustParseAddr("127.0.0.1")},
					}}},
				Forward: []testForward{{Owner: o, Addresses: []netip.Prefix{v4, v6}}},
			}
			state := h.dump()
			missing := func() string {
				return textOfMissing(expect.Value(h.fw.Missing(t.Context(), r.rules()...))(t))
			}
			lost := missing()
			expect.Must(t, lost == "", "missing:\n%s", lost)
			for i := range h.deletions(a, r.HostPorts[0].SNAT) {
				line := h.deletions(a, r.HostPorts[0].SNAT)[i] // handles are new each time
				h.sh(line)
				expect.That(t, missing() != "", "nothing is missing after %s", line)
				h.load(state)
			}
		})
	}
}

// deletions returns a command for each rule that has an effect for an attachment.
func (h *host) deletions(a attachment, snat bool) (scripts []string) {
	h.t.Helper()
	for _, line := range strings.Split(h.find(a.target()).String(), "\n") {
		if strings.HasPrefix(line, "nft delete rule") && !strings.Contains(line, "macspoofchk") {
			scripts = append(scripts, line)
		}
	}
	words := []string{a.target().Chains()[0].Name, a.target().Chains()[1].Name, "-j CNI-FORWARD", a.addr[0].String() + "/", a.addr[1].String() + "/", "CNI-HOSTPORT-DNAT"}
	if snat {
		words = append(words, "CNI-HOSTPORT-")
	}
	for _, tool := range tools() {
		for _, table := range []string{"nat", "filter"} {
			out, err := exec.Command(tool, "-t", table, "-S").Output()
			expect.Must(h.t, err == nil, "%s: %v", tool, err)
			for _, line := range strings.Split(string(out), "\n") {
				rule, ok := strings.CutPrefix(line, "-A ")
				if strings.HasPrefix(tool, "ip6") && strings.Contains(line, "-p udp ") {
					continue // of an IPv4 address of the host
				}
				if ok && slices.ContainsFunc(words, func(w string) bool { return strings.Contains(line, w) }) {
					scripts = append(scripts, fmt.Sprintf("%s -t %s -D %s", tool, table, rule))
				}
			}
		}
	}
	scripts = append(scripts, h.sharedDeletions()...)
	expect.That(h.t, len(scripts) >= 10, "only %q", scripts)
	return scripts
}

// sharedDeletions returns a command for each rule that leads packets to all containers'
// rules of the plugins in nftables.
func (h *host) sharedDeletions() (scripts []string) {
	h.t.Helper()
	for _, table := range []nft.Table{masqueradeTable(), hostportTable(nft.FamilyIPv4), hostportTable(nft.FamilyIPv6)} {
		expect.NoError(h.t, h.fw.sockets.Do(h.t.Context(), func(c *nft.Conn) error {
			return c.Rules(table, "", nil, func(r nft.Rule) error {
				// The plugins' present version makes no rules in the chain of the one before.
				if to := r.Jump(); to != "" && to != chainOldHostports {
					scripts = append(scripts, fmt.Sprintf("nft delete rule %v %s handle %d", table, r.Chain, r.Handle))
				}
				return nil
			})
		}))
	}
	return scripts
}

// removeSome runs some commands of the plan. A chain that is in use stays.
func removeSome(t *testing.T, random *rand.Rand, plan Plan, share float64) {
	t.Helper()
	for _, line := range strings.Split(strings.TrimSpace(plan.String()), "\n") {
		if random.Float64() < share {
			_ = exec.Command("sh", "-c", line).Run()
		}
	}
}

// duplicateSome adds duplicate rules in random places.
func (h *host) duplicateSome(random *rand.Rand, a attachment) {
	h.t.Helper()
	for _, line := range strings.Split(h.find(a.target()).String(), "\n") {
		if insert := strings.Replace(line, " -D ", " -I ", 1); insert != line && random.IntN(3) == 0 {
			h.sh(insert)
		}
	}
}

// dump writes all packet filters to files, which load reads.
func (h *host) dump() string {
	h.t.Helper()
	dir := expect.Value(os.MkdirTemp(h.dir, "state"))(h.t)
	for _, tool := range tools() {
		h.sh(fmt.Sprintf("%s-save >%s", tool, filepath.Join(dir, tool)))
	}
	// nft does not load those of iptables.
	for _, table := range []string{"inet cni_plugins_masquerade", "ip cni_hostport", "ip6 cni_hostport", "bridge nat"} {
		h.sh(fmt.Sprintf("if nft list table %s >%s/part 2>/dev/null; then echo delete table %s; cat %s/part; fi >>%s/nft", table, dir, table, dir, dir))
	}
	return dir
}

func (h *host) load(dir string) {
	h.t.Helper()
	for _, tool := range tools() {
		h.sh(fmt.Sprintf("%s-restore <%s", tool, filepath.Join(dir, tool)))
	}
	h.sh("nft -f " + filepath.Join(dir, "nft"))
}
