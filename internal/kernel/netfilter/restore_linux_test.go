package netfilter

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/thread"
)

// restored is a host with the rules of many containers.
type restored struct {
	*damaged
	before audit.Lines
}

func newRestored(t *testing.T, n int) *restored {
	t.Helper()
	c := &restored{damaged: newDamaged(t)}
	c.rules = nil
	for i := range n {
		r := everything(fmt.Sprint("c", i), 4+i)
		r.Forward[0].Ingress, r.Forward[0].Bridge, r.Forward[0].IngressOnly = "isolated", "br1", true
		c.rules = append(c.rules, r)
	}
	c.reset()
	c.before = c.lines()
	return c
}

// lose deletes all rules.
func (c *restored) lose() {
	c.t.Helper()
	c.sh("nft flush ruleset")
}

// ours returns the lines without the administrator's.
func ours(lines audit.Lines) audit.Lines { return lines.Without(ofAdmin) }

// restoreAll restores the rules of containers in one flush.
func (c *restored) restoreAll(rules []testRules) []error {
	c.t.Helper()
	var batches []*thread.Batch
	for _, r := range rules {
		b := &thread.Batch{}
		expect.NoError(c.t, Open(c.ns, Options{Batch: b}).Restore(c.t.Context(), r.rules()...))
		batches = append(batches, b)
	}
	return thread.FlushTogether(c.t.Context(), batches)
}

// TestManyAreRestoredTogether: the result is that of one after the other; restoring again
// changes nothing.
func TestManyAreRestoredTogether(t *testing.T) {
	c := newRestored(t, 40)
	for round := range 2 {
		if round == 0 {
			c.lose()
		}
		for _, err := range c.restoreAll(c.rules) {
			expect.NoError(t, err)
		}
		wantLines(t, "together", c.lines(), ours(c.before))
	}
}

// TestOneThatCannotBeRestored has the error, and the others' rules come back.
func TestOneThatCannotBeRestored(t *testing.T) {
	const bad = 5
	c := newRestored(t, 12)
	c.lose()
	another := everything("another", 4+bad)
	another.Forward = nil
	expect.NoError(t, c.fw.Add(t.Context(), another.rules()...))
	for i, err := range c.restoreAll(c.rules) {
		expect.That(t, (err != nil) == (i == bad), "container %d: %v", i, err)
	}
	for i, r := range c.rules {
		all := expect.Value(c.fw.Missing(t.Context(), r.rules()...))(t)
		expect.That(t, (len(all) > 0) == (i == bad), "container %d lacks\n%s", i, textOfMissing(all))
	}
}

// TestSeveralRestoreAtOnce: nothing is doubled, and nothing is missing.
func TestSeveralRestoreAtOnce(t *testing.T) {
	c := newRestored(t, 10)
	for range 3 {
		c.lose()
		var group sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			group.Go(func() {
				some := slices.Clone(c.rules)
				if i%2 == 1 {
					slices.Reverse(some)
				}
				errs[i] = errors.Join(c.restoreAll(some)...)
			})
		}
		group.Wait()
		expect.NoError(t, errors.Join(errs...))
		wantLines(t, "restored by several", c.lines(), ours(c.before))
	}
}
