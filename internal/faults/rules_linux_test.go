package faults_test

import (
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

// ruleChange is something that others do to the rules of a host.
type ruleChange struct {
	what string
	do   func()
}

// TestFault_F68_ChangedRulesAreBack: whatever others do to the rules that containers
// share, a guard has the traffic back.
func TestFault_F68_ChangedRulesAreBack(t *testing.T) {
	for _, f := range ruleForms() {
		t.Run(f.name, func(t *testing.T) {
			h := newRuleHost(t, f, 2)
			_, _, err := h.back(h.homes)
			expect.NoError(t, err)
			tried := 0
			for _, family := range []string{"iptables", "ip6tables"} {
				for c := range h.sharedChanges(family) {
					h.try(c, h.homes)
					tried++
				}
			}
			expect.That(t, tried >= 8, "only %d changes were tried", tried)
		})
	}
}

// try makes a change under the eyes of a guard, and reports how long the traffic was away.
func (h *ruleHost) try(c ruleChange, homes []ruleHome) (traffic, health time.Duration) {
	h.t.Helper()
	defer h.guard()()
	c.do()
	traffic, health, err := h.back(homes)
	if err != nil {
		h.t.Errorf("%s: %v\nthe guard says:\n%s", c.what, err, h.story())
	}
	if err != nil {
		expect.Value(h.r.Recover(h.t.Context()))(h.t)
		return expect.Patience, expect.Patience
	}
	h.t.Logf("%-60s traffic after %4d ms, healthy after %4d ms", c.what, traffic.Milliseconds(), health.Milliseconds())
	return traffic, health
}

// changedRules is M22: after any change of rules by others, what a container lost is back.
func (b *board) changedRules(t *testing.T) {
	var all, slow, failed int
	var longest time.Duration
	forms := ruleForms()
	for i, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			random := b.random(22<<32 + uint64(i))
			// iptables-restore sends what it restores in one message, which has no room for
			// the chains of a hundred containers.
			h := newRuleHost(t, f, min(*ruleContainers, 20))
			_, _, err := h.back(h.homes)
			expect.NoError(t, err)
			for n := i; n < *ruleChanges; n += len(forms) {
				// What is lost has traffic in a few places; Health knows of all.
				homes := []ruleHome{h.homes[0], h.homes[random.IntN(len(h.homes))], h.homes[len(h.homes)-1]}
				traffic, _ := h.try(h.randomChange(random), homes)
				all++
				longest = max(longest, traffic)
				if traffic > time.Second {
					slow++
				}
				if t.Failed() {
					failed++
					return // the host is not as it was
				}
			}
		})
	}
	b.figure(t, "M22", "traffic back after changes of rules by others",
		fmt.Sprintf("%d of %d not back, %d after more than 1 s, longest %d ms", failed, all, slow, longest.Milliseconds()),
		fmt.Sprintf("0, ≤ %v", *ruleLimit), failed == 0 && all > 0 && longest <= *ruleLimit)
}

// flushedRules is M20: all containers' traffic is back after the packet filter was flushed.
func (b *board) flushedRules(t *testing.T) {
	var all int
	var longest time.Duration
	for _, f := range ruleForms() {
		if f.variant == "legacy" {
			continue // nothing announces a flush of its tables, see guard.Options.LegacyInterval
		}
		t.Run(f.name, func(t *testing.T) {
			h := newRuleHost(t, f, *ruleContainers)
			_, _, err := h.back(h.homes)
			expect.NoError(t, err)
			flush := ruleChange{"flush", func() { h.run("", "nft", "flush", "ruleset") }}
			traffic, _ := h.try(flush, h.homes)
			all++
			longest = max(longest, traffic)
		})
	}
	b.figure(t, "M20", fmt.Sprintf("traffic of %d containers back after a flush of all rules", *ruleContainers),
		fmt.Sprintf("%d ms at most, of %d flushes", longest.Milliseconds(), all),
		fmt.Sprintf("≤ %v", *ruleLimit), !t.Failed() && all > 0 && longest <= *ruleLimit)
}

// sharedChanges are changes of what all containers share, as far as it is there when its
// turn comes: what an executable's rules did is put back in the form of a built-in plugin.
func (h *ruleHost) sharedChanges(family string) iter.Seq[ruleChange] {
	return func(yield func(ruleChange) bool) {
		for _, tc := range sharedChains {
			verbs := []string{"restore", "flush", "replace"}
			if family == "ip6tables" {
				verbs = verbs[1:2] // the kernel announces both families' changes alike
			}
			for _, verb := range verbs {
				if len(h.savedRules(family, tc.table).of(tc.chain)) > 0 && !yield(h.iptablesChange(verb, family, tc.table, tc.chain, 0)) {
					return
				}
			}
		}
	}
}

// sharedChains are the chains of iptables whose rules serve all containers.
var sharedChains = []struct{ table, chain string }{
	{"filter", "FORWARD"}, {"filter", "CNI-FORWARD"}, {"nat", "POSTROUTING"}, {"nat", "PREROUTING"}, {"nat", "OUTPUT"},
	{"nat", "CNI-HOSTPORT-MASQ"}, {"nat", "CNI-HOSTPORT-SETMARK"}, {"nat", "CNI-HOSTPORT-DNAT"},
}

// saved is what iptables-save prints of one table.
type saved []string

// of returns the rules of a chain.
func (s saved) of(chain string) (rules []string) {
	for _, line := range s {
		if strings.HasPrefix(line, "-A "+chain+" ") {
			rules = append(rules, line)
		}
	}
	return rules
}

// chains returns the chains that have rules.
func (s saved) chains() (chains []string) {
	for _, line := range s {
		if name, ok := strings.CutPrefix(line, ":"); ok {
			if name, _, _ = strings.Cut(name, " "); len(s.of(name)) > 0 {
				chains = append(chains, name)
			}
		}
	}
	return chains
}

func (h *ruleHost) savedRules(family, table string) saved {
	h.t.Helper()
	return strings.Split(h.run("", family+"-save", "-t", table), "\n")
}

// harmless is a rule that does nothing.
func harmless() []string { return []string{"-m", "comment", "--comment", "somebody's"} }

// iptablesChange returns a change of a chain, of its rule n.
func (h *ruleHost) iptablesChange(verb, family, table, chain string, n int) ruleChange {
	number := fmt.Sprint(n + 1)
	run := func(args ...string) { h.run("", family, append([]string{"-w", "-t", table}, args...)...) }
	restore := func(lines []string, args ...string) {
		h.run("*"+table+"\n"+strings.Join(lines, "\n")+"\nCOMMIT\n", family+"-restore", append([]string{"-w"}, args...)...)
	}
	do := map[string]func(){
		"delete":      func() { run("-D", chain, number) },
		"replace":     func() { run(append([]string{"-R", chain, number}, harmless()...)...) },
		"flush":       func() { run("-F", chain) },
		"flush table": func() { run("-F") },
		"restore": func() { // the chain without the rule
			lines := h.savedRules(family, table).of(chain)
			restore(append([]string{"-F " + chain}, slices.Delete(lines, n, n+1)...), "--noflush")
		},
		"restore with another rule": func() {
			lines := h.savedRules(family, table).of(chain)
			lines[n] = "-A " + chain + " " + strings.Replace(strings.Join(harmless(), " "), "somebody's", "another", 1)
			restore(append([]string{"-F " + chain}, lines...), "--noflush")
		},
		"restore table": func() { // without the rule
			all := h.savedRules(family, table)
			gone := all.of(chain)[n]
			all = slices.DeleteFunc(all, func(line string) bool { return line == gone || line == "COMMIT" || strings.HasPrefix(line, "*") })
			restore(all)
		},
		"delete chain": func() { // with the jumps to it
			var lines []string
			for _, line := range h.savedRules(family, table) {
				if strings.HasSuffix(line, "-j "+chain) {
					lines = append(lines, strings.Replace(line, "-A ", "-D ", 1))
				}
			}
			lines = append(lines, "-F "+chain)
			if strings.HasPrefix(chain, "CNI-") {
				lines = append(lines, "-X "+chain)
			}
			restore(lines, "--noflush")
		},
	}[verb]
	return ruleChange{fmt.Sprintf("%s: %s %s %s %d", family, verb, table, chain, n+1), do}
}

// randomIPTables chooses a change of rules of iptables, if there are some.
func (h *ruleHost) randomIPTables(random *rand.Rand) (c ruleChange, ok bool) {
	family := []string{"iptables", "ip6tables"}[random.IntN(2)]
	table := []string{"nat", "filter"}[random.IntN(2)]
	all := h.savedRules(family, table)
	chains := all.chains()
	if len(chains) == 0 {
		return c, false
	}
	chain := chains[random.IntN(len(chains))]
	verbs := []string{"delete", "replace", "flush", "flush table", "restore", "restore with another rule", "restore table", "delete chain"}
	return h.iptablesChange(verbs[random.IntN(len(verbs))], family, table, chain, random.IntN(len(all.of(chain)))), true
}

// nftObject is a rule, chain, set or map as nft lists it.
type nftObject struct {
	kind, Family, Table, Chain, Name string
	Handle                           int
}

// nftObjects lists what is in the tables that iptables does not have.
func (h *ruleHost) nftObjects() (all []nftObject) {
	h.t.Helper()
	var list struct{ NFTables []map[string]json.RawMessage }
	expect.NoError(h.t, json.Unmarshal([]byte(h.run("", "nft", "-j", "list", "ruleset")), &list))
	for _, one := range list.NFTables {
		for kind, data := range one {
			var o nftObject
			if kind == "metainfo" {
				continue
			}
			expect.NoError(h.t, json.Unmarshal(data, &o))
			if o.kind = kind; kind == "table" {
				o.Table = o.Name
			}
			if o.Table != "nat" && o.Table != "filter" && o.Table != "mangle" {
				all = append(all, o)
			}
		}
	}
	return all
}

var (
	nftElements = regexp.MustCompile(`(?s)elements = \{(.*?)\}`)
	nftComment  = regexp.MustCompile(` comment "[^"]*"`)
)

// elements returns the keys of a set or a map.
func (h *ruleHost) elements(o nftObject) (keys []string) {
	h.t.Helper()
	m := nftElements.FindStringSubmatch(h.run("", "nft", "list", o.kind, o.Family, o.Table, o.Name))
	if m == nil {
		return nil
	}
	for _, e := range strings.Split(nftComment.ReplaceAllString(m[1], ""), ",") {
		keys = append(keys, strings.TrimSpace(e))
	}
	return keys
}

// randomNFT chooses a change of rules that iptables does not have, if there are some.
func (h *ruleHost) randomNFT(random *rand.Rand) (c ruleChange, ok bool) {
	all := h.nftObjects()
	if len(all) == 0 {
		return c, false
	}
	o := all[random.IntN(len(all))]
	place := o.Family + " " + o.Table
	var scripts []string
	switch o.kind {
	case "table":
		scripts = []string{"delete table " + place, "flush table " + place, "flush ruleset"}
	case "chain":
		scripts = []string{fmt.Sprintf("flush chain %s %s", place, o.Name)}
	case "rule":
		rule := fmt.Sprintf("rule %s %s handle %d", place, o.Chain, o.Handle)
		added := fmt.Sprintf("add rule %s %s counter comment \"another\"", place, o.Chain)
		scripts = []string{"delete " + rule, "replace " + rule + ` counter comment "somebody's"`, added + "\ndelete " + rule, "delete " + rule + "\n" + added}
	case "set", "map":
		scripts = []string{fmt.Sprintf("flush %s %s %s", o.kind, place, o.Name)}
		if keys := h.elements(o); len(keys) > 0 {
			scripts = append(scripts, fmt.Sprintf("delete element %s %s { %s }", place, o.Name, keys[random.IntN(len(keys))]))
		}
	default:
		return c, false
	}
	script := scripts[random.IntN(len(scripts))]
	policy := "iptables -w -P FORWARD DROP; ip6tables -w -P FORWARD DROP" // a flush opens the host
	return ruleChange{"nft: " + script, func() {
		h.run(script+"\n", "nft", "-f", "-")
		if script == "flush ruleset" {
			h.run("", "sh", "-ec", policy)
		}
	}}, true
}

// randomChange chooses a change of the rules.
func (h *ruleHost) randomChange(random *rand.Rand) ruleChange {
	for {
		choose := h.randomIPTables
		if random.IntN(2) == 0 {
			choose = h.randomNFT
		}
		if c, ok := choose(random); ok {
			return c
		}
	}
}
