package netfilter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// restored is a host with the rules of many containers in one backend.
type restored struct {
	*damaged
	before audit.Lines
}

// eachRestored runs a test for each backend, and both variants of iptables.
func eachRestored(t *testing.T, n int, test func(t *testing.T, c *restored)) {
	for _, tt := range []struct {
		backend fwrules.Backend
		variant string
	}{{fwrules.IPTables, "nft"}, {fwrules.IPTables, "legacy"}, {fwrules.NFTables, "nft"}, {fwrules.Native, "nft"}} {
		t.Run(fmt.Sprintf("%q %s", string(tt.backend), tt.variant), func(t *testing.T) {
			c := &restored{damaged: newDamaged(t, tt.backend, tt.variant)}
			c.rules = nil
			for i := range n {
				r := everything(fmt.Sprint("c", i), 4+i)
				r.Forward[0].Ingress, r.Forward[0].Bridge = "isolated", "br1"
				if tt.backend == fwrules.NFTables {
					r.Forward = nil
				}
				c.rules = append(c.rules, r)
			}
			c.reset()
			c.before = c.lines()
			test(t, c)
		})
	}
}

// lose deletes all rules.
func (c *restored) lose() {
	c.t.Helper()
	c.sh(c.undone)
}

// ours returns the lines without the administrator's.
func ours(lines audit.Lines) audit.Lines { return lines.Without(ofAdmin) }

// restoreAll restores the rules of containers in one flush.
func (c *restored) restoreAll(rules []fwrules.Rules) []error {
	c.t.Helper()
	var batches []*batch.Batch
	for _, r := range rules {
		b := &batch.Batch{}
		must(c.t, Open(c.ns, Options{Batch: b}).Restore(c.t.Context(), c.backend, r))
		batches = append(batches, b)
	}
	return batch.FlushTogether(c.t.Context(), batches)
}

// TestManyAreRestoredTogether: more than one transaction of iptables takes. The result is
// that of one after the other, to the line and in the order of the chains that it matters
// in; restoring again changes nothing.
func TestManyAreRestoredTogether(t *testing.T) {
	eachRestored(t, 40, func(t *testing.T, c *restored) {
		c.lose()
		for _, r := range c.rules {
			must(t, c.fw.Restore(t.Context(), c.backend, r))
		}
		single, order := c.lines(), c.order()
		wantLines(t, "one after the other", single, ours(c.before))
		for round := range 2 {
			if round == 0 {
				c.lose()
			}
			for _, err := range c.restoreAll(c.rules) {
				must(t, err)
			}
			wantLines(t, "together", c.lines(), single)
			if got := c.order(); got != order {
				t.Errorf("together the order is\n%s\none after the other it is\n%s", got, order)
			}
		}
	})
}

// order returns the jumps of the chains of hooks, in order, and how often.
func (c *restored) order() string {
	c.t.Helper()
	if c.backend != fwrules.IPTables {
		return ""
	}
	var b strings.Builder
	for _, line := range c.saved(c.variant) {
		if strings.Contains(line, " -A FORWARD ") || strings.Contains(line, " -A CNI-ISOLATION") || strings.Contains(line, "-A POSTROUTING") {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// TestOneThatCannotBeRestored has the error, and the others' rules come back.
func TestOneThatCannotBeRestored(t *testing.T) {
	const bad = 5
	eachRestored(t, 12, func(t *testing.T, c *restored) {
		c.lose()
		switch h := &c.rules[bad].HostPorts[0]; c.backend {
		case fwrules.Native:
			must(t, c.fw.Add(t.Context(), c.backend, everything("another", 4+bad)))
		case fwrules.NFTables: // conditions are the table's
			h.ConditionsV4 = []string{"iifname", "y"}
			must(t, c.fw.Restore(t.Context(), c.backend, c.rules[0]))
		case fwrules.IPTables:
			h.ConditionsV4 = []string{"--no-such-option"}
		}
		for i, err := range c.restoreAll(c.rules) {
			if (err != nil) != (i == bad) {
				t.Errorf("container %d: %v", i, err)
			}
		}
		for i, r := range c.rules {
			all, err := c.fw.Missing(t.Context(), c.backend, r)
			if i == bad {
				continue // the tool, or the backend, may refuse to say
			}
			must(t, err)
			if len(all) > 0 {
				t.Errorf("container %d lacks\n%s", i, textOfMissing(all))
			}
		}
	})
}

// TestSeveralRestoreAtOnce: nothing is doubled, and nothing is missing.
func TestSeveralRestoreAtOnce(t *testing.T) {
	eachRestored(t, 10, func(t *testing.T, c *restored) {
		for range 3 {
			c.lose()
			var group sync.WaitGroup
			errs := make([]error, 4)
			for i := range errs {
				group.Add(1)
				go func() {
					defer group.Done()
					some := slices.Clone(c.rules)
					if i%2 == 1 {
						slices.Reverse(some)
					}
					errs[i] = errors.Join(c.restoreAll(some)...)
				}()
			}
			group.Wait()
			must(t, errors.Join(errs...))
			wantLines(t, "restored by several", c.lines(), ours(c.before))
		}
	})
}

// TestIsolationPrecedesWhatIsRestoredTogether: the rules of CNI-FORWARD accept what the
// isolation of bridges drops, in whichever order the containers come.
func TestIsolationPrecedesWhatIsRestoredTogether(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *host, fw *Firewalls) {
		variant := strings.TrimPrefix(t.Name(), "TestIsolationPrecedesWhatIsRestoredTogether/")
		open, isolated := everything("open", 4), everything("isolated", 5)
		isolated.Forward[0].Ingress, isolated.Forward[0].Bridge = "isolated", "br1"
		only := isolated
		only.Forward = slices.Clone(isolated.Forward)
		only.Forward[0].IngressOnly = true
		c := &restored{damaged: &damaged{host: h, t: t, backend: fwrules.IPTables, variant: variant}}
		for name, rules := range map[string][]fwrules.Rules{
			"isolated first": {isolated, open}, "open first": {open, isolated}, "the isolation alone first": {only, open}, "and last": {open, only},
		} {
			for _, lost := range []string{"-F FORWARD", "-D FORWARD -m comment --comment 'CNI firewall plugin rules' -j CNI-FORWARD", ""} {
				if lost == "" {
					for _, tool := range []string{"iptables", "ip6tables"} {
						h.sh(fmt.Sprintf("%[1]s-%[2]s -F; %[1]s-%[2]s -X", tool, variant))
					}
				} else {
					for _, r := range rules {
						must(t, fw.Restore(t.Context(), fwrules.IPTables, r))
					}
					h.sh("iptables-" + variant + " " + lost)
				}
				must(t, errors.Join(c.restoreAll(rules)...))
				order := c.order()
				isolation, forward := strings.Index(order, "-j CNI-ISOLATION-STAGE-1"), strings.Index(order, "-j CNI-FORWARD")
				if isolation < 0 || forward < isolation || strings.Count(order, "iptables filter -A FORWARD") > 4 {
					t.Errorf("%s, after %q:\n%s", name, lost, order)
				}
			}
		}
	})
}

// BenchmarkRestore adds the rules of many containers again, in one flush and one after
// the other.
func BenchmarkRestore(b *testing.B) {
	for _, backend := range []fwrules.Backend{fwrules.IPTables, fwrules.NFTables, fwrules.Native} {
		for _, together := range []bool{false, true} {
			b.Run(fmt.Sprintf("backend %q, together %t", string(backend), together), func(b *testing.B) {
				h := newHost(b, "nft")
				const n = 64
				for range b.N {
					b.StopTimer()
					h.sh("nft flush ruleset")
					b.StartTimer()
					var batches []*batch.Batch
					for i := range n {
						r := everything(fmt.Sprint("c", i), 4+i)
						if backend == fwrules.NFTables {
							r.Forward = nil
						}
						in := &batch.Batch{}
						if err := Open(h.ns, Options{Batch: in}).Restore(b.Context(), backend, r); err != nil {
							b.Fatal(err)
						}
						if batches = append(batches, in); !together {
							if err := in.Flush(b.Context()); err != nil {
								b.Fatal(err)
							}
						}
					}
					if err := errors.Join(batch.FlushTogether(b.Context(), batches)...); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/container")
			})
		}
	}
}
