package nftrules

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/nft"
)

// both adds rules to two built-in chains.
var both = []string{"-t nat -A POSTROUTING -s 10.1.0.2 -j MASQUERADE", "-t filter -I FORWARD -s 10.1.0.2 -j ACCEPT"}

// TestABuiltInChainThatIsThereIsNotSent: the kernel would take it for a change.
func TestABuiltInChainThatIsThereIsNotSent(t *testing.T) {
	ns := nettest.New(t)
	nat, filter := iptables.ChainID{Table: "nat", Chain: "POSTROUTING"}, iptables.ChainID{Table: "filter", Chain: "FORWARD"}
	look := func() (there map[iptables.ChainID]bool) {
		expect.NoError(t, socketsIn(ns).Do(t.Context(), func(c *nft.Conn) (err error) {
			there, err = standing(c, nft.FamilyIPv4, commandsOf(t, both...))
			return err
		}))
		return there
	}
	expect.Same(t, "at first", look(), map[iptables.ChainID]bool{})
	nettest.Run(t, ns, "nft", "add table ip nat; add chain ip nat POSTROUTING { type nat hook postrouting priority 100; }")
	expect.Same(t, "with one", look(), map[iptables.ChainID]bool{nat: true, {Table: "nat"}: true})
	expect.NoError(t, applyIn(t, ns, both...))
	all := map[iptables.ChainID]bool{nat: true, {Table: "nat"}: true, filter: true, {Table: "filter"}: true}
	expect.Same(t, "afterwards", look(), all)

	// With them, a transaction has nothing but the rules.
	b := batch{family: nft.FamilyIPv4, made: all}
	for _, c := range commandsOf(t, both...) {
		expect.NoError(t, b.add(c))
	}
	expect.Same(t, "messages", len(b.messages), len(both))
	expect.NoError(t, applyIn(t, ns, both...))
	expect.Same(t, "rules", len(rulesOf(t, ns, "nat"))+len(rulesOf(t, ns, "filter")), 2*len(both))
}

// TestABuiltInChainVanishes between the look and the transaction.
func TestABuiltInChainVanishes(t *testing.T) {
	for _, deletion := range []string{"flush ruleset", "delete chain ip nat POSTROUTING"} {
		ns := nettest.New(t)
		hostTool().must(t, ns, "*nat\n:POSTROUTING ACCEPT\nCOMMIT\n*filter\n:FORWARD ACCEPT\nCOMMIT\n", "restore")
		commands := commandsOf(t, both...)
		expect.NoError(t, socketsIn(ns).Do(t.Context(), func(c *nft.Conn) error {
			there, err := standing(c, nft.FamilyIPv4, commands)
			expect.Same(t, "chains and tables", len(there), 4)
			nettest.Run(t, ns, "nft", deletion)
			expect.Is(t, applyTo(c, nft.FamilyIPv4, commands, there), unix.ENOENT)
			return err
		}))
		// And while somebody flushes all rules again and again.
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				default:
					nettest.Run(t, ns, "nft", "flush ruleset")
				}
			}
		}()
		for range 50 {
			expect.NoError(t, applyIn(t, ns, both...))
		}
		close(stop)
		<-done
		expect.NoError(t, applyIn(t, ns, both...))
		if rules := strings.Join(rulesOf(t, ns, "nat"), "\n"); !strings.Contains(rules, "MASQUERADE") {
			t.Errorf("after %q: %s", deletion, rules)
		}
	}
}
