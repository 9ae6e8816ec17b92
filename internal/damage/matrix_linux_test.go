package damage

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/testhost"
)

// forms returns the forms of attachments on a host with a variant of iptables.
func forms(legacy bool) []form {
	var all []form
	for _, ours := range []bool{true, false} {
		for _, typ := range []string{"bridge", "ptp"} {
			if ours {
				all = append(all, form{typ: typ, backend: unnamed, ours: ours, legacy: legacy})
				continue
			}
			all = append(all, form{typ: typ, backend: iptables, legacy: legacy})
			if !legacy {
				all = append(all, form{typ: typ, backend: unnamed}, form{typ: typ, backend: nftables})
			}
		}
		if !legacy {
			for _, typ := range []string{"macvlan", "host-device", "loopback"} {
				all = append(all, form{typ: typ, backend: unnamed, ours: ours})
			}
			backend := map[bool]string{true: unnamed, false: iptables}[ours]
			all = append(all, form{typ: "bridge", backend: backend, ours: ours, policy: "isolated"},
				form{typ: "bridge", backend: backend, ours: ours, policy: "same-bridge"})
			if ours {
				all = append(all, form{typ: "bridge", backend: unnamed, ours: true, flannel: true})
			}
		}
	}
	return all
}

// TestFigure_M18_EachDamageIsFoundAndRepaired breaks a container in each way, whatever attached
// it. Health finds it. Repair puts it back as it was, to the line, but for executables'
// rules, whose effect it puts into this module's form; it changes nothing else, and the connections that were open before still work.
func TestFigure_M18_EachDamageIsFoundAndRepaired(t *testing.T) { matrix(t, "nft") }

// TestFigure_M18_EachDamageIsFoundAndRepairedWithLegacyTables is the same with the legacy iptables.
func TestFigure_M18_EachDamageIsFoundAndRepairedWithLegacyTables(t *testing.T) { matrix(t, "legacy") }

func matrix(t *testing.T, variant string) {
	plugintest.UseIPTables(t, variant)
	for _, f := range forms(variant == "legacy") {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			damageAll(t, f)
		})
	}
}

// TestFigure_M18_EachDamageIsFoundAndRepairedWithoutIPTables: on a host without the program iptables
// the policies of bridges are in this module's own sets.
func TestFigure_M18_EachDamageIsFoundAndRepairedWithoutIPTables(t *testing.T) {
	hideIPTables(t)
	for _, policy := range []string{"isolated", "same-bridge"} {
		f := form{typ: "bridge", backend: unnamed, ours: true, policy: policy}
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			damageAll(t, f)
		})
	}
}

// hideIPTables hides the programs of the plain names, which are symbolic links. Those of
// the variants, which the test itself uses, stay.
func hideIPTables(t *testing.T) {
	t.Helper()
	const links = "/etc/alternatives"
	expect.NoError(t, unix.Mount("tmpfs", links, "tmpfs", 0, ""))
	t.Cleanup(func() { expect.NoError(t, unix.Unmount(links, unix.MNT_DETACH)) })
	found := netfilter.Detect()
	expect.Must(t, found == netfilter.DetectedNative, "the program iptables is no link in %s, and cannot be hidden: found %q", links, found)
}

// TestFigure_M18_EachDamageIsFoundAndRepairedWithFirewalld, which forgets and moves addresses too.
func TestFigure_M18_EachDamageIsFoundAndRepairedWithFirewalld(t *testing.T) {
	plugintest.UseIPTables(t, "nft")
	for _, ours := range []bool{true, false} {
		f := form{typ: "bridge", backend: map[bool]string{true: unnamed, false: iptables}[ours], ours: ours, zoned: true}
		t.Run(f.String(), func(t *testing.T) { damageAll(t, f) }) // each has the bus in its environment
	}
}

// damageAll does all damages to one form, one after the other.
func damageAll(t *testing.T, f form) {
	t.Helper()
	s := newScene(t, f)
	before := s.look()
	s.wantHealthy("before any damage", true)
	all := damages(f)
	for _, d := range all {
		s.live(&d, before)
		expect.Must(t, !t.Failed(), "after the damage: %s", d.name)
	}
	s.wantHealthy("after all damages", true)
	t.Logf("%d damages", len(all))
	expect.That(t, len(all) != 0, "no damage is known for this form")
}

// live does one damage and repairs it.
func (s *scene) live(d *damage, before audit.Lines) {
	s.T.Helper()
	if err := d.do(s); err != nil {
		s.T.Errorf("%s: %v", d.name, err)
		return
	}
	s.wantBroken(d)
	if d.inside {
		s.wantLeftInside(d)
	}
	o := cni.RepairOptions{Inside: d.inside}
	if d.left != nil && d.left(s.form) {
		s.wantLeft(d)
	}
	s.wantRepaired(d, "c1", o)
	if d.shared && s.other != nil {
		s.wantRepaired(d, "c2", o)
	}
	if d.others != nil {
		expect.NoError(s.T, d.others(s))
	}
	added, gone := audit.Diff(before, s.look())
	expect.Unchanged(s.T, d.name+", repaired", added, gone)
	s.wantHealthy(d.name+", repaired", false)
	if s.T.Failed() {
		return // each broken connection would be waited for
	}
	for _, g := range []*guest{s.one, s.other} {
		if g != nil {
			wantFlowing(s.T, g.flows)
		}
	}
	for _, f := range open(s.RealHost, s.one.ways) {
		f.Close()
	}
}

// wantBroken checks that Health finds the damage.
func (s *scene) wantBroken(d *damage) {
	s.T.Helper()
	health := s.health(false)
	expect.That(s.T, health.State == cni.StateBroken && len(health.Differences) != 0, "%s: %v", d.name, health)
	for _, found := range health.Differences {
		expect.Same(s.T, fmt.Sprint(d.name, ": inside the container: ", found), found.Inside, d.inside)
	}
}

// wantHealthy checks that Health finds nothing wrong with the first container.
func (s *scene) wantHealthy(when string, asked bool) {
	s.T.Helper()
	health := s.health(asked)
	expect.Same(s.T, fmt.Sprint(when, ": ", health), health.State, cni.StateHealthy)
}

// health returns the verdict on the first container. Executables are asked for CHECK,
// each of them a process, only if asked.
func (s *scene) health(asked bool) cni.Health {
	s.T.Helper()
	report := expect.Value(s.rt.Health(context.Background(), cni.HealthOptions{Containers: []string{"c1"}, WithoutCheck: !asked}))(s.T)
	health, ok := testhost.VerdictOn(report, "c1")
	if !ok {
		s.T.Fatalf("no verdict in %v", report)
	}
	return health
}

// wantLeftInside checks that Repair changes nothing in the container unless it is
// asked to.
func (s *scene) wantLeftInside(d *damage) {
	s.T.Helper()
	damaged := s.look()
	report := expect.Value(s.rt.Repair(context.Background(), "c1", cni.RepairOptions{}))(s.T)
	expect.That(s.T, len(report.Repaired) == 0 && errors.Is(report.Err(), cni.ErrInContainer), "%s: not asked: %v", d.name, report)
	added, gone := audit.Diff(damaged, s.look())
	expect.Unchanged(s.T, d.name+", nobody asked", added, gone)
}

// wantLeft checks that Repair leaves the damage to the administrator, who mends it.
func (s *scene) wantLeft(d *damage) {
	s.T.Helper()
	report := expect.Value(s.rt.Repair(context.Background(), "c1", cni.RepairOptions{}))(s.T)
	expect.Is(s.T, report.Err(), cni.ErrNotRepairable)
	expect.NoError(s.T, d.mend(s))
}

// wantRepaired checks that Repair leaves nothing to be repaired, and that another finds
// nothing to do.
func (s *scene) wantRepaired(d *damage, id string, o cni.RepairOptions) {
	s.T.Helper()
	report := expect.Value(s.rt.Repair(context.Background(), id, o))(s.T)
	mended := d.left != nil && d.left(s.form)
	if err := report.Err(); err != nil || len(report.Repaired) == 0 && id == "c1" && !mended {
		s.T.Errorf("%s: %s: %v", d.name, id, report)
	}
	again := expect.Value(s.rt.Repair(context.Background(), id, o))(s.T)
	expect.That(s.T, again.Err() == nil && len(again.Repaired) == 0, "%s: %s again: %v", d.name, id, again)
}
