package netfilter

import (
	"net/netip"
	"os/exec"
	"testing"
)

func prefix(s string) netip.Prefix {
	if s == "" {
		return netip.Prefix{}
	}
	return netip.MustParsePrefix(s)
}

// wanted are rules of every kind for one attachment.
func wanted(id, v4, v6 string, port uint16) Rules {
	o := Owner{"podnet", id, "eth0"}
	return Rules{
		Masquerade: []Masquerade{{o, []netip.Prefix{prefix(v4), prefix(v6)}}},
		HostPorts: []HostPorts{{Owner: o, V4: prefix(v4), V6: prefix(v6), SNAT: true, Ports: []HostPort{
			{HostPort: port, ContainerPort: 80, Protocol: "tcp"},
			{HostPort: port, ContainerPort: 53, Protocol: "udp", HostIP: netip.MustParseAddr("127.0.0.1")},
			{HostPort: port, ContainerPort: 54, Protocol: "sctp", HostIP: netip.MustParseAddr("fd00:99::1")},
			{HostPort: port, ContainerPort: 55, Protocol: "udp", HostIP: netip.MustParseAddr("::")},
		}}},
	}
}

// ruleset is what nft lists of a table.
func (h *host) ruleset(table string) string {
	h.t.Helper()
	out, err := exec.Command("nft", "list", "table", "inet", table).CombinedOutput()
	if err != nil {
		h.t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func TestSmoke(t *testing.T) {
	h := newHost(t, "nft")
	r := wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080)
	r.Forward = []Forward{{Owner: r.Masquerade[0].Owner, Ingress: "isolated", Bridge: "br1"}}
	if err := h.fw.Add(t.Context(), Native, r); err != nil {
		t.Fatal(err)
	}
	t.Log(h.ruleset("embedcni"))
	if err := h.fw.Add(t.Context(), Native, r); err != nil {
		t.Fatal(err)
	}
	if err := h.fw.Check(t.Context(), Native, r); err != nil {
		t.Fatal(err)
	}
	if err := h.fw.Remove(t.Context(), Native, r); err != nil {
		t.Fatal(err)
	}
	t.Log(h.ruleset("embedcni"))
	r.Forward = nil
	if err := h.fw.Add(t.Context(), NFTables, r); err != nil {
		t.Fatal(err)
	}
	if err := h.fw.Check(t.Context(), NFTables, r); err != nil {
		t.Error(err)
	}
	out, _ := exec.Command("nft", "list", "ruleset").CombinedOutput()
	t.Log(string(out))
	if err := h.fw.Remove(t.Context(), NFTables, r); err != nil {
		t.Fatal(err)
	}
	out, _ = exec.Command("nft", "list", "ruleset").CombinedOutput()
	t.Log(string(out))
}
