package netfilter

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// sharing is a configuration and the part of it that containers share.
type sharing struct {
	plugin string
	rules  fwrules.Rules
}

func sharings() map[string]sharing {
	addrs := []netip.Prefix{netip.MustParsePrefix("10.1.0.2/24"), netip.MustParsePrefix("fd00:1::2/64")}
	ports := []fwrules.HostPort{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}}
	owner := fwrules.Owner{Network: "podnet", ContainerID: "c1", IfName: "eth0"}
	portmap := func(config string, change func(*fwrules.HostPorts)) sharing {
		h := fwrules.HostPorts{Owner: owner, V4: addrs[0], V6: addrs[1], Ports: ports, SNAT: true, MarkMasqBit: 13}
		change(&h)
		return sharing{`{"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}` + config + `}`,
			fwrules.Rules{HostPorts: []fwrules.HostPorts{h}}}
	}
	firewall := func(config string, change func(*fwrules.Forward)) sharing {
		f := fwrules.Forward{Owner: owner, Addresses: []netip.Addr{addrs[0].Addr(), addrs[1].Addr()}, Bridge: "br1"}
		change(&f)
		return sharing{`{"type": "firewall", "backend": "iptables"` + config + `}`, fwrules.Rules{Forward: []fwrules.Forward{f}}}
	}
	return map[string]sharing{
		"portmap":          portmap(``, func(*fwrules.HostPorts) {}),
		"portmap bit":      portmap(`, "markMasqBit": 5`, func(h *fwrules.HostPorts) { h.MarkMasqBit = 5 }),
		"portmap no snat":  portmap(`, "snat": false`, func(h *fwrules.HostPorts) { h.SNAT = false }),
		"portmap external": portmap(`, "externalSetMarkChain": "MARKS"`, func(h *fwrules.HostPorts) { h.ExternalSetMarkChain = "MARKS" }),
		"portmap masqAll":  portmap(`, "masqAll": true`, func(h *fwrules.HostPorts) { h.MasqAll = true }),
		"portmap conditions": portmap(`, "conditionsV4": ["-d", "192.0.2.1"], "conditionsV6": ["-d", "2001:db8::1"]`,
			func(h *fwrules.HostPorts) {
				h.ConditionsV4, h.ConditionsV6 = []string{"-d", "192.0.2.1"}, []string{"-d", "2001:db8::1"}
			}),
		"firewall":             firewall(``, func(*fwrules.Forward) {}),
		"firewall admin":       firewall(`, "iptablesAdminChainName": "OURS"`, func(f *fwrules.Forward) { f.AdminChain = "OURS" }),
		"firewall same-bridge": firewall(`, "ingressPolicy": "same-bridge"`, func(f *fwrules.Forward) { f.Ingress = "same-bridge" }),
		"firewall isolated":    firewall(`, "ingressPolicy": "isolated"`, func(f *fwrules.Forward) { f.Ingress = "isolated" }),
	}
}

// saved lists the output of the variant's tools in order. The order of chains
// is undefined, so they are sorted.
func (h *host) saved(variant string) []string {
	h.t.Helper()
	var lines []string
	for _, family := range []string{"iptables", "ip6tables"} {
		out, err := exec.Command(family + "-" + variant + "-save").Output()
		if err != nil {
			h.t.Fatal(err)
		}
		sets, err := iptables.ParseSave(counters.ReplaceAllString(string(out), ""))
		if err != nil {
			h.t.Fatal(err)
		}
		for _, set := range sets {
			var chains []string
			for c := range set.Chains {
				chains = append(chains, c)
			}
			slices.Sort(chains)
			for _, c := range chains {
				if !slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, c) {
					lines = append(lines, family+" "+set.Table+" -N "+c)
				}
				for _, r := range set.Rules {
					if r.Chain == c {
						lines = append(lines, family+" "+set.Table+" -A "+c+" "+r.Spec)
					}
				}
			}
		}
	}
	return lines
}

var counters = regexp.MustCompile(` \[\d+:\d+\]`)

// wantSaved compares in order.
func wantSaved(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant:\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

const sharingBridge = `{"type": "bridge", "bridge": "BRIDGE", "isGateway": true, "ipam": IPAM}, `

// TestFault_F31_RulesMadeInAdvanceAreTheExecutables: on an empty host, the
// rules made in advance are the executable's, in the same order. The executable
// makes none of them again.
func TestFault_F31_RulesMadeInAdvanceAreTheExecutables(t *testing.T) {
	for name, s := range sharings() {
		for _, variant := range []string{"nft", "legacy"} {
			t.Run(name+" "+variant, func(t *testing.T) {
				var alone, after []string
				t.Run("alone", func(t *testing.T) {
					h := newHost(t, variant)
					h.externalChain(name, variant)
					h.mustAdd(h.network("podnet", "1", sharingBridge+s.plugin), "c1", "eth0", fewMappings(8080))
					alone = h.saved(variant)
					h.wantCommon(s.rules, true)
				})
				t.Run("ahead", func(t *testing.T) {
					h := newHost(t, variant)
					h.externalChain(name, variant)
					h.wantCommon(s.rules, false)
					made, err := h.fw.MakeCommon(t.Context(), s.rules)
					if err != nil || made.Empty() {
						t.Fatalf("made %v, %v", made, err)
					}
					h.wantCommon(s.rules, true)
					ahead := h.saved(variant)
					h.mustAdd(h.network("podnet", "1", sharingBridge+s.plugin), "c1", "eth0", fewMappings(8080))
					after = h.saved(variant)
					wantSaved(t, "made ahead", ahead, slices.DeleteFunc(slices.Clone(after), isContainers))
					if err := h.fw.RemoveCommon(t.Context(), made); err == nil {
						t.Error("removed objects that a container uses")
					}
					wantSaved(t, "what a container uses", h.saved(variant), after)
				})
				wantSaved(t, "ahead and the executable", after, alone)
			})
		}
	}
}

// isContainers reports whether a line is about the container c1.
func isContainers(line string) bool {
	return strings.Contains(line, "CNI-DN-") || strings.Contains(line, "10.1.0.2") || strings.Contains(line, "fd00:1::2")
}

// externalChain makes the chain that externalSetMarkChain names.
func (h *host) externalChain(name, variant string) {
	if name == "portmap external" {
		h.sh(fmt.Sprintf("iptables-%s -t nat -N MARKS; ip6tables-%s -t nat -N MARKS", variant, variant))
	}
}

func (h *host) wantCommon(r fwrules.Rules, want bool) {
	h.t.Helper()
	if has, err := h.fw.HasCommon(h.t.Context(), r); has != want || err != nil {
		h.t.Errorf("has all that is shared: %t, %v; want %t", has, err, want)
	}
}

// TestFault_F31_UnusedChainsAreRemoved: unused parts are removed, and all used ones
// stay.
func TestFault_F31_UnusedChainsAreRemoved(t *testing.T) {
	for name, s := range sharings() {
		for _, variant := range []string{"nft", "legacy"} {
			t.Run(name+" "+variant, func(t *testing.T) {
				h := newHost(t, variant)
				h.sh(fmt.Sprintf("for f in iptables ip6tables; do $f-%s -t nat -A POSTROUTING -o lo -j ACCEPT; $f-%s -A FORWARD -i lo -j DROP; done", variant, variant))
				before := h.saved(variant)
				made, err := h.fw.MakeCommon(t.Context(), s.rules)
				if err != nil {
					t.Fatal(err)
				}
				again, err := h.fw.MakeCommon(t.Context(), s.rules)
				if err != nil || !again.Empty() {
					t.Errorf("made again: %v, %v", again, err)
				}
				if err := h.fw.RemoveCommon(t.Context(), made); err != nil {
					t.Fatal(err)
				}
				wantSaved(t, "left", h.saved(variant), before)
				if err := h.fw.RemoveCommon(t.Context(), made); err != nil {
					t.Errorf("second removal: %v", err)
				}
			})
		}
	}
}

// TestFault_F31_ChainsThatAnAdministratorUsesStay: an administrator's rule stays,
// and so does its chain.
func TestFault_F31_ChainsThatAnAdministratorUsesStay(t *testing.T) {
	s := sharings()["firewall"]
	for _, variant := range []string{"nft", "legacy"} {
		h := newHost(t, variant)
		made, err := h.fw.MakeCommon(t.Context(), s.rules)
		if err != nil {
			t.Fatal(err)
		}
		h.sh("iptables-" + variant + " -A CNI-ADMIN -s 192.0.2.1 -j DROP")
		want := h.saved(variant)
		if err := h.fw.RemoveCommon(t.Context(), made); err == nil {
			t.Error("removed an administrator's rule")
		}
		wantSaved(t, "left", h.saved(variant), want)
	}
}

// TestFault_F16_AfterAFlushItIsMadeAgain: after others flush the rules, or the
// chains too, all are made again.
func TestFault_F16_AfterAFlushItIsMadeAgain(t *testing.T) {
	for name, s := range sharings() {
		for _, variant := range []string{"nft", "legacy"} {
			for _, flush := range []string{"$f -F; $f -t nat -F", "$f -F; $f -X; $f -t nat -F; $f -t nat -X", "$f -t nat -F OUTPUT; $f -F FORWARD"} {
				t.Run(name+" "+variant, func(t *testing.T) {
					h := newHost(t, variant)
					if _, err := h.fw.MakeCommon(t.Context(), s.rules); err != nil {
						t.Fatal(err)
					}
					want := h.saved(variant)
					h.sh(fmt.Sprintf("for f in iptables-%s ip6tables-%s; do %s; done", variant, variant, flush))
					h.wantCommon(s.rules, false)
					if _, err := h.fw.MakeCommon(t.Context(), s.rules); err != nil {
						t.Fatal(err)
					}
					wantSaved(t, "made again", h.saved(variant), want)
				})
			}
		}
	}
}

func TestFault_F16_ManyMakeItOnce(t *testing.T) {
	s := sharings()["portmap"]
	for _, variant := range []string{"nft", "legacy"} {
		h := newHost(t, variant)
		fw := Open(h.ns, Options{})
		var wg sync.WaitGroup
		for range 20 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if _, err := fw.MakeCommon(context.WithoutCancel(t.Context()), s.rules); err != nil {
					t.Error(err)
				}
			}()
		}
		wg.Wait()
		h.wantNoneTwice(variant)
	}
}

func (h *host) wantNoneTwice(variant string) {
	h.t.Helper()
	seen := make(map[string]bool)
	for _, l := range h.saved(variant) {
		if seen[l] {
			h.t.Errorf("twice: %s", l)
		}
		seen[l] = true
	}
}

// TestFault_F31_DuplicatesAreRemoved: of the plugins' duplicates one
// stays. An administrator's duplicates are not touched.
func TestFault_F31_DuplicatesAreRemoved(t *testing.T) {
	for name, s := range sharings() {
		for _, variant := range []string{"nft", "legacy"} {
			t.Run(name+" "+variant, func(t *testing.T) {
				h := newHost(t, variant)
				if _, err := h.fw.MakeCommon(t.Context(), s.rules); err != nil {
					t.Fatal(err)
				}
				again := h.again(variant, "nat", "filter")
				mine := "for f in iptables ip6tables; do t=$f-" + variant + `
					$t -t nat -A OUTPUT -m addrtype --dst-type LOCAL -j RETURN; $t -t nat -A OUTPUT -m addrtype --dst-type LOCAL -j RETURN
					$t -I FORWARD -i br1 -m comment --comment "CNI firewall plugin rules" -j DROP
					$t -I FORWARD -i br1 -m comment --comment "CNI firewall plugin rules" -j DROP
					done`
				h.sh(mine)
				want := h.saved(variant)
				h.sh(strings.Join(again, "\n"))
				removed, err := h.fw.RemoveDuplicates(t.Context(), s.rules)
				if err != nil || removed != len(again) || removed == 0 {
					t.Errorf("removed %d, %v; want %d", removed, err, len(again))
				}
				wantSaved(t, "left", h.saved(variant), want)
				if removed, err = h.fw.RemoveDuplicates(t.Context(), s.rules); err != nil || removed != 0 {
					t.Errorf("removed %d more, %v", removed, err)
				}
			})
		}
	}
}

// again returns commands that append each rule of the tables again.
func (h *host) again(variant string, tables ...string) (commands []string) {
	h.t.Helper()
	for _, tool := range []string{"iptables-" + variant, "ip6tables-" + variant} {
		for _, table := range tables {
			out, err := exec.Command(tool+"-save", "-t", table).Output()
			if err != nil {
				h.t.Fatal(err)
			}
			for _, line := range strings.Split(string(out), "\n") {
				if strings.HasPrefix(line, "-A ") {
					commands = append(commands, tool+" -t "+table+" "+line)
				}
			}
		}
	}
	return commands
}

// TestFault_F31_DuplicatesInOneTableOnlyAreRemoved: with several plugins, a
// table without duplicates says nothing about the others.
func TestFault_F31_DuplicatesInOneTableOnlyAreRemoved(t *testing.T) {
	all := sharings()
	both := fwrules.Rules{HostPorts: all["portmap"].rules.HostPorts, Forward: all["firewall"].rules.Forward}
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			h := newHost(t, variant)
			if _, err := h.fw.MakeCommon(t.Context(), both); err != nil {
				t.Fatal(err)
			}
			want := h.saved(variant)
			again := h.again(variant, "filter")
			h.sh(strings.Join(again, "\n"))
			if removed, err := h.fw.RemoveDuplicates(t.Context(), both); err != nil || removed != len(again) || removed == 0 {
				t.Errorf("removed %d, %v; want %d", removed, err, len(again))
			}
			wantSaved(t, "left", h.saved(variant), want)
		})
	}
}
