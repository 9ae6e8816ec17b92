package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/kernel/joined"
)

// gcView is what gc has done, or would do, in JSON.
type gcView struct {
	DryRun    bool              `json:"dryRun"`
	Kept      []string          `json:"kept"`
	Removed   []string          `json:"removed"` // or would be
	Failed    map[string]string `json:"failed"`  // to be removed, with the reason
	Skipped   map[string]string `json:"skipped"`
	Reclaimed []string          `json:"reclaimed"` // leftovers of containers that are on no record
	Left      []string          `json:"left"`      // leftovers that may be others', with what to do
}

// gcFlags are those of the command.
type gcFlags struct {
	keep     []string
	keepNone bool
	yes      bool
}

func newGCCommand(a *app) *cobra.Command {
	var f gcFlags
	cmd := &cobra.Command{
		Use:     "gc [NETWORK [NETNS]]",
		GroupID: groupCNI,
		Short:   "Removes the containers that are not to be kept (with --yes).",
		Long: `GC removes every container that --owner has on record and that --keep does not name, the
live ones too, and leftovers of containers that are no longer on record. Then it runs CNI's
GC of the plugins. With a network it removes only the attachments to that network.

As cnitool's gc it can remove all of a network: --keep-none says so. Without --yes it
changes nothing and prints what it would do. The namespace is ignored; it may stand there
because cnitool wants one.`,
		Example: `  embedcni gc --keep web-1,web-2
  embedcni gc pods --keep-none --yes`,
		Args: cobra.RangeArgs(0, 2), ValidArgsFunction: a.completeNetwork,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.keepNone == (len(f.keep) > 0) {
				return usageError("give either --keep with the containers that stay, or --keep-none")
			}
			return a.gc(cmd.Context(), args, f)
		},
	}
	cmd.Flags().StringSliceVar(&f.keep, "keep", nil, "the `IDs` of the containers that stay, separated by commas")
	cmd.Flags().BoolVar(&f.keepNone, "keep-none", false, "remove every container of --owner")
	addYes(cmd, &f.yes)
	return cmd
}

func (a *app) gc(ctx context.Context, args []string, f gcFlags) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	rt, err := a.openNetworks()
	if err != nil {
		return err
	}
	o := cni.GCOptions{Keep: f.keep, KeepNone: f.keepNone, DryRun: !f.yes}
	if len(args) > 0 {
		config, err := a.configOf(rt, args[0])
		if err != nil {
			return err
		}
		o.Keep, o.KeepNone, o.Configs = nil, false, [][]byte{[]byte(config.Source)}
		o.KeepIf = func(at cni.Attachment) bool { return at.Network != args[0] || slices.Contains(f.keep, at.ContainerID) }
	}
	p := a.begin("gc", 0)
	report, err := rt.GC(ctx, o)
	p.end()
	if report == nil {
		return err
	}
	v := viewGC(report, !f.yes)
	if printed := a.print(v, func() string { return a.gcTable(v) }); printed != nil {
		return joined.Errors(err, printed)
	}
	if err == nil && len(v.Failed) > 0 {
		return advise(errors.New(plural(len(v.Failed), "container")+" could not be removed"),
			"The records stay. Mend the cause and run it again; 'embedcni cleanup ID' removes by force what its plugins cannot.")
	}
	return err
}

func viewGC(r *cni.Report, dryRun bool) gcView {
	texts := func(all map[string]error) map[string]string {
		m := map[string]string{}
		for id, err := range all {
			m[id] = err.Error()
		}
		return m
	}
	list := func(all []string) []string { return append([]string{}, all...) }
	return gcView{
		DryRun: dryRun, Kept: list(r.Adopted), Removed: list(r.Removed), Failed: texts(r.Failed), Skipped: texts(r.Skipped),
		Reclaimed: list(r.Reclaimed), Left: list(r.Left),
	}
}

func (a *app) gcTable(v gcView) string {
	removed, reclaimed := "removed", "reclaimed"
	if v.DryRun {
		removed, reclaimed = "would remove", "would reclaim"
	}
	t := table{header: []string{"CONTAINER", "GC", "DETAIL"}}
	for _, id := range v.Kept {
		t.add(row(id, "kept", "")...)
	}
	for _, id := range v.Removed {
		t.add(cell{text: id}, cell{removed, green}, cell{})
	}
	for _, id := range slices.Sorted(maps.Keys(v.Skipped)) {
		t.add(cell{text: id}, cell{"skipped", yellow}, cell{text: v.Skipped[id]})
	}
	for _, id := range slices.Sorted(maps.Keys(v.Failed)) {
		t.add(cell{text: id}, cell{"failed", red}, cell{text: v.Failed[id]})
	}
	for _, line := range v.Reclaimed {
		t.add(cell{}, cell{reclaimed, green}, cell{text: line})
	}
	for _, line := range v.Left {
		t.add(cell{}, cell{"left", yellow}, cell{text: line})
	}
	text := ""
	if len(t.rows) > 0 {
		text = t.format(a.colors(a.Out))
	}
	text += fmt.Sprintf("%s %s, kept %d.", removed, plural(len(v.Removed), "container"), len(v.Kept))
	if v.DryRun && len(v.Removed)+len(v.Reclaimed) > 0 {
		text += " Nothing was changed; to do it, add --yes."
	}
	return text + "\n"
}
