package netfilter

import (
	"os/exec"
	"strings"

	"github.com/embedcni/cni/internal/expect"
)

// decoysIPTables are rules of Docker, of firewalld and of an administrator for
// ADDR in NET. They resemble those of a container whose masquerade chain is
// {masq} and whose rules have {comment}.
const decoysIPTables = `*nat
-N DOCKER
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s NET ! -o docker0 -j MASQUERADE
-A POSTROUTING -s ADDR -d ADDR -p tcp --dport 80 -j MASQUERADE
-A DOCKER ! -i docker0 -p tcp --dport 8080 -j DNAT --to-destination TO
-N {prefix}
-A {prefix} -d NET -m comment --comment "x {comment}" -j ACCEPT
-A POSTROUTING -s ADDR -m comment --comment "{comment} x" -j {prefix}
-A POSTROUTING -s ADDR -m comment --comment "as in \"-j {masq}\": {comment}" -j ACCEPT
-A POSTROUTING -s ADDR -m comment --comment {masq} -j ACCEPT
-A POSTROUTING -s ADDR -m comment --comment "-j {masq}"
-A POSTROUTING -m comment --comment -j -m comment --comment {masq}
-N CNI-DN-0
-A CNI-DN-0 -p tcp --dport 8080 -j DNAT --to-destination TO
COMMIT
*filter
-N DOCKER-USER
-A FORWARD -j DOCKER-USER
-A FORWARD -s ADDR -j ACCEPT
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-N FWD_public
-A FORWARD -i br1 -g FWD_public
-N CNI-OTHER
-A CNI-OTHER -s ADDR -j ACCEPT
-A CNI-FORWARD -s ADDR -p tcp -j ACCEPT
-A CNI-FORWARD -s ADDR ! -d ADDR -j ACCEPT
-A CNI-FORWARD -s NET -j ACCEPT
-A CNI-FORWARD -s ADDR -m comment --comment "-s ADDR -j ACCEPT" -j ACCEPT
-A CNI-FORWARD -s ADDR -j DROP
-A CNI-FORWARD -d ADDR -j ACCEPT
-A CNI-FORWARD -d ADDR -m conntrack --ctstate ESTABLISHED -j ACCEPT
-A CNI-FORWARD ! -s ADDR -j ACCEPT
-A CNI-FORWARD -s ADDR0 -j ACCEPT
COMMIT
`

// decoysNFT are the same for nftables.
const decoysNFT = `
add table inet admin
add chain inet admin masq_checks
add rule inet admin masq_checks ip saddr 10.1.0.4 masquerade comment "{nft}"
add table inet cni_plugins_masquerade
add chain inet cni_plugins_masquerade masq_checks
add chain inet cni_plugins_masquerade other
add rule inet cni_plugins_masquerade masq_checks ip saddr 10.1.0.4 masquerade comment "see {nft}"
add rule inet cni_plugins_masquerade masq_checks ip saddr 10.1.0.4 masquerade comment "{nft}, mine"
add rule inet cni_plugins_masquerade masq_checks ip saddr 10.1.0.4 masquerade
add rule inet cni_plugins_masquerade other ip saddr 10.1.0.4 masquerade comment "{nft}"
add table ip cni_hostport
add chain ip cni_hostport hostports
add chain ip cni_hostport other
add rule ip cni_hostport hostports tcp dport 8080 dnat to 10.1.0.4:80
add rule ip cni_hostport hostports tcp dport 8080 dnat to 10.1.0.4:80 comment "c1 c1"
add rule ip cni_hostport hostports tcp dport 8080 dnat to 10.1.0.4:80 comment "xc1"
add rule ip cni_hostport other tcp dport 8080 dnat to 10.1.0.4:80 comment "c1"
add table ip6 cni_hostport
add chain ip6 cni_hostport hostports
add rule ip6 cni_hostport hostports tcp dport 8080 dnat to [fd00:1::4]:80 comment "c1/"
add table bridge nat
add chain bridge nat cni-br-iface-c1-eth00
add chain bridge nat cni-br-iface-c1-eth0-macx
add chain bridge nat PREROUTING { type filter hook prerouting priority -300; }
add rule bridge nat PREROUTING iifname "veth" jump cni-br-iface-c1-eth00 comment "macspoofchk-c1-eth00"
`

// decoys makes rules that resemble those of the container c1 of podnet, with
// the addresses 10.1.0.4 and fd00:1::4, in every packet filter.
func (h *host) decoys() {
	h.t.Helper()
	masq := Owner{Network: "podnet", ContainerID: "c1", IfName: "eth0"}.Chains()[0]
	names := strings.NewReplacer("{masq}", masq.Name, "{prefix}", masq.Name[:len(masq.Name)-1],
		"{comment}", strings.ReplaceAll(masq.Comment, `"`, `\"`), "{nft}", Owner{Network: "podnet", ContainerID: "c1", IfName: "eth0"}.Comment())
	v4 := strings.NewReplacer("ADDR", "10.1.0.4", "NET", "10.1.0.0/24", "TO", "10.1.0.4:80")
	v6 := strings.NewReplacer("ADDR", "fd00:1::4", "NET", "fd00:1::/64", "TO", "[fd00:1::4]:80")
	for _, tool := range tools() {
		text := v4.Replace(names.Replace(decoysIPTables))
		if strings.HasPrefix(tool, "ip6") {
			text = v6.Replace(names.Replace(decoysIPTables))
		}
		// An earlier container has made it, with one of the variants.
		_ = exec.Command(tool, "-N", "CNI-FORWARD").Run()
		h.feed(text, tool+"-restore", "--noflush")
	}
	h.feed(names.Replace(decoysNFT), "nft", "-f", "-")
}

// feed runs a program with the text as its input.
func (h *host) feed(text, program string, args ...string) {
	h.t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	expect.Must(h.t, err == nil, "%s: %v: %s\n%s", program, err, out, text)
}
