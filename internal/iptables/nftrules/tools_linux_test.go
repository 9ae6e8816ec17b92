package nftrules

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/nft"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/netns"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }

// versionsVariable names a directory with other versions of iptables than the host's, as
// "make iptables-versions" fetches them: in 1.8.7, a root directory with that version.
const versionsVariable = "IPTABLES_VERSIONS"

// tool is a version of iptables for a family.
type tool struct {
	version string
	root    string // "": the host's
	family  uint8
}

// tools are those of the host and of the directory in the environment, for both families.
func tools(t *testing.T) (all []tool) {
	t.Helper()
	roots := map[string]string{"host": ""}
	if dir := os.Getenv(versionsVariable); dir != "" {
		entries, err := os.ReadDir(dir)
		expect.NoError(t, err)
		if len(entries) == 0 {
			t.Fatalf("%s is empty", dir)
		}
		for _, e := range entries {
			roots[e.Name()] = filepath.Join(dir, e.Name())
		}
	}
	for version, root := range roots {
		for _, family := range []uint8{nft.FamilyIPv4, nft.FamilyIPv6} {
			all = append(all, tool{version, root, family})
		}
	}
	return all
}

func (x tool) String() string { return x.name() + " " + x.version }

func (x tool) name() string {
	if x.family == nft.FamilyIPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// run runs "iptables", or "iptables-save" with that purpose, in the namespace.
func (x tool) run(ns *netns.Handle, stdin, purpose string, args ...string) (string, error) {
	name := x.name() + "-nft"
	if purpose != "" {
		name += "-" + purpose
	}
	cmd := exec.Command("/usr/sbin/xtables-nft-multi", append([]string{strings.Replace(name, "-nft", "", 1)}, args...)...)
	if x.root == "" {
		path, err := iptables.LookPath(name)
		if err != nil {
			return "", err
		}
		cmd = exec.Command(path, args...)
	} else {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: x.root}
		cmd.Dir = "/"
	}
	cmd.Stdin = strings.NewReader(stdin)
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	err := ns.Do(cmd.Run)
	if err != nil {
		err = fmt.Errorf("%v %s %q: %w: %s", x, purpose, args, err, said.String())
	}
	return out.String(), err
}

// must is run for a tool that must succeed.
func (x tool) must(t *testing.T, ns *netns.Handle, stdin, purpose string, args ...string) string {
	t.Helper()
	out, err := x.run(ns, stdin, purpose, args...)
	expect.NoError(t, err)
	return out
}

// saved returns the output of iptables-save without its comments, which have the time,
// and with the chains of each table in an order of their own.
func (x tool) saved(t *testing.T, ns *netns.Handle) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(x.must(t, ns, "", "save")) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// eachTool runs a test with each tool.
func eachTool(t *testing.T, test func(t *testing.T, x tool)) {
	for _, x := range tools(t) {
		t.Run(x.String(), func(t *testing.T) { test(t, x) })
	}
}

// forms are the rules that the reference plugins make, and that this module does in
// their form, by chain. A word in braces depends on the family.
const forms = `*nat
-N CNI-5d5c61a8cc1d0ec1a5fbe3e6
-N CNI-DN-d5c61a8cc1d0ec1a5fbe3
-N CNI-HOSTPORT-DNAT
-N CNI-HOSTPORT-SETMARK
-N CNI-HOSTPORT-MASQ
-N KUBE-MARK-MASQ
-A CNI-5d5c61a8cc1d0ec1a5fbe3e6 -d {net} -m comment --comment "name: \"podnet\" id: \"c1\"" -j ACCEPT
-A CNI-5d5c61a8cc1d0ec1a5fbe3e6 -d {wide} -m comment --comment "name: \"podnet\" id: \"c1\"" -j ACCEPT
-A CNI-5d5c61a8cc1d0ec1a5fbe3e6 -d {addr} -m comment --comment "name: \"podnet\" id: \"c1\"" -j ACCEPT
-A CNI-5d5c61a8cc1d0ec1a5fbe3e6 ! -d {multicast} -m comment --comment "name: \"podnet\" id: \"c1\"" -j MASQUERADE
-A POSTROUTING -s {addr} -m comment --comment "name: \"podnet\" id: \"c1\"" -j CNI-5d5c61a8cc1d0ec1a5fbe3e6
-I POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000
-A CNI-HOSTPORT-SETMARK -j MARK --set-xmark 0x80000000/0x80000000
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
-A CNI-HOSTPORT-MASQ -m mark --mark 0x80000000/0x80000000 -j MASQUERADE
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"podnet\" id: \"c1\"" -m multiport --dports 8080,8081,8082,8083,8084,8085,8086,8087,8088,8089,8090,8091,8092,8093,8094 -j CNI-DN-d5c61a8cc1d0ec1a5fbe3
-A CNI-HOSTPORT-DNAT -p udp -m comment --comment "dnat name: \"podnet\" id: \"c1\"" -m multiport --dports 53 -j CNI-DN-d5c61a8cc1d0ec1a5fbe3
-A CNI-HOSTPORT-DNAT -p sctp -m comment --comment "dnat name: \"podnet\" id: \"c1\"" -m multiport --dports 9,10 -j CNI-DN-d5c61a8cc1d0ec1a5fbe3
-A CNI-DN-d5c61a8cc1d0ec1a5fbe3 -s {net} -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-d5c61a8cc1d0ec1a5fbe3 -s {odd} -p tcp -m tcp --dport 8081 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-d5c61a8cc1d0ec1a5fbe3 -p tcp -m tcp --dport 8082 -j KUBE-MARK-MASQ
-A CNI-DN-d5c61a8cc1d0ec1a5fbe3 -s {loopback} -p udp -m udp --dport 53 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-d5c61a8cc1d0ec1a5fbe3 -s {net} -d {host} -p udp -m udp --dport 53 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-d5c61a8cc1d0ec1a5fbe3 -d {host} -p sctp -m sctp --dport 9 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-d5c61a8cc1d0ec1a5fbe3 -p tcp -m tcp --dport 8080 -j DNAT --to-destination {to}
-A CNI-DN-d5c61a8cc1d0ec1a5fbe3 -d {host} -p udp -m udp --dport 53 -j DNAT --to-destination {to}
-A CNI-DN-d5c61a8cc1d0ec1a5fbe3 -p sctp -m sctp --dport 9 -j DNAT --to-destination {to}
*filter
-N CNI-FORWARD
-N CNI-ADMIN
-N CNI-ISOLATION-STAGE-1
-N CNI-ISOLATION-STAGE-2
-I FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
-I FORWARD -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j CNI-ISOLATION-STAGE-1
-I CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
-A CNI-FORWARD -d {addr} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A CNI-FORWARD -s {addr} -j ACCEPT
-I CNI-ISOLATION-STAGE-1 -i cni0 ! -o cni0 -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)" -j CNI-ISOLATION-STAGE-2
-I CNI-ISOLATION-STAGE-1 -i abcdefghijklmno -o abcdefghijklmno -m comment --comment "CNI firewall plugin rules (ingressPolicy: isolated)" -j DROP
-A CNI-ISOLATION-STAGE-1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j RETURN
-I CNI-ISOLATION-STAGE-2 -o cni0 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j DROP
-A CNI-ISOLATION-STAGE-2 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j RETURN
`

// script returns the forms in a family, for iptables-restore.
func script(family uint8) string {
	addresses := strings.NewReplacer("{net}", "10.1.0.0/16", "{wide}", "10.0.0.0/8", "{odd}", "10.1.16.0/20", "{addr}", "10.1.0.2/32",
		"{multicast}", "224.0.0.0/4", "{loopback}", "127.0.0.1/32", "{host}", "192.0.2.1/32", "{to}", "10.1.0.2:80")
	if family == nft.FamilyIPv6 {
		addresses = strings.NewReplacer("{net}", "fd00:1::/64", "{wide}", "fd00::/8", "{odd}", "fd00:8::/45", "{addr}", "fd00:1::2/128",
			"{multicast}", "ff00::/8", "{loopback}", "::1/128", "{host}", "2001:db8::1/128", "{to}", "[fd00:1::2]:80")
	}
	return addresses.Replace(strings.ReplaceAll(forms, "*filter", "COMMIT\n*filter")) + "COMMIT\n"
}

// commands returns the forms in a family as commands.
func commands(t *testing.T, family uint8) (all []Command) {
	t.Helper()
	table := ""
	for line := range strings.Lines(script(family)) {
		line = strings.TrimSuffix(line, "\n")
		verb, rest, _ := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case verb == "-N":
			all = append(all, Command{verb, Rule{iptables.ChainID{Table: table, Chain: rest}, nil}})
		case line != "COMMIT":
			r, err := iptables.ParseRule("-A " + rest)
			expect.NoError(t, err)
			all = append(all, Command{verb, Rule{iptables.ChainID{Table: table, Chain: r.Chain}, r.Args}})
		}
	}
	return all
}

// rulesIn are the rules among commands.
func rulesIn(all []Command) (rules []Rule) {
	for _, c := range all {
		if c.Words != nil {
			rules = append(rules, c.Rule)
		}
	}
	return rules
}

// with returns a command for each rule, and then one for each chain, if they have a verb.
func with(all []Command, rule, chain string) (changed []Command) {
	for _, c := range all {
		if c.Words != nil {
			changed = append(changed, Command{rule, c.Rule})
		}
	}
	for _, c := range all {
		if c.Words == nil && chain != "" {
			changed = append(changed, Command{chain, c.Rule})
		}
	}
	return changed
}

// restoreText returns commands as the input of iptables-restore.
func restoreText(all []Command) string {
	var b strings.Builder
	for _, table := range []string{"nat", "filter"} {
		fmt.Fprintf(&b, "*%s\n", table)
		for _, c := range all {
			if c.Table == table {
				fmt.Fprintf(&b, "%s %s %s\n", c.Verb, c.Chain, iptables.JoinWords(c.Words))
			}
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}
