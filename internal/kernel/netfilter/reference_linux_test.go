package netfilter

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/iptables"
	"github.com/embedcni/cni/internal/nettest"
)

// The target of the tables below, and the plugins' names for it.
const (
	dnatC1 = "CNI-DN-1d96a4c7e0d1b705cc10f"
	snatC1 = "CNI-SN-1d96a4c7e0d1b705cc10f"

	masqComment = `-m comment --comment "name: \"podnet\" id: \"c1\""`
	dnatComm    = `-m comment --comment "dnat name: \"podnet\" id: \"c1\""`
)

// nat makes the table nat from chains and rules. The words MASQ, DNAT and SNAT
// stand for the chains of c1, and the comments' for its comments.
func nat(lines ...string) string { return savedTable("nat", lines) }

func filter(lines ...string) string { return savedTable("filter", lines) }

func savedTable(name string, lines []string) string {
	text := "*" + name + "\n:POSTROUTING ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
	return names().Replace(text)
}

func names() *strings.Replacer {
	return strings.NewReplacer("{masq}", masqC1, "{mas}", masqC1[:len(masqC1)-1], "{dnat}", dnatC1, "{snat}", snatC1, "{comment}", masqComment, "{dnat comment}", dnatComm)
}

type findTest struct {
	rules  string
	change func(*Target)
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
iptables-nft -t nat -D POSTROUTING -m comment --comment mine -j {masq}
iptables-nft -t nat -D OWN -s 10.0.0.0/8 -g {masq}
iptables-nft -t nat -X {masq}
`},
		"port mappings, of an old portmap too": {
			rules: nat(":CNI-HOSTPORT-DNAT - [0:0]", ":CNI-HOSTPORT-SNAT - [0:0]", ":CNI-HOSTPORT-SETMARK - [0:0]", ":{dnat} - [0:0]", ":{snat} - [0:0]",
				"-A CNI-HOSTPORT-DNAT -p tcp {dnat comment} -m multiport --dports 80 -j {dnat}", "-A {dnat} -s 127.0.0.1/32 -j CNI-HOSTPORT-SETMARK", "-A CNI-HOSTPORT-SNAT -j {snat}"),
			want: `
iptables-nft -t nat -D CNI-HOSTPORT-DNAT -p tcp {dnat comment} -m multiport --dports 80 -j {dnat}
iptables-nft -t nat -F {dnat}
iptables-nft -t nat -X {dnat}
iptables-nft -t nat -D CNI-HOSTPORT-SNAT -j {snat}
iptables-nft -t nat -X {snat}
`},
		"near misses in nat": {rules: nat(":{mas} - [0:0]", ":CNI-DN-0 - [0:0]", "-A POSTROUTING -s 10.1.0.2/32 {comment} -j {mas}",
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
			change: func(t *Target) { t.Addresses = addrs("::ffff:10.1.0.2", "10.1.0.2", "fe80::1%eth0") },
			want:   "\niptables-nft -t filter -D CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT\n"},
		"firewall, in use elsewhere": {rules: forward("-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT"),
			change: func(t *Target) { t.InUse = addrs("10.1.0.2") }},
		"firewall, in use by a sibling": {rules: forward("-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT"),
			change: func(t *Target) { t.Siblings.Addresses = addrs("10.1.0.2") }},
		"firewall, addresses unknown": {rules: forward("-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT"),
			change: func(t *Target) { t.Addresses = nil }},
		"near misses in filter": {rules: forward(":CNI-ADMIN - [0:0]", "-A FORWARD -s 10.1.0.2/32 -j ACCEPT", "-A CNI-FORWARD -s 10.1.0.0/24 -j ACCEPT", "-A CNI-FORWARD -s 10.1.0.20/32 -j ACCEPT",
			"-A CNI-FORWARD -d 10.1.0.2/32 -j ACCEPT", "-A CNI-FORWARD -s 10.1.0.2/32 -p tcp -j ACCEPT", "-A CNI-FORWARD ! -s 10.1.0.2/32 -j ACCEPT",
			`-A CNI-FORWARD -m comment --comment "-s 10.1.0.2/32 -j ACCEPT"`, "-A CNI-FORWARD -s 10.1.0.2/32 -j DROP", "-A CNI-FORWARD -j CNI-ADMIN")},
		"a rule in use elsewhere is no reason for the masquerade to stay": {rules: masq,
			change: func(t *Target) { t.InUse = addrs("10.1.0.2") }, want: `
iptables-nft -t nat -D POSTROUTING -s 10.1.0.2/32 {comment} -j {masq}
iptables-nft -t nat -F {masq}
iptables-nft -t nat -X {masq}
`},
		"the container has another interface on the network": {
			rules: nat(":CNI-HOSTPORT-DNAT - [0:0]", ":{masq} - [0:0]", ":{dnat} - [0:0]", "-A {masq} -d 10.1.0.0/24 {comment} -j ACCEPT", "-A POSTROUTING -s 10.1.0.2/32 {comment} -j {masq}", "-A POSTROUTING -s 10.1.0.3/32 {comment} -j {masq}",
				"-A CNI-HOSTPORT-DNAT {dnat comment} -j {dnat}", "-A {dnat} -p tcp -j DNAT --to-destination 10.1.0.2:80", "-A {dnat} -p tcp -j DNAT --to-destination 10.1.0.3:80"),
			change: func(t *Target) { t.Siblings.Addresses = addrs("10.1.0.3") }, want: `
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

// inNamespace runs the test in a network namespace with the rules of a tool.
func inNamespace(t *testing.T) {
	t.Helper()
	nettest.Enter(t, nettest.At(t, filepath.Join(t.TempDir(), "host")))
}

func run(t *testing.T, input, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdin, cmd.Env = strings.NewReader(input), append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	out, err := cmd.CombinedOutput()
	expect.Must(t, err == nil, "%s %q: %v: %s\n%s", program, args, err, out, input)
}

func TestFindInIPTables(t *testing.T) {
	for name, tt := range findTests() {
		t.Run(name, func(t *testing.T) {
			inNamespace(t)
			target := c1()
			if tt.change != nil {
				tt.change(&target)
			}
			run(t, tt.rules, expect.Value(iptables.LookPath("iptables-nft-restore"))(t))
			fw := Open(nil, Options{})
			plan := expect.Value(Find(t.Context(), fw, target))(t)
			expect.Same(t, "plan", plan.String(), strings.TrimPrefix(names().Replace(tt.want), "\n"))
			expect.NoError(t, plan.Apply(t.Context()))
			again, err := Find(t.Context(), fw, target)
			expect.That(t, err == nil && again.Empty(), "afterwards: %v\n%s", err, again)
		})
	}
}

// TestFindWithoutTheTools: a missing tool is an error only if there may be
// rules that it would show.
func TestFindWithoutTheTools(t *testing.T) {
	inNamespace(t)
	look := func() (found int, err error) {
		for _, legacy := range []bool{false, true} {
			commands, one := findCommands(t.Context(), iptables.Tool{Family: "iptables-of-nowhere", Legacy: legacy}, c1())
			found, err = found+len(commands), errors.Join(err, one)
		}
		return found, err
	}
	sh := func(line string) { run(t, "", "sh", "-c", "PATH=$PATH:/usr/sbin:/sbin; "+line) }
	for _, others := range []string{"", "iptables-legacy -t nat -N X", "iptables-nft -t nat -N X"} {
		sh(others)
		found, err := look()
		expect.That(t, err == nil && found == 0, "after %q: %v, %v", others, found, err)
	}
	sh("iptables-nft -t nat -N " + masqC1)
	sh("iptables-legacy -t nat -N " + masqC1)
	_, err := look()
	expect.Is(t, err, exec.ErrNotFound)
	for _, want := range []string{"iptables-of-nowhere-nft: list the rules: ", "iptables-of-nowhere-legacy: list the rules: "} {
		expect.Says(t, "refusal", err, want)
	}
}

// The plugins' names for the target c1.
const (
	masqC1 = "CNI-1d96a4c7e0d1b705cc10f1f7"
	nftC1  = "fa98a27bbcc17b2e-f4d01f2ef4b92245, net: podnet, if: eth0, id: c1"
)

func c1() Target {
	return Target{Owner: Owner{Network: "podnet", ContainerID: "c1", IfName: "eth0"}, Addresses: addrs("10.1.0.2", "fd00::2")}
}

func addrs(s ...string) []netip.Addr {
	var list []netip.Addr
	for _, a := range s {
		list = append(list, netip.MustParseAddr(a))
	}
	return list
}

func TestFindRefusesAnIncompleteTarget(t *testing.T) {
	for _, target := range []Target{
		{}, {Owner: Owner{Network: "n", ContainerID: "c"}}, {Owner: Owner{Network: "n", IfName: "i"}}, {Owner: Owner{ContainerID: "c", IfName: "i"}},
	} {
		plan, err := Find(t.Context(), &Firewalls{}, target)
		expect.That(t, errors.Is(err, ErrIncompleteTarget) && plan.Empty(), "%+v: %v, plan %v", target, err, plan)
	}
	target := c1()
	target.InUse = []netip.Addr{{}}
	expect.Fails(t, "no error for an invalid address", expect.Err(Find(t.Context(), &Firewalls{}, target)))
}

func TestFindEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect.NoError(t, (Plan{}).Apply(ctx))
	expect.Is(t, expect.Err(Find(ctx, Open(nil, Options{}), c1())), context.Canceled)
}
