package netfilter

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/nft"
	"github.com/embedcni/cni/internal/kernel/thread"
)

// damaged is a host with two containers' rules, and an administrator's in the same
// chains.
type damaged struct {
	*host
	t     *testing.T
	rules []testRules
	admin string // the administrator's rules, as input of nft
}

func newDamaged(t *testing.T) *damaged {
	d := &damaged{host: newHost(t, "nft"), t: t}
	for i, id := range []string{"c1", "c2"} {
		r := everything(id, 4+i)
		r.HostPorts[0].Ports = append(r.HostPorts[0].Ports, wanted(id, "10.1.0.2/24", "fd00:1::2/64", uint16(3000+i)).HostPorts[0].Ports...)
		r.Forward[0].Ingress, r.Forward[0].Bridge, r.Forward[0].IngressOnly = "isolated", "br1", true
		r.Spoof = []testSpoof{{Owner: r.HostPorts[0].Owner, Port: "veth" + id, MAC: []byte{2, 0, 0, 0, 0, byte(i)}}}
		d.rules = append(d.rules, r)
	}
	d.admin = `insert rule inet embedcni subnets counter comment admin
		add rule inet embedcni hairpin counter comment admin
		add table inet admin
		add chain inet admin x
		add rule inet admin x ip saddr 10.1.0.4 counter comment admin
`
	return d
}

// reset makes the undamaged state.
func (d *damaged) reset() {
	d.t.Helper()
	d.sh("nft flush ruleset")
	for _, r := range d.rules {
		expect.NoError(d.t, d.fw.Add(d.t.Context(), r.rules()...))
	}
	d.feed(d.admin, "nft", "-f", "-")
}

// lines returns the packet filter, sorted.
func (d *damaged) lines() audit.Lines {
	d.t.Helper()
	lines := audit.Lines(d.listing())
	slices.Sort(lines)
	return lines
}

// ofAdmin reports whether a line, or a comment, is the administrator's.
func ofAdmin(line string) bool {
	return line == "admin" || strings.Contains(line, "--comment admin ") || strings.Contains(line, `"admin"`)
}

// missing returns the missing parts of all containers, and fails unless the snapshot
// has the same.
func (d *damaged) missing(what string) (all []Missing) {
	d.t.Helper()
	snapshot := d.fw.Snapshot()
	for _, r := range d.rules {
		some := expect.Value(d.fw.Missing(d.t.Context(), r.rules()...))(d.t)
		wantSameMissing(d.t, what, expect.Value(snapshot.Missing(d.t.Context(), r.rules()...))(d.t), some)
		all = append(all, some...)
	}
	return all
}

func wantSameMissing(t *testing.T, what string, seen, kernel []Missing) {
	t.Helper()
	if got, want := textOfMissing(seen), textOfMissing(kernel); got != want {
		t.Errorf("%s: the snapshot says\n%s\nthe kernel says\n%s", what, got, want)
		return
	}
	for i := range seen {
		expect.Same(t, what+": "+seen[i].Object()+": the rules of the snapshot", seen[i].Rule, kernel[i].Rule)
	}
}

func textOfMissing(all []Missing) string {
	var b strings.Builder
	for _, m := range all {
		fmt.Fprintf(&b, "%s (found %q): %v\n", m.Object(), m.Found, m.Err)
	}
	return b.String()
}

// try damages the state, restores each missing part, and compares: what was ours is
// back, once, and the administrator's rules that the damage spared are as they were.
func (d *damaged) try(damage string, before audit.Lines, restore func([]Missing)) {
	d.t.Helper()
	d.sh(damage)
	want := before
	if lost := minus(before, d.lines()).Without(func(l string) bool { return !ofAdmin(l) }); len(lost) > 0 {
		want = minus(before, lost)
	}
	all := d.missing(damage)
	expect.That(d.t, len(all) != 0, "%s: nothing is missing", damage)
	for _, m := range all {
		if m.Found != "" || m.Err == nil || m.Object() == "" {
			d.t.Errorf("%s: %s: found %q, %v", damage, m.Object(), m.Found, m.Err)
		}
	}
	restore(all)
	left := d.missing(damage + ", restored")
	expect.That(d.t, len(left) == 0, "%s: still missing after it was restored:\n%s", damage, textOfMissing(left))
	for _, r := range d.rules { // again, and whole
		expect.NoError(d.t, d.fw.Restore(d.t.Context(), r.rules()...))
	}
	wantLines(d.t, damage+", restored", d.lines(), want)
}

// each restores parts one after the other.
func (d *damaged) each(all []Missing) {
	d.t.Helper()
	for _, m := range all {
		expect.NoError(d.t, d.fw.Restore(d.t.Context(), m.Rule))
	}
}

// together restores the parts of all containers in one flush of their batches.
func (d *damaged) together(all []Missing) {
	d.t.Helper()
	for _, err := range d.flush(all) {
		expect.NoError(d.t, err)
	}
}

// flush restores parts in one flush, each in a batch of its own.
func (d *damaged) flush(all []Missing) []error {
	d.t.Helper()
	var batches []*thread.Batch
	for _, m := range all {
		b := &thread.Batch{}
		expect.NoError(d.t, Open(nil, Options{Batch: b}).Restore(d.t.Context(), m.Rule))
		batches = append(batches, b)
	}
	return thread.FlushTogether(d.t.Context(), batches)
}

// TestEachDamageIsFoundAndRestored: tables, chains, rules, sets and elements, one by one.
func TestEachDamageIsFoundAndRestored(t *testing.T) {
	d := newDamaged(t)
	d.reset()
	before := d.lines()
	all := d.missing("undamaged")
	expect.Must(t, len(all) == 0, "undamaged:\n%s", textOfMissing(all))
	scripts := d.ofNative()
	expect.That(t, len(scripts) >= 25, "only %q", scripts)
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

func (d *damaged) ofNative() []string {
	scripts := d.ofTables(nativeTable(), nft.Table{Family: nft.FamilyBridge, Name: "embedcni"})
	element := regexp.MustCompile(`^nft element (\S+ embedcni \S+) (.*?)( comment ".*?")?( : .*)?$`)
	for _, line := range d.filters() {
		if e := element.FindStringSubmatch(line); e != nil && !strings.Contains(line, "c2") {
			scripts = append(scripts, fmt.Sprintf("nft 'delete element %s { %s }'", e[1], e[2]))
		}
	}
	return scripts
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
			d := newDamaged(t)
			expect.NoError(t, d.fw.Add(t.Context(), d.rules[0].rules()...))
			d.feed(script+"\n", "nft", "-f", "-")
			all := expect.Value(d.fw.Missing(t.Context(), d.rules[0].rules()...))(t)
			if harmless := name == "before" || name == "behind"; harmless != (len(all) == 0) {
				t.Errorf("missing: %s", textOfMissing(all))
			}
			for _, m := range all {
				expect.Same(t, m.Object()+" cannot be repaired", m.Found, "")
				expect.NoError(t, d.fw.Restore(t.Context(), m.Rule))
			}
			all = expect.Value(d.fw.Missing(t.Context(), d.rules[0].rules()...))(t)
			expect.That(t, len(all) == 0, "still missing: %s", textOfMissing(all))
			there := strings.Join(d.lines(), "\n")
			expect.That(t, strings.Count(there, "counter") == 1, "the other's rule is gone:\n%s", there)
		})
	}
}

// TestRestoreReplacesNothing: where another's rule is in the place of a missing one, it
// stays, and the error says so.
func TestRestoreReplacesNothing(t *testing.T) {
	type taken struct {
		script string
		object string
		want   error
	}
	for name, tt := range map[string]taken{
		"a port": {`delete element inet embedcni hostports4 { tcp . 10004 }
			add element inet embedcni hostports4 { tcp . 10004 comment "x" : 10.1.0.9 . 80 }`, "tcp 10004", ErrHostPortTaken},
		"an address": {`delete element inet embedcni containers4 { 10.1.0.4 }
			add element inet embedcni containers4 { 10.1.0.4 comment "x" }`, "masquerading of 10.1.0.4", ErrInPlace},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDamaged(t)
			d.rules[0].HostPorts[0].SNAT = false // these elements are in other sets
			expect.NoError(t, d.fw.Add(t.Context(), d.rules[0].rules()...))
			d.feed(tt.script+"\n", "nft", "-f", "-")
			before := d.lines()
			all := expect.Value(d.fw.Missing(t.Context(), d.rules[0].rules()...))(t)
			i := slices.IndexFunc(all, func(m Missing) bool { return m.Object() == tt.object })
			if i < 0 || all[i].Found == "" {
				t.Fatalf("got %s", textOfMissing(all))
			}
			expect.Is(t, d.fw.Restore(t.Context(), all[i].Rule), tt.want)
			wantLines(t, "afterwards", d.lines(), before)
		})
	}
}
