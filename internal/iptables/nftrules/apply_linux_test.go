package nftrules

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/nft"
	"github.com/embedcni/cni/netns"
)

// command parses "-t nat -A CHAIN -j ACCEPT".
func command(t *testing.T, text string) Command {
	t.Helper()
	rest, ok := strings.CutPrefix(text, "-t ")
	table, rest, _ := strings.Cut(rest, " ")
	verb, rest, _ := strings.Cut(rest, " ")
	if !ok {
		t.Fatalf("no table in %q", text)
	}
	r, err := iptables.ParseRule("-A " + rest)
	expect.NoError(t, err)
	return Command{verb, Rule{iptables.ChainID{Table: table, Chain: r.Chain}, r.Args}}
}

func commandsOf(t *testing.T, lines ...string) (all []Command) {
	t.Helper()
	for _, l := range lines {
		all = append(all, command(t, l))
	}
	return all
}

// applyIn applies lines in IPv4.
func applyIn(t *testing.T, ns *netns.Handle, lines ...string) error {
	t.Helper()
	return Apply(t.Context(), socketsIn(ns), nft.FamilyIPv4, commandsOf(t, lines...))
}

func hostTool() tool { return tool{"host", "", nft.FamilyIPv4} }

// rulesOf returns the rules of a table in the listing of the host's tool: "-A" lines alone.
func rulesOf(t *testing.T, ns *netns.Handle, table string) (lines []string) {
	t.Helper()
	for line := range strings.Lines(hostTool().must(t, ns, "", "", "-t", table, "-S")) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "-A") {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestPolicyOfABuiltInChainStays: an administrator's, or Docker's.
func TestPolicyOfABuiltInChainStays(t *testing.T) {
	ns := nettest.New(t)
	hostTool().must(t, ns, "", "", "-P", "FORWARD", "DROP")
	expect.NoError(t, applyIn(t, ns, "-t filter -N CNI-FORWARD", "-t filter -I FORWARD -j CNI-FORWARD", "-t filter -A CNI-FORWARD -s 10.1.0.2 -j ACCEPT"))
	if out := hostTool().must(t, ns, "", "", "-S", "FORWARD"); !strings.HasPrefix(out, "-P FORWARD DROP\n") {
		t.Errorf("the chain is now\n%s", out)
	}
}

// TestForeignBuiltInChain: rules in a chain of another hook or priority would have
// another effect, or none.
func TestForeignBuiltInChain(t *testing.T) {
	for _, chain := range []string{
		"add chain ip nat POSTROUTING { type nat hook postrouting priority 99; }",
		"add chain ip nat POSTROUTING { type filter hook postrouting priority 100; }",
		"add chain ip nat POSTROUTING",
	} {
		ns := nettest.New(t)
		nettest.Run(t, ns, "nft", "add table ip nat; "+chain)
		err := applyIn(t, ns, "-t nat -N CNI-own", "-t nat -A POSTROUTING -s 10.1.0.2 -j CNI-own")
		refused := (*nft.Error)(nil)
		if !errors.As(err, &refused) {
			t.Errorf("%s: got %v, want a refusal of the kernel", chain, err)
		}
		nettest.Shell(t, ns, "! nft list ruleset | grep -q CNI")
	}
}

// TestAllOrNothing: a transaction that the kernel refuses, or that this package does,
// leaves no trace.
func TestAllOrNothing(t *testing.T) {
	const first = "-t filter -A FORWARD -s 10.1.0.2 -j ACCEPT"
	for _, c := range []struct {
		name string
		bad  string
		want error
	}{
		{"a chain that exists", "-t nat -N CNI-old", unix.EEXIST},
		{"a jump to nowhere", "-t nat -A CNI-old -j CNI-missing", unix.ENOENT},
		{"a rule in a missing chain", "-t nat -A CNI-missing -j ACCEPT", unix.ENOENT},
		{"a chain that is used", "-t nat -X CNI-used", unix.EBUSY},
		{"a chain with a rule", "-t nat -X CNI-old", unix.EBUSY},
		{"a missing rule to check", "-t nat -C CNI-old -s 10.1.0.9 -j ACCEPT", ErrMissing},
		{"a missing rule to delete", "-t nat -D CNI-old -s 10.1.0.9 -j ACCEPT", ErrMissing},
		{"a rule of a missing chain", "-t nat -D CNI-missing -j ACCEPT", ErrMissing},
		{"an unknown match", "-t nat -A CNI-old -m statistic --mode nth -j ACCEPT", ErrUnknown},
		{"an unknown table", "-t mangle -N CNI-new", ErrUnknown},
		{"a built-in chain", "-t filter -N INPUT", ErrUnknown},
		{"a built-in chain", "-t filter -X INPUT", ErrUnknown},
		{"an unknown verb", "-t nat -R CNI-old 1 -j ACCEPT", ErrUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := nettest.New(t)
			hostTool().must(t, ns, "*nat\n-N CNI-old\n-N CNI-used\n-A CNI-old -j CNI-used\nCOMMIT\n", "restore", "--noflush")
			before := hostTool().saved(t, ns)
			expect.Is(t, applyIn(t, ns, first, c.bad), c.want)
			expect.Same(t, "the rules", hostTool().saved(t, ns), before)
		})
	}
}

// TestDeleteCopies: each command deletes one of several copies, as iptables does.
func TestDeleteCopies(t *testing.T) {
	ns := nettest.New(t)
	const rule = "filter -A FORWARD -s 10.1.0.2/32 -j ACCEPT"
	expect.NoError(t, applyIn(t, ns, "-t "+rule, "-t "+rule, "-t "+rule))
	deletion := "-t " + strings.Replace(rule, "-A", "-D", 1)
	expect.NoError(t, applyIn(t, ns, deletion, deletion))
	expect.Same(t, "copies", rulesOf(t, ns, "filter"), []string{"-A FORWARD -s 10.1.0.2/32 -j ACCEPT"})
	expect.Is(t, applyIn(t, ns, deletion, deletion), ErrMissing)
	expect.NoError(t, applyIn(t, ns, deletion))
	expect.Same(t, "copies", rulesOf(t, ns, "filter"), nil)
}

// TestOrderOfRules: -I goes to the beginning, and a rule that is deleted and inserted
// in one transaction moves there.
func TestOrderOfRules(t *testing.T) {
	ns := nettest.New(t)
	expect.NoError(t, applyIn(t, ns, "-t filter -A FORWARD -s 10.1.0.1 -j ACCEPT", "-t filter -A FORWARD -s 10.1.0.2 -j ACCEPT"))
	expect.NoError(t, applyIn(t, ns, "-t filter -I FORWARD -s 10.1.0.3 -j DROP"))
	expect.NoError(t, applyIn(t, ns, "-t filter -D FORWARD -s 10.1.0.2 -j ACCEPT", "-t filter -I FORWARD -s 10.1.0.2 -j ACCEPT"))
	expect.Same(t, "order", rulesOf(t, ns, "filter"), []string{
		"-A FORWARD -s 10.1.0.2/32 -j ACCEPT", "-A FORWARD -s 10.1.0.3/32 -j DROP", "-A FORWARD -s 10.1.0.1/32 -j ACCEPT",
	})
}

// TestStates: only a rule that may be the wanted one makes its state unknown.
func TestStates(t *testing.T) {
	ns := nettest.New(t)
	expect.NoError(t, applyIn(t, ns, "-t filter -N CNI-FORWARD", "-t filter -A CNI-FORWARD -s 10.1.0.2 -j ACCEPT"))
	hostTool().must(t, ns, "", "", "-A", "CNI-FORWARD", "-s", "10.1.0.5", "-m", "statistic", "--mode", "nth", "--every", "2", "--packet", "0", "-j", "ACCEPT")
	nettest.Run(t, ns, "nft", "add rule ip filter CNI-FORWARD ip saddr 10.1.0.3 ct state new accept")
	nettest.Run(t, ns, "nft", "add rule ip filter CNI-FORWARD ip saddr 10.1.0.6 counter")
	nettest.Run(t, ns, "nft", `add rule ip filter CNI-FORWARD ip saddr 10.1.0.7 counter accept comment "theirs"`)
	for _, c := range []struct {
		words string
		want  State
	}{
		{"-s 10.1.0.2 -j ACCEPT", Present},
		{"-s 10.1.0.6 -j DROP", Unknown},   // a rule without a verdict is not one that drops
		{"-s 10.1.0.7 -j ACCEPT", Unknown}, // iptables takes the comment for a match
		{"-s 10.1.0.2 -j DROP", Absent},
		{"-d 10.1.0.2 -j ACCEPT", Absent},
		{"! -s 10.1.0.2 -j ACCEPT", Absent},
		{"-s 10.1.0.3 -j ACCEPT", Unknown}, // nft's own rule has that address
		{"-s 10.1.0.4 -j ACCEPT", Absent},
		{"-s 10.1.0.5 -j ACCEPT", Absent},             // a match that the wanted rule lacks
		{"-m mark --mark 0x1/0x1 -j ACCEPT", Unknown}, // nothing distinguishes it from nft's own rule
		{"-s 10.1.0.2 -m limit -j ACCEPT", Unknown},   // a match that this package does not know
	} {
		var states []State
		expect.NoError(t, socketsIn(ns).Do(t.Context(), func(c2 *nft.Conn) (err error) {
			states, err = Look(c2, nft.FamilyIPv4, rulesIn(commandsOf(t, "-t filter -A CNI-FORWARD "+c.words)))
			return err
		}))
		expect.Same(t, c.words, states, []State{c.want})
	}
	var missing []State
	expect.NoError(t, socketsIn(ns).Do(t.Context(), func(c *nft.Conn) (err error) {
		missing, err = Look(c, nft.FamilyIPv6, rulesIn(commandsOf(t, "-t nat -A CNI-FORWARD -j ACCEPT", "-t other -A X -j ACCEPT")))
		return err
	}))
	expect.Same(t, "rules of missing chains", missing, []State{Absent, Absent})
}

// TestOthersChangeRules: while others add and delete rules all the time, each call
// deletes and makes its own, and none of theirs.
func TestOthersChangeRules(t *testing.T) {
	ns := nettest.New(t)
	expect.NoError(t, applyIn(t, ns, "-t filter -N CNI-FORWARD", "-t filter -A CNI-FORWARD -s 10.9.0.1 -j DROP"))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		script := "*filter\n-A CNI-FORWARD -s 10.9.0.2 -j DROP\n-D CNI-FORWARD -s 10.9.0.2 -j DROP\nCOMMIT\n"
		var err error
		for ctx.Err() == nil && err == nil {
			_, err = hostTool().run(ns, script, "restore", "--noflush")
		}
		done <- err
	}()
	for range 100 {
		expect.NoError(t, applyIn(t, ns, "-t filter -N CNI-own", "-t filter -A CNI-own -j ACCEPT", "-t filter -A CNI-FORWARD -s 10.1.0.2 -j CNI-own"))
		expect.NoError(t, applyIn(t, ns, "-t filter -D CNI-FORWARD -s 10.1.0.2 -j CNI-own", "-t filter -D CNI-own -j ACCEPT", "-t filter -X CNI-own"))
	}
	stop()
	expect.NoError(t, <-done)
	expect.Same(t, "rules", rulesOf(t, ns, "filter"), []string{"-A CNI-FORWARD -s 10.9.0.1/32 -j DROP"})
}

// TestParse: words that iptables would refuse, or that this package does not know.
func TestParse(t *testing.T) {
	for _, words := range []string{
		"", "-j", "-s 10.1.0.2", "-s 10.1.0.2 -s 10.1.0.3 -j ACCEPT", "-s fd00::1 -j ACCEPT", "-s 10.1.0.300 -j ACCEPT", "! -s 0.0.0.0/0 -j ACCEPT",
		"-i cni+ -j ACCEPT", "-i abcdefghijklmnop -j ACCEPT", "-p icmp -j ACCEPT", "! -p tcp -j ACCEPT", "-p tcp -p udp -j ACCEPT",
		"--dport 80 -j ACCEPT", "-p tcp --dport 80:90 -j ACCEPT", "-p tcp --dport 65536 -j ACCEPT", "-p tcp -m udp --dport 80 -j ACCEPT",
		"-m comment -j ACCEPT", "--comment x -j ACCEPT", "-m comment --comment " + strings.Repeat("x", 256) + " -j ACCEPT",
		"-m conntrack --ctstate NEW -j ACCEPT", "-m addrtype --src-type LOCAL -j ACCEPT", "-m mark --mark 1 -j ACCEPT", "-m mark ! --mark 1/1 -j ACCEPT",
		"-m multiport -p tcp --dports 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16 -j ACCEPT", "-m multiport -p tcp --dports 1:2 -j ACCEPT",
		"-j MARK", "-j DNAT", "-p tcp -j DNAT --to-destination 10.1.0.2", "-p tcp -j DNAT --to-destination [fd00::1]:80", "-j DNAT --to-destination 10.1.0.2:80",
		"-j ACCEPT --set-xmark 1/1", "-j ACCEPT -j DROP", "-g CHAIN", "-j " + strings.Repeat("x", 29), "-j ACCEPT -m limit",
	} {
		if r, err := parse(nft.FamilyIPv4, strings.Fields(words)); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: got %+v, %v", words, r, err)
		}
	}
	// The order of options, and other words for the same, make no difference.
	for _, same := range [][]string{
		{"-s 10.1.0.2 -d 10.2.0.0/16 -j X", "-d 10.2.3.4/16 -j X -s 10.1.0.2/32"},
		{"-j X", "-s 0.0.0.0/0 -j X"},
		{"-p tcp --dport 80 -j X", "-p tcp -m tcp --dport 80 -j X"},
		{"-p udp -m multiport --destination-ports 1,2 -j X", "-m multiport -p udp --dports 1,2 -j X"},
	} {
		a, errA := parse(nft.FamilyIPv4, strings.Fields(same[0]))
		b, errB := parse(nft.FamilyIPv4, strings.Fields(same[1]))
		expect.NoError(t, errA, errB)
		if a.key() != b.key() {
			t.Errorf("%q and %q differ: %+v, %+v", same[0], same[1], a, b)
		}
	}
}

// TestDecodeUndoesEncode for all forms.
func TestDecodeUndoesEncode(t *testing.T) {
	for _, family := range []uint8{nft.FamilyIPv4, nft.FamilyIPv6} {
		rules := rulesIn(commands(t, family))
		for i, r := range rules {
			want, err := parse(family, r.Words)
			expect.NoError(t, err)
			got, err := decode(family, want.encode(family))
			expect.NoError(t, err)
			if got.key() != want.key() {
				t.Errorf("%q: got %+v, want %+v", r.Words, got, want)
			}
			// No other rule is taken for it.
			for _, other := range slices.Concat(rules[:i], rules[i+1:]) {
				if o, err := parse(family, other.Words); err != nil || o.key() == want.key() && other.Chain == r.Chain {
					t.Errorf("%q is taken for %q, %v", r.Words, other.Words, err)
				}
			}
		}
	}
}

// FuzzDecode: any bytes from the kernel are a rule or unknown.
func FuzzDecode(f *testing.F) {
	for _, words := range []string{"-s 10.1.0.2 -p tcp --dport 80 -j X", "-m mark --mark 0x1/0x1 -j MASQUERADE", "! -d 224.0.0.0/4 -i a -o b -j RETURN"} {
		r, err := parse(nft.FamilyIPv4, strings.Fields(words))
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(r.encode(nft.FamilyIPv4)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, family := range []uint8{nft.FamilyIPv4, nft.FamilyIPv6} {
			if r, err := decode(family, data); err != nil && !errors.Is(err, ErrUnknown) {
				t.Errorf("got %+v, %v", r, err)
			}
		}
	})
}
