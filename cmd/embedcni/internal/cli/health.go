package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/embedcni/cni"
)

// healthView is a verdict in JSON.
type healthView struct {
	ContainerID string           `json:"containerID"`
	State       string           `json:"state"` // healthy, broken, unknown, gone, not attached, elsewhere
	Owners      []string         `json:"owners"`
	Differences []differenceView `json:"differences"`
	Reason      string           `json:"reason,omitempty"`
	Uncompared  []string         `json:"uncompared,omitempty"`
}

// differenceView is a missing or different part in JSON.
type differenceView struct {
	Network    string `json:"network"`
	IfName     string `json:"ifName"`
	Plugin     string `json:"plugin"`
	Kind       string `json:"kind"`
	Inside     bool   `json:"inside"` // in the container's namespace; else on the host
	Object     string `json:"object,omitempty"`
	Wanted     string `json:"wanted,omitempty"`
	Found      string `json:"found,omitempty"`
	Repairable bool   `json:"repairable"`
	Why        string `json:"why,omitempty"`   // it is not repairable
	Error      string `json:"error,omitempty"` // of CHECK, if the kind is check
}

// kindCheck is the kind of a difference that only the plugin's CHECK knows.
const kindCheck = "check"

func viewDifference(d cni.Difference) differenceView {
	v := differenceView{
		Network: d.Network, IfName: d.IfName, Plugin: d.Plugin, Kind: d.Kind, Inside: d.Inside, Object: d.Object,
		Wanted: d.Wanted, Found: d.Found, Repairable: d.Repairable, Why: d.Why,
	}
	if d.Kind == kindCheck { // of the others it only says again what is missing
		v.Error = textOf(d.Err)
	}
	return v
}

// part names what is different, and how.
func (d differenceView) part() string {
	text := d.Kind
	if d.Object != "" {
		text += " " + d.Object
	}
	if d.Inside {
		text += " in the container"
	}
	switch {
	case d.Kind == kindCheck:
		return d.Error
	case d.Found == "":
		return text + " is missing"
	}
	return fmt.Sprintf("%s is %s, not %s", text, d.Found, d.Wanted)
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func newHealthCommand(a *app) *cobra.Command {
	var allOwners, noCheck bool
	cmd := &cobra.Command{
		Use:     "health [ID...]",
		GroupID: groupLook,
		Short:   "Says of each container whether all that its attachment made is still there.",
		Long: `Health compares containers with their records: interfaces, addresses, routes, rules,
ports, bridges. Then it asks the plugins that may know more for CHECK. It changes nothing.

    healthy   nothing is missing or different, as far as anybody can tell
    broken    the lines say what is missing or different; see repair
    unknown   it could not be told, for the reason beside it
    gone      the network namespace is gone; see release

Without IDs it looks at all containers of --owner. The exit code is 3 unless all are healthy.`,
		Example: `  embedcni health
  embedcni health web-7 --json
  embedcni health --all-owners`,
		ValidArgsFunction: a.completeIDs(true),
		RunE: func(cmd *cobra.Command, ids []string) error {
			return a.health(cmd.Context(), ids, allOwners, cni.HealthOptions{WithoutCheck: noCheck})
		},
	}
	addAllOwners(cmd, &allOwners)
	cmd.Flags().BoolVar(&noCheck, "no-check", false, "only compare: ask no plugin for CHECK")
	return cmd
}

func (a *app) health(ctx context.Context, ids []string, allOwners bool, o cni.HealthOptions) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	rt, err := a.open()
	if err != nil {
		return err
	}
	recorded, err := a.recorded(rt, ids)
	if err != nil {
		return err
	}
	views := []healthView{}
	if o.Containers = toLookAt(recorded, ids, allOwners); o.Containers == nil || len(o.Containers) > 0 {
		if views, err = a.verdicts(ctx, rt, o, recorded); err != nil {
			return err
		}
	}
	if err := a.print(views, func() string { return a.healthTable(views) }); err != nil {
		return err
	}
	if len(ids) == 0 && !allOwners {
		a.noteOthers(otherOwners(recorded))
	}
	if len(ids) == 0 && len(recorded) == 0 {
		a.noteEmpty(rt)
	}
	if slices.ContainsFunc(views, func(v healthView) bool { return v.State != string(cni.StateHealthy) }) {
		return errBad
	}
	return nil
}

// toLookAt returns the containers for HealthOptions: those that are named, or all of every
// owner, or nil for all of the owner's.
func toLookAt(recorded map[string]container, ids []string, allOwners bool) []string {
	if len(ids) > 0 {
		return unique(ids)
	}
	if !allOwners {
		return nil
	}
	all := []string{}
	for id := range recorded {
		if id != "" {
			all = append(all, id)
		}
	}
	return all
}

// verdicts returns the views of what Health says.
func (a *app) verdicts(ctx context.Context, rt *cni.Runtime, o cni.HealthOptions, recorded map[string]container) ([]healthView, error) {
	p := a.begin("health", 0)
	defer p.end()
	all, err := rt.Health(ctx, o)
	if err != nil {
		return nil, err
	}
	views := make([]healthView, 0, len(all))
	for _, h := range all {
		c := recorded[h.ContainerID]
		v := healthView{
			ContainerID: h.ContainerID, State: string(h.State), Owners: append([]string{}, ownersOf(slices.Concat(c.own, c.others))...),
			Differences: []differenceView{}, Reason: textOf(h.Reason), Uncompared: h.Uncompared,
		}
		for _, d := range h.Differences {
			v.Differences = append(v.Differences, viewDifference(d))
		}
		views = append(views, v)
	}
	return views, nil
}

// healthTable has the containers that need attention last, where a person looks first.
func (a *app) healthTable(views []healthView) string {
	t := table{header: []string{"CONTAINER", "STATE", "NETWORK", "DETAIL"}}
	counts := map[string]int{}
	for _, healthy := range []bool{true, false} {
		for _, v := range views {
			if (v.State == string(cni.StateHealthy)) == healthy {
				counts[v.State]++
				t.addVerdict(v)
			}
		}
	}
	return t.format(a.colors(a.Out)) + summary(len(views), counts)
}

func (t *table) addVerdict(v healthView) {
	detail := v.Reason
	if len(v.Differences) == 0 || detail != "" {
		t.add(cell{text: v.ContainerID}, cell{v.State, healthColor(v.State)}, cell{}, cell{text: detail})
	}
	for _, d := range v.Differences {
		detail := d.part()
		if !d.Repairable && d.Why != "" {
			detail += " (not repairable: " + d.Why + ")"
		}
		t.add(cell{text: v.ContainerID}, cell{v.State, healthColor(v.State)}, cell{text: d.Network}, cell{detail, healthColor(v.State)})
	}
}

// summary is the last line of a table of verdicts.
func summary(n int, counts map[string]int) string {
	line := plural(n, "container")
	separator := ": "
	for _, state := range []cni.HealthState{cni.StateHealthy, cni.StateBroken, cni.StateUnknown, cni.StateGone, cni.StateNotAttached, cni.StateElsewhere} {
		if count := counts[string(state)]; count > 0 {
			line += fmt.Sprintf("%s%d %s", separator, count, state)
			separator = ", "
		}
	}
	return line + "\n"
}

func healthColor(state string) color {
	switch cni.HealthState(state) {
	case cni.StateHealthy:
		return green
	case cni.StateUnknown:
		return yellow
	}
	return red
}

// otherOwners counts the attachments of others.
func otherOwners(recorded map[string]container) map[string]int {
	counts := map[string]int{}
	for _, c := range recorded {
		for _, at := range c.others {
			counts[at.Owner]++
		}
	}
	return counts
}
