package interchange

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/firewalldtest"
)

// zoneCase is a configuration of the plugin firewall on a host with a
// firewalld, and the zone that gets the addresses. An empty zone means none.
type zoneCase struct{ name, conf, zone string }

func zoneCases() []zoneCase {
	return []zoneCase{
		{"named", `{"type": "firewall", "backend": "firewalld"}`, "trusted"},
		{"found", `{"type": "firewall"}`, "trusted"},
		{"found for another word", `{"type": "firewall", "backend": "ip6tables"}`, "trusted"},
		{"a zone", `{"type": "firewall", "firewalldZone": "internal"}`, "internal"},
		{"named, a zone", `{"type": "firewall", "backend": "firewalld", "firewalldZone": "internal"}`, "internal"},
		{"an admin chain", `{"type": "firewall", "iptablesAdminChainName": "ADMIN"}`, "trusted"},
		{"isolated", `{"type": "firewall", "ingressPolicy": "isolated"}`, "trusted"},
	}
}

// zoneHost is a host with a firewalld.
type zoneHost struct {
	*host
	firewalld *firewalldtest.Server
}

func newZoneHost(t *testing.T) *zoneHost {
	t.Helper()
	h := &zoneHost{host: newHost(t)}
	h.firewalld = firewalldtest.Start(t, h.ns)
	h.bus = h.firewalld.Address
	for _, zone := range []string{"trusted", "internal"} {
		// A zone gets its chains on first use, and keeps them.
		h.firewalld.AddSource(zone, "192.0.2.99/32")
		h.firewalld.RemoveSource(zone, "192.0.2.99/32")
	}
	return h
}

// sources returns the zones' sources, as "trusted 10.77.0.2/32".
func (h *zoneHost) sources() (all []string) {
	for _, zone := range []string{"internal", "trusted"} {
		for _, source := range h.firewalld.Sources(zone) {
			all = append(all, zone+" "+source)
		}
	}
	return all
}

// TestFirewalldMatrix attaches with the plugins of one side, then checks and
// detaches with those of the other, on a host with a real firewalld.
// firewalld's state is the same with either side.
func TestFirewalldMatrix(t *testing.T) {
	plugintest.UseIPTables(t, "nft")
	h := newZoneHost(t)
	n := 0
	for _, c := range zoneCases() {
		for _, family := range families() {
			if family != "dual" && c.name != "found" && c.name != "named" {
				continue
			}
			net := &network{plugins: []string{fill(plainBridge, family), c.conf}}
			all := directions()
			if family == "dual" {
				all = append(all, mixtures(net.types(t))...)
			}
			for _, d := range all {
				n++
				id := fmt.Sprintf("c%d", n)
				t.Run(c.name+" "+family+"/"+d.name(), func(t *testing.T) {
					h.liveOnce(t, net, d, id, func(result string) {
						expect.Same(t, "firewalld has", h.sources(), sourcesOf(t, result, c.zone))
					}, func() {
						expect.Same(t, "after DEL firewalld has", h.sources(), nil)
					})
				})
			}
		}
	}
}

// sourcesOf returns a result's addresses in the form of a zone's sources.
func sourcesOf(t *testing.T, result, zone string) (all []string) {
	t.Helper()
	for _, addr := range addressesOf(t, result) {
		if zone != "" {
			bits := "/32"
			if strings.Contains(addr, ":") {
				bits = "/128"
			}
			all = append(all, zone+" "+addr+bits)
		}
	}
	slices.Sort(all)
	return all
}

// addressesOf returns the addresses of a result.
func addressesOf(t *testing.T, result string) (all []string) {
	t.Helper()
	var r struct {
		IPs []struct{ Address netip.Prefix }
	}
	expect.NoError(t, json.Unmarshal([]byte(result), &r))
	for _, ip := range r.IPs {
		all = append(all, ip.Address.Addr().String())
	}
	return all
}

// TestFirewalldCheckFindsMissingSources: the reference plugin asks firewalld but
// ignores the answer.
func TestFirewalldCheckFindsMissingSources(t *testing.T) {
	plugintest.UseIPTables(t, "nft")
	h := newZoneHost(t)
	for i, d := range []direction{{ours(), ours()}, {theirs(), ours()}} {
		net := &network{plugins: []string{fill(plainBridge, "dual"), `{"type": "firewall"}`}}
		a := h.attachment(net, fmt.Sprintf("c%d", i))
		expect.Value(a.add(d.adder))(t)
		for _, source := range h.sources() {
			zone, addr, _ := strings.Cut(source, " ")
			h.firewalld.RemoveSource(zone, addr)
			want := addr + ` is not in zone "trusted" of firewalld`
			expect.Says(t, "without "+source+" CHECK", a.check(ours()), want)
			expect.NoError(t, a.check(theirs())) // or the reference plugin's CHECK has learnt to look
			h.firewalld.AddSource(zone, addr)
		}
		expect.NoError(t, a.check(ours()))
		h.firewalld.Reload()
		expect.Says(t, "after a reload CHECK", a.check(ours()), "firewalld has forgotten it if it was reloaded")
		expect.NoError(t, a.del(d.deleter))
	}
}
