package interchange

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/expect"
)

// direction names the side that runs ADD, and the side that then runs CHECK and
// DEL.
type direction struct{ adder, deleter side }

func (d direction) name() string { return d.adder.name + " to " + d.deleter.name }

// directions returns the pairs of sides in which one attaches a container and the other
// detaches it. [TestSideBySide] tries each side by itself.
func directions() []direction { return []direction{{ours(), theirs()}, {theirs(), ours()}} }

// mixtures returns directions in which one chain mixes ours and theirs: the plugins that
// attach, with their IPAM, and the later ones.
func mixtures(types []string) []direction {
	attach := oursOnly("ours attaching", "bridge", "ptp", "host-local", "static")
	after := oursOnly("ours chained", "tuning", "bandwidth")
	if slices.ContainsFunc(types, attach.ours) && slices.ContainsFunc(types, after.ours) {
		return []direction{{attach, after}, {after, attach}}
	}
	return nil
}

// TestMatrix attaches with the plugins of one side, then checks and detaches
// with those of the other, and audits host and container.
func TestMatrix(t *testing.T) {
	wantOutsideAsBefore(t)
	for _, c := range cases() {
		all := directions()
		if c.family == "dual" {
			all = append(all, mixtures(c.network.types(t))...)
		}
		for _, d := range all {
			t.Run(c.name+"/"+d.name(), func(t *testing.T) {
				t.Parallel()
				c.network.newHost(t).liveOnce(t, &c.network, d, "c1", func(string) {}, func() {})
			})
		}
	}
}

// liveOnce attaches and detaches a container, and calls added and deleted in between.
func (h *host) liveOnce(t *testing.T, n *network, d direction, id string, added func(result string), deleted func()) {
	a := h.attachment(n, id)
	before := a.audit()
	added(expect.Value(a.add(d.adder))(t))
	attached := a.audit()
	n.wantNoError(t, d.deleter, "CHECK", a.check(d.deleter))
	if d.deleter.name == "ours" {
		wantEqual(t, "CHECK changed", attached, a.audit())
	}

	expect.NoError(t, a.del(d.deleter))
	deleted()
	own, _ := audit.Diff(before, attached)
	expect.That(t, len(own.Without(shared)) != 0, "the audit sees no change after ADD")
	left, gone := audit.Diff(before, a.audit())
	expect.Unchanged(t, "DEL", left.Without(shared), gone)
	n.wantNoError(t, d.deleter, "DEL again", a.del(d.deleter))
}

func wantEqual(t *testing.T, what string, before, after audit.Lines) {
	t.Helper()
	added, removed := audit.Diff(before, after)
	expect.Unchanged(t, what, added, removed)
}

// newHost makes a host for the network.
func (n *network) newHost(t testing.TB) *host {
	t.Helper()
	h := newHost(t)
	if n.prepare != nil {
		h.do(n.prepare)
	}
	for _, f := range n.files {
		path := h.path("state", f[0])
		expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		expect.NoError(t, os.WriteFile(path, []byte(f[1]), 0o644))
	}
	return h
}

// promised returns the types that this module promises to build in.
func promised() []string {
	return []string{"loopback", "bridge", "ptp", "host-local", "static", "portmap", "firewall", "tuning", "bandwidth", "macvlan", "host-device", "flannel"}
}

// TestMatrixIsComplete: all promised types are built in. The matrix has every type with every family, but for those whose
// rules the reference plugins do not know.
func TestMatrixIsComplete(t *testing.T) {
	have := map[string]bool{}
	for _, c := range cases() {
		for _, typ := range c.network.types(t) {
			have[typ+" "+c.family] = true
		}
	}
	var missing []string
	for _, typ := range promised() {
		expect.Same(t, typ+" is built in", builtin.New()(typ) != nil, true)
		for _, family := range families() {
			// Plugins without addresses of their own have no family.
			needless := typ == "loopback" && family != "dual" || typ == "portmap" || typ == "firewall"
			if key := typ + " " + family; !needless && !have[key] {
				missing = append(missing, key)
			}
		}
	}
	expect.Empty(t, "the matrix lacks", missing)
}
