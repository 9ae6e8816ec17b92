package netfilter

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// chainsOfNFTables are plugins with rules in nftables only.
func chainsOfNFTables() map[string]string {
	const portmap = `, {"type": "portmap", "backend": "nftables", "snat": true, "capabilities": {"portMappings": true}}`
	return map[string]string{
		"bridge": `{"type": "bridge", "bridge": "BRIDGE", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "ipam": IPAM}` + portmap,
		"ptp":    `{"type": "ptp", "ipMasq": true, "ipMasqBackend": "nftables", "ipam": IPAM}` + portmap,
	}
}

// rulesOf returns the rules that an in-process plugin would request for the
// attachment.
func (a attachment) rulesOf(t *testing.T, network string) fwrules.Rules {
	t.Helper()
	o := fwrules.Owner{Network: network, ContainerID: a.rt.ContainerID, IfName: a.rt.IfName}
	r := fwrules.Rules{Masquerade: []fwrules.Masquerade{{Owner: o}}, HostPorts: []fwrules.HostPorts{{Owner: o, SNAT: true}}}
	for _, addr := range a.addr {
		bits := 24
		if addr.Is6() {
			bits = 64
		}
		p := netip.PrefixFrom(addr, bits)
		r.Masquerade[0].Addresses = append(r.Masquerade[0].Addresses, p)
		if addr.Is4() {
			r.HostPorts[0].V4 = p
		} else {
			r.HostPorts[0].V6 = p
		}
	}
	data, err := json.Marshal(a.rt.CapabilityArgs["portMappings"])
	if err != nil {
		t.Fatal(err)
	}
	var ports []struct {
		HostPort, ContainerPort uint16
		Protocol, HostIP        string
	}
	if err := json.Unmarshal(data, &ports); err != nil {
		t.Fatal(err)
	}
	for _, p := range ports {
		one := fwrules.HostPort{HostPort: p.HostPort, ContainerPort: p.ContainerPort, Protocol: p.Protocol}
		if p.HostIP != "" {
			one.HostIP = netip.MustParseAddr(p.HostIP)
		}
		r.HostPorts[0].Ports = append(r.HostPorts[0].Ports, one)
	}
	return r
}

// listing returns the output of nft -j, one line for each object, without
// handles.
func (h *host) listing() []string {
	h.t.Helper()
	out, err := exec.Command("nft", "-j", "list", "ruleset").CombinedOutput()
	if err != nil {
		h.t.Fatalf("%v: %s", err, out)
	}
	var all struct {
		Nftables []map[string]map[string]any `json:"nftables"`
	}
	if err := json.Unmarshal(out, &all); err != nil {
		h.t.Fatal(err)
	}
	var lines []string
	for _, thing := range all.Nftables {
		for _, properties := range thing {
			delete(properties, "handle")
		}
		line, err := json.Marshal(thing)
		if err != nil {
			h.t.Fatal(err)
		}
		if _, about := thing["metainfo"]; !about {
			lines = append(lines, string(line))
		}
	}
	return lines
}

// TestNFTablesFormIsThePlugins: in nft's syntax, our objects equal theirs.
func TestNFTablesFormIsThePlugins(t *testing.T) {
	for name, plugins := range chainsOfNFTables() {
		t.Run(name, func(t *testing.T) {
			var theirs attachment
			var want, got []string
			t.Run("theirs", func(t *testing.T) {
				h := newHost(t, "nft")
				list := h.network("podnet", "1", plugins)
				theirs = h.mustAdd(list, "c1", "eth0", mappings(3000))
				want = h.listing()
			})
			t.Run("ours", func(t *testing.T) {
				h := newHost(t, "nft")
				if err := h.fw.Add(t.Context(), fwrules.NFTables, theirs.rulesOf(t, "podnet")); err != nil {
					t.Fatal(err)
				}
				got = h.listing()
			})
			if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
				t.Errorf("got\n%s\nwant\n%s", g, w)
			}
			if len(want) < 40 {
				t.Errorf("ADD made only:\n%s", strings.Join(want, "\n"))
			}
		})
	}
}

// TestNFTablesFormIsInterchangeable: one side checks and deletes the other
// side's rules, in each direction.
func TestNFTablesFormIsInterchangeable(t *testing.T) {
	for name, plugins := range chainsOfNFTables() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, "nft")
			list := h.network("podnet", "1", plugins)
			h.mustAdd(list, "c", "eth0", fewMappings(1000))
			before := h.filters()
			a := h.mustAdd(list, "c1", "eth0", mappings(3000))
			full := h.filters()
			r := a.rulesOf(t, "podnet")
			cni := h.libcni()

			if err := h.fw.Check(t.Context(), fwrules.NFTables, r); err != nil {
				t.Errorf("check of theirs: %v", err)
			}
			if err := h.fw.Remove(t.Context(), fwrules.NFTables, r); err != nil {
				t.Errorf("remove of theirs: %v", err)
			}
			h.wantFilters(before)
			if err := cni.CheckNetworkList(t.Context(), a.list, a.rt); err == nil {
				t.Error("their CHECK finds nothing wrong though all is gone")
			}
			if err := h.fw.Add(t.Context(), fwrules.NFTables, r); err != nil {
				t.Fatal(err)
			}
			h.wantFilters(full)
			if err := cni.CheckNetworkList(t.Context(), a.list, a.rt); err != nil {
				t.Errorf("their CHECK of ours: %v", err)
			}
			if err := cni.DelNetworkList(t.Context(), a.list, a.rt); err != nil {
				t.Errorf("their DEL of ours: %v", err)
			}
			h.wantFilters(before)
		})
	}
}

// TestNFTablesCheckFindsEachDamage: each missing rule is found, of the
// attachment's own and of the shared ones.
func TestNFTablesCheckFindsEachDamage(t *testing.T) {
	h := newHost(t, "nft")
	r := wanted("c1", "10.1.0.2/24", "fd00:1::2/65", 8080)
	r.HostPorts[0].MasqAll = true
	r.HostPorts[0].ConditionsV4 = []string{"ip", "saddr", "!=", "192.0.2.0/24", "iifname", "eth0"}
	if err := h.fw.Add(t.Context(), fwrules.NFTables, r); err != nil {
		t.Fatal(err)
	}
	tables := []nft.Table{{Family: nft.FamilyInet, Name: "cni_plugins_masquerade"}, {Family: nft.FamilyIPv4, Name: "cni_hostport"}, {Family: nft.FamilyIPv6, Name: "cni_hostport"}}
	damages := 0
	for _, table := range tables {
		for i := range h.rulesOf(table) {
			if err := h.fw.Check(t.Context(), fwrules.NFTables, r); err != nil {
				t.Fatalf("undamaged: %v", err)
			}
			state := h.dumpTables(tables)
			o := h.rulesOf(table)[i]
			h.sh("nft " + o.String())
			err := h.fw.Check(t.Context(), fwrules.NFTables, r)
			if err == nil || !strings.Contains(err.Error(), "rule "+table.String()+" "+o.Chain+" is missing") {
				t.Errorf("without %v: %v", o, err)
			}
			damages++
			h.feed(state, "nft", "-f", "-")
		}
	}
	if damages != 23 {
		t.Errorf("%d rules were there", damages)
	}
}

// rulesOf returns the rules of a table.
func (h *host) rulesOf(table nft.Table) (all []nft.Object) {
	h.t.Helper()
	err := h.fw.sockets.Do(h.t.Context(), func(c *nft.Conn) error {
		return c.Rules(table, "", nil, func(r nft.Rule) error {
			all = append(all, r.Object(table))
			return nil
		})
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

// dumpTables returns the input with which nft restores the tables.
func (h *host) dumpTables(tables []nft.Table) string {
	h.t.Helper()
	var b strings.Builder
	for _, table := range tables {
		out, err := exec.Command("nft", append([]string{"list", "table"}, strings.Fields(table.String())...)...).CombinedOutput()
		if err != nil {
			h.t.Fatalf("%v: %s", err, out)
		}
		b.WriteString("delete table " + table.String() + "\n" + string(out))
	}
	return b.String()
}

// TestNFTablesCheckIsNotContentWithAnother: a rule for another port, address or
// protocol does not count.
func TestNFTablesCheckIsNotContentWithAnother(t *testing.T) {
	h := newHost(t, "nft")
	right := wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080)
	for name, change := range map[string]func(*fwrules.Rules){
		"another host port":      func(r *fwrules.Rules) { r.HostPorts[0].Ports[0].HostPort++ },
		"another container port": func(r *fwrules.Rules) { r.HostPorts[0].Ports[0].ContainerPort++ },
		"another protocol":       func(r *fwrules.Rules) { r.HostPorts[0].Ports[0].Protocol = "udp" },
		"another host address":   func(r *fwrules.Rules) { r.HostPorts[0].Ports[1].HostIP = netip.MustParseAddr("127.0.0.2") },
		"another address":        func(r *fwrules.Rules) { r.HostPorts[0].V4 = prefix("10.1.0.3/24") },
		"another subnet":         func(r *fwrules.Rules) { r.Masquerade[0].Addresses[0] = prefix("10.1.0.2/16") },
		"another network":        func(r *fwrules.Rules) { r.Masquerade[0].Network = "podnet2" },
	} {
		wrong := wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080)
		change(&wrong)
		if err := h.fw.Add(t.Context(), fwrules.NFTables, wrong); err != nil {
			t.Fatal(err)
		}
		if err := h.fw.Check(t.Context(), fwrules.NFTables, right); err == nil {
			t.Errorf("%s: nothing wrong is found", name)
		}
		if err := h.fw.Check(t.Context(), fwrules.NFTables, wrong); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := h.fw.Remove(t.Context(), fwrules.NFTables, wrong); err != nil {
			t.Error(err)
		}
		if left := h.filters().Without(audit.Shared); len(left) > 0 {
			t.Fatalf("%s: left %q", name, left)
		}
	}
}

func TestNFTablesRefusesUnsupportedRules(t *testing.T) {
	h := newHost(t, "nft")
	before := h.filters()
	for field, change := range map[string]func(*fwrules.Rules){
		"conditionsV4":         func(r *fwrules.Rules) { r.HostPorts[0].ConditionsV4 = []string{"-s", "10.0.0.0/8"} },
		"conditionsV6":         func(r *fwrules.Rules) { r.HostPorts[0].ConditionsV6 = []string{"ip saddr 10.0.0.1"} },
		"externalSetMarkChain": func(r *fwrules.Rules) { r.HostPorts[0].ExternalSetMarkChain = "KUBE-MARK-MASQ" },
		"firewall":             func(r *fwrules.Rules) { r.Forward = []fwrules.Forward{{Owner: r.Masquerade[0].Owner}} },
		"container ID":         func(r *fwrules.Rules) { r.HostPorts[0].ContainerID = strings.Repeat("c", 129) },
		"protocol":             func(r *fwrules.Rules) { r.HostPorts[0].Ports[0].Protocol = "icmp" },
	} {
		r := wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080)
		change(&r)
		if err := h.fw.Add(t.Context(), fwrules.NFTables, r); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
		if err := h.fw.Remove(t.Context(), fwrules.NFTables, r); err != nil {
			t.Errorf("%s: remove: %v", field, err)
		}
	}
	h.wantFilters(before)
}

// TestNFTReadsConditionsUnchanged: nft reads our conditions as they were written.
func TestNFTReadsConditionsUnchanged(t *testing.T) {
	for condition, want := range map[string]string{
		`ip saddr != 192.0.2.0/24`:                      `ip saddr != 192.0.2.0/24`,
		`ip daddr 192.0.2.1 iifname != "eth0"`:          `ip daddr 192.0.2.1 iifname != "eth0"`,
		`ip saddr == 10.0.0.0/12 meta mark 0x10`:        `ip saddr 10.0.0.0/12 meta mark 0x00000010`,
		`tcp dport != 22 oifname lo`:                    `tcp dport != 22 oifname "lo"`,
		`meta iifname eth1 udp sport 53 mark != 16`:     `iifname "eth1" udp sport 53 meta mark != 0x00000010`,
		`ip saddr 10.0.0.0/8 ip saddr != 10.1.0.128/25`: `ip saddr 10.0.0.0/8 ip saddr != 10.1.0.128/25`,
	} {
		t.Run(condition, func(t *testing.T) {
			h := newHost(t, "nft")
			r := wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080)
			r.HostPorts[0].ConditionsV4 = strings.Fields(condition)
			if err := h.fw.Add(t.Context(), fwrules.NFTables, r); err != nil {
				t.Fatal(err)
			}
			if err := h.fw.Check(t.Context(), fwrules.NFTables, r); err != nil {
				t.Error(err)
			}
			rule := "nft rule ip cni_hostport prerouting " + want + " fib daddr type local jump hostports_all"
			if lines := strings.Join(h.filters(), "\n"); !strings.Contains(lines, rule+"\n") {
				t.Errorf("no %q in\n%s", rule, lines)
			}
			// The last writer's conditions are those of the table.
			r.HostPorts[0].ConditionsV4 = []string{"ip saddr 10.9.9.9"}
			if err := h.fw.Add(t.Context(), fwrules.NFTables, r); err != nil {
				t.Fatal(err)
			}
			if lines := strings.Join(h.filters(), "\n"); strings.Count(lines, " fib daddr type local jump hostports_all") != 4 || !strings.Contains(lines, "prerouting ip saddr 10.9.9.9 fib") {
				t.Errorf("after others:\n%s", lines)
			}
		})
	}
}

// TestNFTablesRefusalNamesTheRule: a transaction that the kernel refuses is
// reported with its rule.
func TestNFTablesRefusalNamesTheRule(t *testing.T) {
	h := newHost(t, "nft")
	h.sh("nft 'add table inet cni_plugins_masquerade; add chain inet cni_plugins_masquerade postrouting { type filter hook forward priority 0; }'")
	err := h.fw.Add(t.Context(), fwrules.NFTables, wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080))
	if !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EINVAL) {
		t.Errorf("got %v", err)
	}
	if want := "inet cni_plugins_masquerade"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v lacks %q", err, want)
	}
}
