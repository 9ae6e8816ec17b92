package reference

import (
	"errors"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nettest"
)

// The target of the tables below, and the plugins' names for it.
const (
	masqC1 = "CNI-1d96a4c7e0d1b705cc10f1f7"
	dnatC1 = "CNI-DN-1d96a4c7e0d1b705cc10f"
	snatC1 = "CNI-SN-1d96a4c7e0d1b705cc10f"

	masqComment = `-m comment --comment "name: \"podnet\" id: \"c1\""`
	dnatComm    = `-m comment --comment "dnat name: \"podnet\" id: \"c1\""`
)

func c1() fwrules.Target {
	return fwrules.Target{Owner: fwrules.Owner{Network: "podnet", ContainerID: "c1", IfName: "eth0"}, Addresses: addrs("10.1.0.2", "fd00::2")}
}

func addrs(s ...string) []netip.Addr {
	var list []netip.Addr
	for _, a := range s {
		list = append(list, netip.MustParseAddr(a))
	}
	return list
}

// nat makes the table nat from chains and rules. The words MASQ, DNAT and SNAT
// stand for the chains of c1, and the comments' for its comments.
func nat(lines ...string) string { return table("nat", lines) }

func filter(lines ...string) string { return table("filter", lines) }

func table(name string, lines []string) string {
	text := "*" + name + "\n:POSTROUTING ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
	return words().Replace(text)
}

func words() *strings.Replacer {
	return strings.NewReplacer("{masq}", masqC1, "{dnat}", dnatC1, "{snat}", snatC1, "{comment}", masqComment, "{dnat comment}", dnatComm)
}

type findTest struct {
	rules  string
	change func(*fwrules.Target)
	want   string // the plan
}

func findTests() map[string]findTest {
	forward := func(lines ...string) string { return filter(append([]string{":CNI-FORWARD - [0:0]"}, lines...)...) }
	masq := nat(":{masq} - [0:0]", `-A {masq} -d 10.1.0.0/24 {comment} -j ACCEPT`, `-A POSTROUTING -s 10.1.0.2/32 {comment} -j {masq}`)
	return map[string]findTest{
		"nothing": {want: ""},
		"masquerade": {rules: masq, want: `
iptables-nft -t nat -D POSTROUTING -s 10.1.0.2/32 {comment} -j {masq}
iptables-nft -t nat -F {masq}
iptables-nft -t nat -X {masq}
`},
		"an empty chain": {rules: nat(":{masq} - [0:0]"), want: "\niptables-nft -t nat -X {masq}\n"},
		"every copy of a jump, from wherever, whatever its comment": {
			rules: nat(":{masq} - [0:0]", ":OWN - [0:0]", "-A POSTROUTING -j {masq}", "-A POSTROUTING -j {masq}", "-A OWN -s 10.0.0.0/8 -g {masq}", `-A POSTROUTING -m comment --comment mine -j {masq}`),
			want: `
iptables-nft -t nat -D POSTROUTING -j {masq}
iptables-nft -t nat -D POSTROUTING -j {masq}
iptables-nft -t nat -D OWN -s 10.0.0.0/8 -g {masq}
iptables-nft -t nat -D POSTROUTING -m comment --comment mine -j {masq}
iptables-nft -t nat -X {masq}
`},
		"port mappings, of an old portmap too": {
			rules: nat(":CNI-HOSTPORT-DNAT - [0:0]", ":CNI-HOSTPORT-SNAT - [0:0]", ":{dnat} - [0:0]", ":{snat} - [0:0]",
				"-A CNI-HOSTPORT-DNAT -p tcp {dnat comment} -m multiport --dports 80 -j {dnat}", "-A {dnat} -s 127.0.0.1/32 -j CNI-HOSTPORT-SETMARK", "-A CNI-HOSTPORT-SNAT -j {snat}"),
			want: `
iptables-nft -t nat -D CNI-HOSTPORT-DNAT -p tcp {dnat comment} -m multiport --dports 80 -j {dnat}
iptables-nft -t nat -F {dnat}
iptables-nft -t nat -X {dnat}
iptables-nft -t nat -D CNI-HOSTPORT-SNAT -j {snat}
iptables-nft -t nat -X {snat}
`},
		"near misses in nat": {rules: nat(":{masq}x - [0:0]", ":CNI-DN-0 - [0:0]", "-A POSTROUTING -s 10.1.0.2/32 {comment} -j {masq}x",
			"-A POSTROUTING {comment} -j MASQUERADE", `-A POSTROUTING -m comment --comment "-j {masq}"`, "-A POSTROUTING -m comment --comment -j -m comment --comment {masq}")},
		"the name in another table": {rules: filter(":{masq} - [0:0]", "-A FORWARD -j {masq}")},
		"firewall, every copy": {
			rules: forward("-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT", "-A CNI-FORWARD -d 10.1.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT"),
			want: `
iptables-nft -t filter -D CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT
iptables-nft -t filter -D CNI-FORWARD -d 10.1.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables-nft -t filter -D CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT
`},
		"firewall, addresses in other forms": {
			rules:  forward("-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT"),
			change: func(t *fwrules.Target) { t.Addresses = addrs("::ffff:10.1.0.2", "10.1.0.2", "fe80::1%eth0") },
			want:   "\niptables-nft -t filter -D CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT\n"},
		"firewall, in use elsewhere": {rules: forward("-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT"),
			change: func(t *fwrules.Target) { t.InUse = addrs("10.1.0.2") }},
		"firewall, in use by a sibling": {rules: forward("-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT"),
			change: func(t *fwrules.Target) { t.Siblings = addrs("10.1.0.2") }},
		"firewall, addresses unknown": {rules: forward("-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT"),
			change: func(t *fwrules.Target) { t.Addresses = nil }},
		"near misses in filter": {rules: forward("-A FORWARD -s 10.1.0.2/32 -j ACCEPT", "-A CNI-FORWARD -s 10.1.0.0/24 -j ACCEPT", "-A CNI-FORWARD -s 10.1.0.20/32 -j ACCEPT",
			"-A CNI-FORWARD -d 10.1.0.2/32 -j ACCEPT", "-A CNI-FORWARD -s 10.1.0.2/32 -p tcp -j ACCEPT", "-A CNI-FORWARD ! -s 10.1.0.2/32 -j ACCEPT",
			`-A CNI-FORWARD -m comment --comment "-s 10.1.0.2/32 -j ACCEPT"`, "-A CNI-FORWARD -s 10.1.0.2/32 -j DROP", "-A CNI-FORWARD -j CNI-ADMIN")},
		"a rule in use elsewhere is no reason for the masquerade to stay": {rules: masq,
			change: func(t *fwrules.Target) { t.InUse = addrs("10.1.0.2") }, want: `
iptables-nft -t nat -D POSTROUTING -s 10.1.0.2/32 {comment} -j {masq}
iptables-nft -t nat -F {masq}
iptables-nft -t nat -X {masq}
`},
		"the container has another interface on the network": {
			rules: nat(":{masq} - [0:0]", ":{dnat} - [0:0]", "-A {masq} -d 10.1.0.0/24 {comment} -j ACCEPT", "-A POSTROUTING -s 10.1.0.2/32 {comment} -j {masq}", "-A POSTROUTING -s 10.1.0.3/32 {comment} -j {masq}",
				"-A CNI-HOSTPORT-DNAT {dnat comment} -j {dnat}", "-A {dnat} -p tcp -j DNAT --to-destination 10.1.0.2:80", "-A {dnat} -p tcp -j DNAT --to-destination 10.1.0.3:80"),
			change: func(t *fwrules.Target) { t.Siblings = addrs("10.1.0.3") }, want: `
iptables-nft -t nat -D POSTROUTING -s 10.1.0.2/32 {comment} -j {masq}
iptables-nft -t nat -D {dnat} -p tcp -j DNAT --to-destination 10.1.0.2:80
`},
		"another's network and id make the same name": {
			rules: nat(":{masq} - [0:0]", "-A {masq} -d 10.1.0.0/24 {comment} -j ACCEPT", `-A {masq} -d 10.1.0.0/24 -m comment --comment "name: \"podnetc\" id: \"1\"" -j ACCEPT`,
				"-A POSTROUTING -s 10.1.0.2/32 {comment} -j {masq}", `-A POSTROUTING -s 10.1.0.3/32 -m comment --comment "name: \"podnetc\" id: \"1\"" -j {masq}`), want: `
iptables-nft -t nat -D POSTROUTING -s 10.1.0.2/32 {comment} -j {masq}
iptables-nft -t nat -D {masq} -d 10.1.0.0/24 {comment} -j ACCEPT
`},
	}
}

func TestFindInIPTables(t *testing.T) {
	for name, tt := range findTests() {
		t.Run(name, func(t *testing.T) {
			target := c1()
			if tt.change != nil {
				tt.change(&target)
			}
			fake := newFakeTool("iptables-nft", tt.rules)
			plan, err := find(t, target, fake)
			if err != nil {
				t.Fatal(err)
			}
			want := strings.TrimPrefix(words().Replace(tt.want), "\n")
			if got := plan.text(); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if (len(plan) == 0) != (want == "") {
				t.Errorf("empty: %t", len(plan) == 0)
			}
			if err := plan.Apply(t.Context()); err != nil {
				t.Error(err)
			}
			if n := len(fake.restored); n > 1 {
				t.Errorf("it took %d transactions", n)
			}
			if again, err := find(t, target, fake); err != nil || len(again) > 0 {
				t.Errorf("afterwards: %v\n%s", err, again)
			}
		})
	}
}

// TestFindInBothFamilies: each family's rules are for its addresses, and each
// tool finds the chains of its family.
func TestFindInBothFamilies(t *testing.T) {
	v4 := newFakeTool("iptables-legacy", filter(":CNI-FORWARD - [0:0]", "-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT")+nat(":{masq} - [0:0]"))
	v6 := newFakeTool("ip6tables-nft", filter(":CNI-FORWARD - [0:0]", "-A CNI-FORWARD -s fd00::2/128 -j ACCEPT", "-A CNI-FORWARD -s fd00::20/128 -j ACCEPT")+nat(":{masq} - [0:0]"))
	plan, err := find(t, c1(), v4, v6)
	if err != nil {
		t.Fatal(err)
	}
	want := words().Replace(`iptables-legacy -t filter -D CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT
iptables-legacy -t nat -X {masq}
ip6tables-nft -t filter -D CNI-FORWARD -s fd00::2/128 -j ACCEPT
ip6tables-nft -t nat -X {masq}
`)
	if got := plan.text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestFindGoesOnAfterAnError: a tool that fails does not hide the others.
func TestFindGoesOnAfterAnError(t *testing.T) {
	broken := errors.New("broken")
	bad := newFakeTool("iptables-nft", "")
	bad.saveErr = broken
	good := newFakeTool("ip6tables-nft", nat(":{masq} - [0:0]"))
	plan, err := find(t, c1(), bad, good)
	if got, want := plan.text(), "ip6tables-nft -t nat -X "+masqC1+"\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if want := "iptables-nft: list the rules: broken"; err == nil || err.Error() != want || !errors.Is(err, broken) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestFindWithoutTheTools: a missing tool is an error only if there may be
// rules that it would show.
func TestFindWithoutTheTools(t *testing.T) {
	nettest.Enter(t, nettest.At(t, filepath.Join(t.TempDir(), "host")))
	missing := iptables.Tool{Family: "iptables-of-nowhere"}
	f := Form{fakes: []tool{{missing, false, false}, {iptables.Tool{Family: missing.Family, Legacy: true}, false, true}}}
	run := func(line string) {
		t.Helper()
		if out, err := exec.Command("sh", "-c", "PATH=$PATH:/usr/sbin:/sbin; "+line).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
	for _, others := range []string{"", "iptables-legacy -t nat -N X", "iptables-nft -t nat -N X"} {
		run(others)
		if found, err := f.findSaved(t.Context(), c1()); err != nil || len(found) > 0 {
			t.Errorf("after %q: %v, %v", others, found, err)
		}
	}
	run("iptables-nft -t nat -N " + masqC1)
	run("iptables-legacy -t nat -N " + masqC1)
	_, err := f.findSaved(t.Context(), c1())
	if !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("got %v, want %v", err, exec.ErrNotFound)
	}
	for _, want := range []string{"iptables-of-nowhere-nft: list the rules: ", "iptables-of-nowhere-legacy: list the rules: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}
