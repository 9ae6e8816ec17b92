package netfilter

import (
	"errors"
	"fmt"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// damaged is a host with two containers' rules in one backend, and an
// administrator's in the same chains.
type damaged struct {
	*host
	t       *testing.T
	backend fwrules.Backend
	variant string // of iptables
	rules   []fwrules.Rules
	undone  string // commands that delete everything
	// The administrator's rules: input of nft, and commands.
	admin, adminTools string
}

func newDamaged(t *testing.T, b fwrules.Backend, variant string) *damaged {
	d := &damaged{host: newHost(t, variant), t: t, backend: b, variant: variant, undone: "nft flush ruleset"}
	for i, id := range []string{"c1", "c2"} {
		r := everything(id, 4+i)
		r.HostPorts[0].Ports = append(r.HostPorts[0].Ports, wanted(id, "10.1.0.2/24", "fd00:1::2/64", uint16(3000+i)).HostPorts[0].Ports...)
		r.Forward[0].Ingress, r.Forward[0].Bridge = "isolated", "br1"
		if b == fwrules.NFTables {
			r.Forward = nil
		}
		d.rules = append(d.rules, r)
	}
	nft := func(format, at string) { d.admin += fmt.Sprintf(format+" rule %s counter comment admin\n", at) }
	switch b {
	case fwrules.IPTables:
		rule := func(at string) string { return "-A " + at + " -m comment --comment admin -j RETURN\n" }
		text := "*nat\n" + rule("POSTROUTING") + rule("CNI-HOSTPORT-DNAT") + "COMMIT\n*filter\n" + rule("FORWARD") + rule("CNI-FORWARD") + rule("CNI-ADMIN") + "COMMIT"
		for _, tool := range []string{"iptables-" + variant, "ip6tables-" + variant} {
			if variant == "legacy" {
				d.undone += fmt.Sprintf("; printf '*nat\nCOMMIT\n*filter\nCOMMIT\n' | %s-restore", tool)
			}
			d.adminTools += fmt.Sprintf("%s-restore --noflush <<EOF\n%s\nEOF\n", tool, text)
		}
	case fwrules.NFTables:
		for _, at := range []string{"inet cni_plugins_masquerade postrouting", "inet cni_plugins_masquerade masq_checks",
			"ip cni_hostport prerouting", "ip6 cni_hostport hostports_all", "ip cni_hostport hostports"} {
			nft("insert", at)
			nft("add", at)
		}
	case fwrules.Native:
		nft("insert", "inet embedcni subnets")
		nft("add", "inet embedcni hairpin")
	}
	d.admin += "add table inet admin\nadd chain inet admin x\nadd rule inet admin x ip saddr 10.1.0.4 counter comment admin\n"
	return d
}

// reset makes the undamaged state.
func (d *damaged) reset() {
	d.t.Helper()
	d.sh(d.undone)
	for _, r := range d.rules {
		must(d.t, d.fw.Add(d.t.Context(), d.backend, r))
	}
	d.sh(d.adminTools)
	d.feed(d.admin, "nft", "-f", "-")
}

// lines returns the packet filter of the backend, sorted.
func (d *damaged) lines() audit.Lines {
	d.t.Helper()
	lines := audit.Lines(d.listing())
	if d.backend == fwrules.IPTables {
		// Of the legacy variant nft shows nothing, and it shows that of nf_tables in part.
		lines = append(d.saved(d.variant), lines.Without(func(l string) bool { return !ofAdmin(l) })...)
	}
	slices.Sort(lines)
	return lines
}

// ofAdmin reports whether a line, or a comment, is the administrator's.
func ofAdmin(line string) bool {
	return line == "admin" || strings.Contains(line, "--comment admin ") || strings.Contains(line, `"admin"`)
}

// missing returns the missing parts of all containers, and fails unless the snapshot
// has the same.
func (d *damaged) missing(what string) (all []fwrules.Missing) {
	d.t.Helper()
	snapshot := Read(d.fw)
	for _, r := range d.rules {
		some, err := d.fw.Missing(d.t.Context(), d.backend, r)
		must(d.t, err)
		seen, err := snapshot.Missing(d.t.Context(), d.backend, r)
		must(d.t, err)
		wantSameMissing(d.t, what, seen, some)
		all = append(all, some...)
	}
	return all
}

func wantSameMissing(t *testing.T, what string, seen, kernel []fwrules.Missing) {
	t.Helper()
	if got, want := textOfMissing(seen), textOfMissing(kernel); got != want {
		t.Errorf("%s: the snapshot says\n%s\nthe kernel says\n%s", what, got, want)
		return
	}
	for i := range seen {
		if !reflect.DeepEqual(seen[i].Rules, kernel[i].Rules) || seen[i].Backend != kernel[i].Backend {
			t.Errorf("%s: %s: the snapshot would make %v, and the kernel's %v", what, seen[i].Object, seen[i].Rules, kernel[i].Rules)
		}
	}
}

func textOfMissing(all []fwrules.Missing) string {
	var b strings.Builder
	for _, m := range all {
		fmt.Fprintf(&b, "%s (found %q): %v\n", m.Object, m.Found, m.Err)
	}
	return b.String()
}

// try damages the state, restores each missing part, and compares: what was ours is
// back, once, and the administrator's rules that the damage spared are as they were.
func (d *damaged) try(damage string, before audit.Lines, restore func([]fwrules.Missing)) {
	d.t.Helper()
	d.sh(damage)
	want := before
	if lost := minus(before, d.lines()).Without(func(l string) bool { return !ofAdmin(l) }); len(lost) > 0 {
		want = minus(before, lost)
	}
	all := d.missing(damage)
	if len(all) == 0 {
		d.t.Errorf("%s: nothing is missing", damage)
	}
	for _, m := range all {
		if m.Found != "" || !errors.Is(m.Err, fwrules.ErrMissing) || m.Object == "" {
			d.t.Errorf("%s: %s: found %q, %v", damage, m.Object, m.Found, m.Err)
		}
	}
	restore(all)
	if left := d.missing(damage + ", restored"); len(left) > 0 {
		d.t.Errorf("%s: still missing after it was restored:\n%s", damage, textOfMissing(left))
	}
	for _, r := range d.rules { // again, and whole
		must(d.t, d.fw.Restore(d.t.Context(), d.backend, r))
	}
	wantLines(d.t, damage+", restored", d.lines(), want)
}

// each restores parts one after the other.
func (d *damaged) each(all []fwrules.Missing) {
	d.t.Helper()
	for _, m := range all {
		must(d.t, d.fw.Restore(d.t.Context(), m.Backend, m.Rules))
	}
}

// together restores the parts of all containers in one flush of their batches.
func (d *damaged) together(all []fwrules.Missing) {
	d.t.Helper()
	for _, err := range d.flush(all) {
		must(d.t, err)
	}
}

// flush restores parts in one flush, each in a batch of its own.
func (d *damaged) flush(all []fwrules.Missing) []error {
	d.t.Helper()
	var batches []*batch.Batch
	for _, m := range all {
		b := &batch.Batch{}
		must(d.t, Open(nil, Options{Batch: b}).Restore(d.t.Context(), m.Backend, m.Rules))
		batches = append(batches, b)
	}
	return batch.FlushTogether(d.t.Context(), batches)
}

// TestEachDamageIsFoundAndRestored: tables, chains, rules, sets and elements, one by
// one, in each backend.
func TestEachDamageIsFoundAndRestored(t *testing.T) {
	damages := map[fwrules.Backend]func(*damaged) []string{
		fwrules.IPTables: (*damaged).ofIPTables, fwrules.NFTables: (*damaged).ofNFTables, fwrules.Native: (*damaged).ofNative,
	}
	for b, of := range damages {
		for _, variant := range []string{"nft", "legacy"} {
			if b != fwrules.IPTables && variant == "legacy" {
				continue // these do not use it
			}
			t.Run(fmt.Sprintf("%q %s", string(b), variant), func(t *testing.T) {
				d := newDamaged(t, b, variant)
				d.reset()
				before := d.lines()
				if all := d.missing("undamaged"); len(all) > 0 {
					t.Fatalf("undamaged:\n%s", textOfMissing(all))
				}
				scripts := of(d)
				if len(scripts) < 25 {
					t.Errorf("only %q", scripts)
				}
				for i, damage := range scripts {
					restore := d.each
					if i%2 == 1 {
						restore = d.together
					}
					if i > 0 {
						d.reset()
					}
					d.try(damage, before, restore)
					if t.Failed() {
						t.FailNow()
					}
				}
			})
		}
	}
}

// ofIPTables returns the damages: by one command, and each rule of the first container
// and of all.
func (d *damaged) ofIPTables() []string {
	own := d.rules[0].Masquerade[0].Chains()
	tools := []string{"iptables-" + d.variant, "ip6tables-" + d.variant}
	var scripts []string
	for _, tool := range tools {
		scripts = append(scripts, tool+" -t nat -F", tool+" -F", tool+" -F FORWARD", tool+" -t nat -F POSTROUTING",
			tool+" -t nat -F CNI-HOSTPORT-DNAT", tool+" -t nat -F "+own[0].Name, tool+" -t nat -F "+own[1].Name,
			fmt.Sprintf("%s -t nat -F; %s -t nat -X; %s -F; %s -X", tool, tool, tool, tool))
	}
	if d.variant == "nft" {
		scripts = append(scripts, "nft flush ruleset", "nft delete table ip nat", "nft delete table ip6 filter")
	}
	for _, line := range d.saved(d.variant) {
		family, rest, _ := strings.Cut(line, " ")
		if family != "iptables" {
			continue // the other has the same
		}
		table, rule, _ := strings.Cut(rest, " -A ")
		if rule == "" || ofAdmin(line) || slices.ContainsFunc(d.rules[1].Masquerade[0].Chains(), func(c fwrules.Chain) bool { return strings.Contains(line, c.Name) }) {
			continue
		}
		scripts = append(scripts, fmt.Sprintf("%s-%s -t %s -D %s", family, d.variant, table, rule))
	}
	return scripts
}

// ofTables returns the damages of tables of nf_tables.
func (d *damaged) ofTables(tables ...nft.Table) (scripts []string) {
	chain := regexp.MustCompile(`(?m)^\tchain (\S+) \{`)
	set := regexp.MustCompile(`(?m)^\t(?:set|map) (\S+) \{`)
	scripts = append(scripts, "nft flush ruleset")
	for _, t := range tables {
		text := d.dumpTables([]nft.Table{t})
		scripts = append(scripts, fmt.Sprintf("nft delete table %v", t), fmt.Sprintf("nft flush table %v", t))
		for _, c := range chain.FindAllStringSubmatch(text, -1) {
			if strings.Contains(text, "chain "+c[1]+" {\n\t}") {
				continue // it is empty, and kept for other versions
			}
			scripts = append(scripts, fmt.Sprintf("nft flush chain %v %s", t, c[1]))
			if strings.Contains(text, "chain "+c[1]+" {\n\t\ttype ") {
				scripts = append(scripts, fmt.Sprintf("nft 'flush chain %v %s; delete chain %v %s'", t, c[1], t, c[1]))
			}
		}
		for _, s := range set.FindAllStringSubmatch(text, -1) {
			_, body, _ := strings.Cut(text, "\t"+s[0][len("\t"):]+"\n")
			if body, _, _ = strings.Cut(body, "\n\t}"); strings.Contains(body, "elements = ") {
				scripts = append(scripts, fmt.Sprintf("nft flush set %v %s 2>/dev/null || nft flush map %v %s", t, s[1], t, s[1]))
			}
		}
		for _, r := range d.rulesOf(t) {
			if !ofAdmin(r.Comment) && !strings.Contains(r.Comment, "c2") {
				scripts = append(scripts, fmt.Sprintf("nft delete rule %v %s handle %d", t, r.Chain, r.Handle))
			}
		}
	}
	return scripts
}

func (d *damaged) ofNFTables() []string {
	return d.ofTables(nft.Table{Family: nft.FamilyInet, Name: "cni_plugins_masquerade"},
		nft.Table{Family: nft.FamilyIPv4, Name: "cni_hostport"}, nft.Table{Family: nft.FamilyIPv6, Name: "cni_hostport"})
}

func (d *damaged) ofNative() []string {
	scripts := d.ofTables(nativeTable())
	element := regexp.MustCompile(`^nft element inet embedcni (\S+) (.*?)( comment ".*?")?( : .*)?$`)
	for _, line := range d.filters() {
		if e := element.FindStringSubmatch(line); e != nil && !strings.Contains(line, "c2") {
			scripts = append(scripts, fmt.Sprintf("nft 'delete element inet embedcni %s { %s }'", e[1], e[2]))
		}
	}
	return scripts
}

// TestRestoredRulesHaveEffect: a rule that must precede others does so again.
func TestRestoredRulesHaveEffect(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *host, fw *Firewalls) {
		variant := strings.TrimPrefix(t.Name(), "TestRestoredRulesHaveEffect/")
		r := everything("c1", 4)
		r.Forward[0].Ingress, r.Forward[0].Bridge = "isolated", "br1"
		must(t, fw.Add(t.Context(), fwrules.IPTables, r))
		before := h.saved(variant)
		own := r.Masquerade[0].Chains()
		lists := func() map[string][]string {
			all := make(map[string][]string)
			out, err := exec.Command("iptables-" + variant + "-save").Output()
			must(t, err)
			sets, err := iptables.ParseSave(string(out))
			must(t, err)
			for _, set := range sets {
				for _, rule := range set.Rules {
					all[rule.Chain] = append(all[rule.Chain], rule.Spec)
				}
			}
			return all
		}
		for _, tt := range []struct{ table, chain, first, then string }{
			{"nat", own[0].Name, "-j ACCEPT", "-j MASQUERADE"},
			{"nat", own[1].Name, "-j CNI-HOSTPORT-SETMARK", "-j DNAT"},
			{"filter", "FORWARD", "-j CNI-ISOLATION-STAGE-1", "-j CNI-FORWARD"},
			{"nat", "POSTROUTING", "-j CNI-HOSTPORT-MASQ", "-j " + own[0].Name},
			{"filter", "CNI-ISOLATION-STAGE-1", "-j DROP", "-j RETURN"},
		} {
			for _, gone := range []string{tt.first, tt.then} {
				for _, spec := range lists()[tt.chain] {
					if strings.Contains(spec, gone) {
						h.sh("iptables-" + variant + " -t " + tt.table + " -D " + tt.chain + " " + spec)
					}
				}
				must(t, fw.Restore(t.Context(), fwrules.IPTables, r))
				rules := lists()[tt.chain]
				last := -1
				for i, spec := range rules {
					if strings.Contains(spec, tt.first) {
						last = i
					}
				}
				if i := slices.IndexFunc(rules, func(s string) bool { return strings.Contains(s, tt.then) }); last < 0 || i < last {
					t.Errorf("after %q was restored in %s:\n%s", gone, tt.chain, strings.Join(rules, "\n"))
				}
			}
		}
		slices.Sort(before)
		after := h.saved(variant)
		slices.Sort(after)
		wantSaved(t, "after all", after, before)
	})
}

// TestRestoreLeavesRulesOfOthersInItsTable, and adds its own behind them.
func TestRestoreLeavesRulesOfOthersInItsTable(t *testing.T) {
	for name, script := range map[string]string{
		"in place of all":      "flush chain inet embedcni postrouting\nadd rule inet embedcni postrouting counter comment \"x\"",
		"before":               `insert rule inet embedcni postrouting counter comment "x"`,
		"behind":               `add rule inet embedcni postrouting counter comment "x"`,
		"without a comment":    "flush chain inet embedcni postrouting\nadd rule inet embedcni postrouting counter",
		"in place of the jump": "flush chain inet embedcni prerouting\nadd rule inet embedcni prerouting counter comment \"x\"",
	} {
		t.Run(name, func(t *testing.T) {
			d := newDamaged(t, fwrules.Native, "nft")
			must(t, d.fw.Add(t.Context(), fwrules.Native, d.rules[0]))
			d.feed(script+"\n", "nft", "-f", "-")
			all, err := d.fw.Missing(t.Context(), fwrules.Native, d.rules[0])
			must(t, err)
			if harmless := name == "before" || name == "behind"; harmless != (len(all) == 0) {
				t.Errorf("missing: %s", textOfMissing(all))
			}
			for _, m := range all {
				if m.Found != "" {
					t.Errorf("%s cannot be repaired: there is %s", m.Object, m.Found)
				}
				must(t, d.fw.Restore(t.Context(), fwrules.Native, m.Rules))
			}
			all, err = d.fw.Missing(t.Context(), fwrules.Native, d.rules[0])
			must(t, err)
			if len(all) > 0 {
				t.Errorf("still missing: %s", textOfMissing(all))
			}
			if there := strings.Join(d.lines(), "\n"); strings.Count(there, "counter") != 1 {
				t.Errorf("the other's rule is gone:\n%s", there)
			}
		})
	}
}

// TestRestoreReplacesNothing: where another's rule is in the place of a missing one, it
// stays, and the error says so.
func TestRestoreReplacesNothing(t *testing.T) {
	type taken struct {
		backend fwrules.Backend
		script  string
		object  string
		want    error
	}
	for name, tt := range map[string]taken{
		"a port": {fwrules.Native, `delete element inet embedcni hostports4 { tcp . 10004 }
			add element inet embedcni hostports4 { tcp . 10004 comment "x" : 10.1.0.9 . 80 }`, "tcp 10004", fwrules.ErrHostPortTaken},
		"an address": {fwrules.Native, `delete element inet embedcni containers4 { 10.1.0.4 }
			add element inet embedcni containers4 { 10.1.0.4 comment "x" }`, "masquerading of 10.1.0.4", fwrules.ErrInPlace},
		"other conditions": {fwrules.NFTables, `flush chain ip cni_hostport prerouting
			add rule ip cni_hostport prerouting iifname "x" jump hostports_all`, "tcp 10004", fwrules.ErrInPlace},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDamaged(t, tt.backend, "nft")
			d.rules[0].HostPorts[0].SNAT = false // these elements are in other sets
			if tt.backend == fwrules.NFTables {
				d.rules[0].HostPorts[0].ConditionsV4 = []string{"iifname", "y"}
			}
			must(t, d.fw.Add(t.Context(), tt.backend, d.rules[0]))
			d.feed(tt.script+"\n", "nft", "-f", "-")
			before := d.lines()
			all, err := d.fw.Missing(t.Context(), tt.backend, d.rules[0])
			must(t, err)
			i := slices.IndexFunc(all, func(m fwrules.Missing) bool { return m.Object == tt.object })
			if i < 0 || all[i].Found == "" {
				t.Fatalf("got %s", textOfMissing(all))
			}
			if err := d.fw.Restore(t.Context(), tt.backend, all[i].Rules); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			wantLines(t, "afterwards", d.lines(), before)
		})
	}
}
