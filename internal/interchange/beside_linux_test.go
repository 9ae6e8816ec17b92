package interchange

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
)

// configuration is a network for both sides, on equal hosts.
type configuration struct {
	name    string
	network network
	// number of containers, attached in sequence; 0: one
	containers int
	// fails means that ADD must fail.
	fails bool
	// vlans means that the kernel's bridges must support VLAN filtering.
	vlans bool
	// differs has a word from each line of the state in which ours differs from
	// theirs on purpose.
	differs []string
}

// outcome is a side's results for a configuration, as comparable text.
type outcome struct {
	results            []string
	errs, delErrs      []error
	attached, detached audit.Lines
}

// TestSideBySide attaches with the reference plugins on one host and with ours
// on another. It compares the results, and the state of kernel and files. CHECK
// of ours accepts both, CHECK of theirs accepts ours. Then it detaches and
// compares the state again.
func TestSideBySide(t *testing.T) {
	wantOutsideAsBefore(t)
	plugintest.UseIPTables(t, "nft")
	all := append(configurations(), invalid()...)
	withVLANs := filtersVLANs(t)
	for _, c := range all {
		if c.vlans && !withVLANs {
			c.fails = true // for both
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			compare(t, &c, c.live(t, theirs()), c.live(t, ours()))
		})
	}
}

// filtersVLANs reports whether the kernel's bridges can filter VLANs.
func filtersVLANs(t *testing.T) bool {
	t.Helper()
	attrs, yes := netlink.NewLinkAttrs(), true
	attrs.Name = "vlans"
	var err error
	newHost(t).do(func() error {
		err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, VlanFiltering: &yes})
		return nil
	})
	expect.Must(t, err == nil || errors.Is(err, unix.EOPNOTSUPP), "%v", err)
	return err == nil
}

func (c *configuration) live(t *testing.T, s side) outcome {
	h := c.network.newHost(t)
	var o outcome
	var all []*attachment
	var containers []*container
	for i := range max(c.containers, 1) {
		a := h.attachment(&c.network, fmt.Sprintf("c%d", i+1))
		all, containers = append(all, a), append(containers, a.c)
	}
	n := h.normaliser(&c.network, len(containers))
	var before audit.Lines
	if c.fails {
		before = h.state(n, containers...)
	}
	for _, a := range all {
		result, err := a.add(s)
		o.results, o.errs = append(o.results, result), append(o.errs, err)
	}
	if !c.fails {
		o.attached = h.state(n, containers...)
	}
	for i, r := range o.results {
		o.results[i] = n.result(r)
	}
	for _, a := range all {
		if !c.fails && c.network.version != "0.3.1" { // which has no CHECK
			c.network.wantNoError(t, ours(), "CHECK", a.check(ours()))
			if s.name == "ours" {
				c.network.wantNoError(t, theirs(), "CHECK", a.check(theirs()))
			}
		}
	}
	for _, a := range all {
		err := a.del(s)
		o.delErrs = append(o.delErrs, err)
		if !c.fails {
			c.network.wantNoError(t, s, "DEL", err)
		}
	}
	o.detached = h.state(n, containers...)
	if c.fails {
		o.detached, _ = audit.Diff(before, o.detached)
	}
	return o
}

func compare(t *testing.T, c *configuration, theirs, ours outcome) {
	t.Helper()
	for i, err := range theirs.errs {
		if (err != nil) != c.fails {
			t.Fatalf("the reference plugins: got the error %v, want one: %v", err, c.fails)
		}
		expect.That(t, (ours.errs[i] != nil) == c.fails, "ours: got the error %v, theirs is %v", ours.errs[i], err)
		if theirs.delErrs[i] == nil && ours.delErrs[i] != nil {
			t.Errorf("DEL: ours: %v, theirs succeeds", ours.delErrs[i])
		}
		if c.fails {
			c.compareCodes(t, err, ours.errs[i])
		}
		if theirs.results[i] != ours.results[i] {
			t.Errorf("results differ (- theirs, + ours):\n%s", lineDiff(theirs.results[i], ours.results[i]))
		}
	}
	if c.fails {
		// Ours may leave less than theirs, and shared objects.
		more, _ := audit.Diff(theirs.detached, ours.detached)
		for _, word := range c.differs {
			more = more.Without(func(l string) bool { return strings.Contains(l, word) })
		}
		more = more.Without(shared).Without(lastAddress)
		expect.That(t, len(more) == 0, "after a failed ADD and a DEL, only ours leaves\n%s", strings.Join(more, "\n"))
		return
	}
	c.compareStates(t, "attached", theirs.attached, ours.attached)
	c.compareStates(t, "detached", theirs.detached, ours.detached)
}

// compareCodes checks that the codes are equal, except for those of
// codesThatDiffer.
func (c *configuration) compareCodes(t *testing.T, theirs, ours error) {
	t.Helper()
	name, invalid := strings.CutPrefix(c.name, "invalid ")
	if !invalid && code(theirs) == internalError {
		return // it fails because this machine lacks something
	}
	want := code(theirs)
	for own, names := range codesThatDiffer() {
		if !slices.Contains(names, name) {
			continue
		}
		expect.That(t, want == internalError, "theirs is an error of code %d by now (%v): take it out of the table", want, theirs)
		want = own
	}
	expect.That(t, code(ours) == want,
		"theirs is an error of code %d (%v), ours of code %d (%v), want %d", code(theirs), theirs, code(ours), ours, want)
}

// lastAddress reports whether a line is host-local's file of the last allocated
// address.
func lastAddress(line string) bool { return strings.Contains(line, "/last_reserved_ip.") }

func (c *configuration) compareStates(t *testing.T, when string, theirs, ours audit.Lines) {
	t.Helper()
	added, removed := audit.Diff(theirs, ours)
	for _, word := range c.differs {
		known := func(l string) bool { return strings.Contains(l, word) }
		expect.That(t, when != "attached" || slices.ContainsFunc(slices.Concat(added, removed), known),
			"%s, there is no difference with %q any more: take it out of the table", when, word)
		added, removed = added.Without(known), removed.Without(known)
	}
	expect.That(t, len(added)+len(removed) == 0,
		"%s, only theirs has\n%s\nand only ours\n%s", when, strings.Join(removed, "\n"), strings.Join(added, "\n"))
}

// lineDiff returns the lines that only one of two texts has.
func lineDiff(before, after string) string {
	added, removed := audit.Diff(strings.Split(before, "\n"), strings.Split(after, "\n"))
	var b strings.Builder
	for _, l := range removed {
		b.WriteString("- " + l + "\n")
	}
	for _, l := range added {
		b.WriteString("+ " + l + "\n")
	}
	if b.Len() == 0 {
		return "the same lines in another order:\n" + after
	}
	return b.String()
}

// code returns the code of a CNI error, or 0.
func code(err error) uint {
	if e := (*cnitypes.Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return 0
}
