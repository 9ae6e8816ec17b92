package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/internal/kernel/joined"
)

// repairView is what repair has done, or would do, for a container, in JSON.
type repairView struct {
	ContainerID string           `json:"containerID"`
	State       string           `json:"state"`    // after it, as health has it; before it if DryRun
	DryRun      bool             `json:"dryRun"`   // nothing was changed
	Repaired    []differenceView `json:"repaired"` // or would be
	Remaining   []remainingView  `json:"remaining"`
	Reason      string           `json:"reason,omitempty"` // why the state is not healthy, apart from what remains
}

// remainingView is a part that is not repaired.
type remainingView struct {
	differenceView
	Reason string `json:"reason"`
}

// repairFlags are those of the command.
type repairFlags struct{ yes, inside, held bool }

func newRepairCommand(a *app) *cobra.Command {
	var f repairFlags
	cmd := &cobra.Command{
		Use:     "repair [ID...]",
		GroupID: groupChange,
		Short:   "Adds the missing parts of containers (with --yes).",
		Long: `Repair adds the parts of containers that are on record and missing: the bridge, its
addresses, the port on it, routes, rules, forwarded ports. It removes and overwrites
nothing, and connections live on. Without IDs it is for all containers of --owner.

Without --yes it changes nothing and prints what it would do. With --yes it repairs, looks
again, and prints what it has done and what remains. The exit code is 3 if anything
remains, or without --yes if there is anything to repair.`,
		Example: `  embedcni repair
  embedcni repair web-7 --yes`,
		ValidArgsFunction: a.completeIDs(false),
		RunE:              func(cmd *cobra.Command, ids []string) error { return a.repair(cmd.Context(), ids, f) },
	}
	addYes(cmd, &f.yes)
	cmd.Flags().BoolVar(&f.inside, "inside", false, "repair the containers' own namespaces too: interface, addresses, routes, sysctls")
	cmd.Flags().BoolVar(&f.held, "held", false, "repair also what an administrator holds (package guard)")
	return cmd
}

// addYes gives a command that says what it would do the flag to do it.
func addYes(cmd *cobra.Command, yes *bool) {
	cmd.Flags().BoolVarP(yes, "yes", "y", false, "do it; without this flag nothing is changed")
}

func (a *app) repair(ctx context.Context, ids []string, f repairFlags) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	rt, err := a.open()
	if err != nil {
		return err
	}
	wanted, err := a.wanted(rt, ids)
	if err != nil {
		return err
	}
	views := []repairView{}
	if len(wanted) > 0 {
		if f.yes {
			views, err = a.repaired(ctx, rt, wanted, f)
		} else {
			views, err = a.repairable(ctx, rt, wanted, f)
		}
		if err != nil {
			return err
		}
	}
	if err := a.print(views, func() string { return a.repairTable(views, f) }); err != nil {
		return err
	}
	if slices.ContainsFunc(views, func(v repairView) bool { return v.State != string(cni.StateHealthy) }) {
		return errBad
	}
	return nil
}

// wanted returns the containers that are named, or all of the owner's.
func (a *app) wanted(rt *cni.Runtime, ids []string) ([]container, error) {
	if len(ids) > 0 {
		return a.changeable(rt, ids)
	}
	return a.owned(rt)
}

// repaired repairs containers, looks at them again, and returns what has come of it.
func (a *app) repaired(ctx context.Context, rt *cni.Runtime, wanted []container, f repairFlags) ([]repairView, error) {
	p := a.begin("repair", 0)
	defer p.end()
	ids := idsOf(wanted)
	reports, err := rt.RepairAll(ctx, ids, cni.RepairOptions{Inside: f.inside, Unheld: !f.held})
	if err != nil {
		return nil, err
	}
	verdicts, err := rt.Health(ctx, cni.HealthOptions{Containers: ids})
	if err != nil {
		return nil, fmt.Errorf("repaired, and then could not look again: %w", err)
	}
	views := make([]repairView, 0, len(ids))
	for _, h := range verdicts {
		at := slices.IndexFunc(wanted, func(c container) bool { return c.id == h.ContainerID })
		if at < 0 { // the record was damaged meanwhile, and does not name the container
			views = append(views, repairView{ContainerID: h.ContainerID, State: string(h.State), Repaired: []differenceView{}, Remaining: []remainingView{}, Reason: textOf(h.Reason)})
			continue
		}
		views = append(views, viewRepair(wanted[at], reports[at], h))
	}
	return views, nil
}

func viewRepair(c container, r *cni.RepairReport, h cni.Health) repairView {
	v := repairView{ContainerID: c.id, State: string(h.State), Repaired: []differenceView{}, Remaining: []remainingView{}}
	if h.State != cni.StateHealthy {
		v.Reason = textOf(joined.Errors(append(slices.Clone(r.Unknown), h.Reason)...))
	}
	for _, d := range r.Repaired {
		v.Repaired = append(v.Repaired, viewDifference(d))
	}
	for _, d := range h.Differences {
		v.Remaining = append(v.Remaining, remainingView{viewDifference(d), whyRemains(c, r, d)})
	}
	return v
}

// whyRemains returns why a difference is still there: the reason of Repair, or else that of
// the difference itself.
func whyRemains(c container, r *cni.RepairReport, d cni.Difference) string {
	if why := c.othersPart(d); why != "" {
		return why
	}
	for _, rest := range r.Remaining {
		if rest.Kind == d.Kind && rest.Object == d.Object && rest.Network == d.Network && rest.IfName == d.IfName && rest.Reason != nil {
			return reasonText(rest.Reason)
		}
	}
	return notRepairable(d)
}

// reasonText says how to have a part repaired that needs a flag.
func reasonText(err error) string {
	switch {
	case errors.Is(err, cni.ErrInContainer):
		return "in the container: see --inside"
	case errors.Is(err, cni.ErrHeld):
		return "held by an administrator: see --held"
	}
	return err.Error()
}

// notRepairable says why a part cannot be repaired.
func notRepairable(d cni.Difference) string {
	if d.Why != "" {
		return d.Why
	}
	return "it has come back to this since the repair"
}

// repairable returns what repair would do.
func (a *app) repairable(ctx context.Context, rt *cni.Runtime, wanted []container, f repairFlags) ([]repairView, error) {
	p := a.begin("health", 0)
	defer p.end()
	verdicts, err := rt.Health(ctx, cni.HealthOptions{Containers: idsOf(wanted)})
	if err != nil {
		return nil, err
	}
	holds, err := guard.Holds(rt)
	if err != nil {
		return nil, fmt.Errorf("read what administrators hold: %w", err)
	}
	views := make([]repairView, 0, len(wanted))
	for _, h := range verdicts {
		at := slices.IndexFunc(wanted, func(c container) bool { return c.id == h.ContainerID })
		v := repairView{ContainerID: h.ContainerID, State: string(h.State), DryRun: true, Repaired: []differenceView{}, Remaining: []remainingView{}}
		if h.State != cni.StateHealthy {
			v.Reason = textOf(h.Reason)
		}
		for _, d := range h.Differences { // none if the record is damaged, and names no container
			if why := f.refuses(wanted[at], d, holds); why != "" {
				v.Remaining = append(v.Remaining, remainingView{viewDifference(d), why})
			} else {
				v.Repaired = append(v.Repaired, viewDifference(d))
			}
		}
		views = append(views, v)
	}
	return views, nil
}

// refuses says why repair would leave a part; nothing if it would add it.
func (f repairFlags) refuses(c container, d cni.Difference, holds []guard.Hold) string {
	held := func(h guard.Hold) bool {
		return (h.ContainerID == "" || h.ContainerID == c.id) && (h.Network == "" || h.Network == d.Network)
	}
	switch {
	case c.othersPart(d) != "":
		return c.othersPart(d)
	case !d.Repairable:
		return notRepairable(d)
	case d.Inside && !f.inside:
		return reasonText(cni.ErrInContainer)
	case !f.held && slices.ContainsFunc(holds, held):
		return reasonText(cni.ErrHeld)
	}
	return ""
}

func (a *app) repairTable(views []repairView, f repairFlags) string {
	done := "would repair"
	if f.yes {
		done = "repaired"
	}
	t := table{header: []string{"CONTAINER", "STATE", "REPAIR", "PART"}}
	healthy, parts := 0, 0
	for _, v := range views {
		if v.State == string(cni.StateHealthy) {
			healthy++
		}
		parts += len(v.Repaired)
		state := cell{v.State, healthColor(v.State)}
		for _, d := range v.Repaired {
			part := d.part()
			if f.yes {
				part = d.Kind + " " + d.Object
			}
			t.add(cell{text: v.ContainerID}, state, cell{done, green}, cell{text: d.Network + ": " + part})
		}
		for _, d := range v.Remaining {
			t.add(cell{text: v.ContainerID}, state, cell{"remains", red}, cell{text: d.Network + ": " + d.part() + " (" + d.Reason + ")"})
		}
		if v.Reason != "" {
			t.add(cell{text: v.ContainerID}, state, cell{"remains", red}, cell{text: v.Reason})
		}
	}
	text := ""
	if len(t.rows) > 0 {
		text = t.format(a.colors(a.Out))
	}
	text += fmt.Sprintf("%s, %d healthy; %s %s.", plural(len(views), "container"), healthy, done, plural(parts, "part"))
	if !f.yes && parts > 0 {
		text += " Nothing was changed; to do it, add --yes."
	}
	return text + "\n"
}
