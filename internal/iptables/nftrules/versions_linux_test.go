package nftrules

import (
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/nft"
	"github.com/embedcni/cni/netns"
)

var update = flag.Bool("update", false, "write the rules of iptables 1.8.7 to testdata")

func socketsIn(ns *netns.Handle) nft.Sockets { return nft.Sockets{NS: ns} }

// expressions returns the bytes of a rule, a line for each expression, with runs of
// zero bytes counted. It leaves out what depends on the kernel: before 5.6, it did not
// list the operation of a bitwise expression.
func expressions(e nft.Exprs) string {
	var b strings.Builder
	for _, x := range e.List() {
		data := strings.TrimPrefix(x.String(), x.Name+" ")
		if x.Name == "bitwise" {
			data = strings.Replace(data, hex.EncodeToString([]byte{8, 0, 6, 0, 0, 0, 0, 0}), "", 1)
		}
		zeros := regexp.MustCompile(`(00){8,}`)
		data = zeros.ReplaceAllStringFunc(data, func(run string) string { return fmt.Sprintf("[%d]", len(run)/2) })
		fmt.Fprintf(&b, "  %s %s\n", x.Name, data)
	}
	return b.String()
}

// TestRulesAreThoseOf187: byte for byte, but for the addresses of some networks. Its
// rules are kept in testdata, because few hosts have it.
func TestRulesAreThoseOf187(t *testing.T) {
	for _, family := range []uint8{nft.FamilyIPv4, nft.FamilyIPv6} {
		file := filepath.Join("testdata", fmt.Sprintf("1.8.7-family%d.txt", family))
		all := commands(t, family)
		if *update {
			ns := nettest.New(t)
			x := tool{"1.8.7", filepath.Join(os.Getenv(versionsVariable), "1.8.7"), family}
			x.must(t, ns, script(family), "restore", "--noflush")
			expect.NoError(t, os.WriteFile(file, []byte(listing(t, ns, family, all)), 0o644))
		}
		want, err := os.ReadFile(file)
		expect.NoError(t, err)
		ns := nettest.New(t)
		expect.NoError(t, Apply(t.Context(), socketsIn(ns), family, all))
		expect.Same(t, file, listing(t, ns, family, all), string(want))
	}
}

// listing returns the rules with their expressions, but for those that
// [comparesWholeBytes].
func listing(t *testing.T, ns *netns.Handle, family uint8, all []Command) string {
	t.Helper()
	var b strings.Builder
	texts := bytesOf(t, ns, family, all)
	for i, r := range rulesIn(all) {
		fmt.Fprintf(&b, "%v\n", Command{"-A", r})
		if !comparesWholeBytes(t, family, r) {
			b.WriteString(texts[i])
		}
	}
	return b.String()
}

// comparesWholeBytes reports whether the rule compares with a network whose prefix has
// whole bytes. Since 1.8.6, iptables compares these alone.
func comparesWholeBytes(t *testing.T, family uint8, r Rule) bool {
	t.Helper()
	parsed, err := parse(family, r.Words)
	expect.NoError(t, err)
	for _, n := range []network{parsed.src, parsed.dst} {
		if n.IsValid() && !n.IsSingleIP() && n.Bits()%8 == 0 {
			return true
		}
	}
	return false
}

// TestRulesOfEachVersion: this package finds each rule that a version of iptables made,
// and deletes all of them with their chains. Most rules are the same bytes as its own,
// in any version.
func TestRulesOfEachVersion(t *testing.T) {
	eachTool(t, func(t *testing.T, x tool) {
		ns, own := nettest.New(t), nettest.New(t)
		all := commands(t, x.family)
		x.must(t, ns, script(x.family), "restore", "--noflush")
		expect.NoError(t, Apply(t.Context(), socketsIn(own), x.family, all))
		theirs, ours := bytesOf(t, ns, x.family, all), bytesOf(t, own, x.family, all)
		for i, r := range rulesIn(all) {
			if !dependsOnVersion(t, x.family, r) && (theirs[i] == "" || theirs[i] != ours[i]) {
				t.Errorf("%v: the tool made\n%sbut the package\n%s", Command{"-A", r}, theirs[i], ours[i])
			}
		}
		expect.Same(t, "texts", textsOf(t, ns, x.family, all), textsOf(t, own, x.family, all))
		expect.NoError(t, Apply(t.Context(), socketsIn(ns), x.family, with(all, "-D", "-X")))
		wantEmpty(t, ns, x)
	})
}

// dependsOnVersion reports whether the package's documentation says that versions write
// the rule in different ways.
func dependsOnVersion(t *testing.T, family uint8, r Rule) bool {
	t.Helper()
	return slices.Contains(r.Words, "-p") || slices.Contains(r.Words, "--mark") || comparesWholeBytes(t, family, r)
}

// bytesOf returns the expressions of each rule in the kernel.
func bytesOf(t *testing.T, ns *netns.Handle, family uint8, all []Command) []string {
	t.Helper()
	rules := rulesIn(all)
	texts := make([]string, len(rules))
	expect.NoError(t, socketsIn(ns).Do(t.Context(), func(c *nft.Conn) error {
		states, err := Look(c, family, rules)
		for i, s := range states {
			if s != Present {
				t.Errorf("%v: state %v", Command{"-A", rules[i]}, s)
			}
		}
		if err != nil {
			return err
		}
		for i, r := range rules {
			found, err := find(c, family, rules[i:i+1])
			if err != nil || len(found[0].objects) != 1 {
				t.Errorf("%v: found %v, %v", Command{"-A", r}, found, err)
				continue
			}
			err = c.Rules(nft.Table{Family: family, Name: r.Table}, r.Chain, nil, func(listed nft.Rule) error {
				if listed.Handle == found[0].objects[0].Handle {
					texts[i] = expressions(listed.Exprs)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	}))
	return texts
}

// textsOf returns the texts of all rules, by chain in order.
func textsOf(t *testing.T, ns *netns.Handle, family uint8, all []Command) (texts []string) {
	t.Helper()
	expect.NoError(t, socketsIn(ns).Do(t.Context(), func(c *nft.Conn) error {
		for _, command := range all {
			if command.Words != nil {
				continue
			}
			err := c.Rules(nft.Table{Family: family, Name: command.Table}, command.Chain, nil, func(r nft.Rule) error {
				texts = append(texts, Text(family, r.Exprs))
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	}))
	if len(texts) < 20 {
		t.Errorf("only %d rules in the chains", len(texts))
	}
	return texts
}

// wantEmpty fails if the tool, or the kernel, has a rule or a chain besides the built-in
// ones.
func wantEmpty(t *testing.T, ns *netns.Handle, x tool) {
	t.Helper()
	saved := x.saved(t, ns)
	if strings.Contains(saved, "CNI") || strings.Contains(saved, "\n-A") {
		t.Errorf("%v still lists\n%s", x, saved)
	}
	expect.NoError(t, socketsIn(ns).Do(t.Context(), func(c *nft.Conn) error {
		for _, table := range []string{"nat", "filter"} {
			err := c.Rules(nft.Table{Family: x.family, Name: table}, "", nil, func(r nft.Rule) error {
				t.Errorf("table %s, chain %s still has a rule", table, r.Chain)
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

// TestEachVersionTakesTheRulesForItsOwn: it lists them as those that it makes, finds
// each by its words, saves and restores them, and deletes them.
func TestEachVersionTakesTheRulesForItsOwn(t *testing.T) {
	eachTool(t, func(t *testing.T, x tool) {
		ours, theirs, restored := nettest.New(t), nettest.New(t), nettest.New(t)
		all := commands(t, x.family)
		expect.NoError(t, Apply(t.Context(), socketsIn(ours), x.family, all))
		x.must(t, theirs, script(x.family), "restore", "--noflush")

		want := x.saved(t, theirs)
		expect.Same(t, "iptables-save", x.saved(t, ours), want)
		for _, table := range []string{"nat", "filter"} {
			expect.Same(t, "iptables -S", x.must(t, ours, "", "", "-t", table, "-S"), x.must(t, theirs, "", "", "-t", table, "-S"))
		}
		x.must(t, ours, restoreText(with(all, "-C", "")), "restore", "--noflush")
		for _, r := range rulesIn(all) {
			x.must(t, ours, "", "", append([]string{"-t", r.Table, "-C", r.Chain}, r.Words...)...)
		}
		x.must(t, restored, x.must(t, ours, "", "save"), "restore")
		expect.Same(t, "iptables-save after a restore", x.saved(t, restored), want)
		bytesOf(t, restored, x.family, all)

		x.must(t, ours, restoreText(with(all, "-D", "-X")), "restore", "--noflush")
		wantEmpty(t, ours, x)
	})
}
