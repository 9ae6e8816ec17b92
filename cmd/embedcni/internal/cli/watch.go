package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cmd/embedcni/internal/watch"
)

func newWatchCommand(a *app) *cobra.Command {
	var o watch.Options
	var allOwners bool
	cmd := &cobra.Command{
		Use:     "watch",
		GroupID: groupLook,
		Short:   "Prints what becomes of containers as it happens: attached, removed, lost, back.",
		Long: `Watch prints a line for each event, until it is interrupted:

  attached, removed     an attachment came or went, whichever program has done it with the
                        same state directory; also attaching, detaching, failed, damaged
  lost, back            a part of a container is missing or different, or as it was again
  healthy               nothing of a container is lost any more
  unknown, gone         it cannot be told whether a container is healthy; its namespace is
                        gone
  config                configuration files have changed
  trouble               some changes may not have been noticed

At the beginning it prints what is lost already. With --json each line is an object.

The kernel announces changes; nothing is polled. It announces none of the legacy tables of
iptables. With --repair watch also repairs what --owner's containers have lost, as package
guard does, and prints that.`,
		Example: `  embedcni watch --all-owners
  embedcni watch --json | jq 'select(.event == "lost")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.watch(cmd.Context(), o, allOwners) },
	}
	addAllOwners(cmd, &allOwners)
	cmd.Flags().BoolVar(&o.Repair, "repair", false, "repair what is lost, and print that")
	return cmd
}

func (a *app) watch(ctx context.Context, o watch.Options, allOwners bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	bounded, stop := a.bounded(ctx)
	defer stop()
	rt, err := a.open()
	if err != nil {
		return err
	}
	// netconf.Watch goes on with what could not be loaded, and reports it.
	if err := rt.Load(cni.WithAllConf); err != nil && !cni.IsCNINotInitialized(err) {
		return err
	}
	if !allOwners {
		o.Owner = a.flags.owner
	}
	var failed error
	o.Report = func(e watch.Event) {
		if failed == nil {
			if failed = a.printEvent(e); failed != nil {
				cancel(failed) // nobody reads any more
			}
		}
	}
	if err := watch.Run(bounded, rt, o); err != nil {
		return err
	}
	return failed
}

// printEvent prints an event in a line.
func (a *app) printEvent(e watch.Event) error {
	if a.flags.json {
		return json.NewEncoder(a.Out).Encode(e)
	}
	words := []string{}
	if e.ContainerID != "" {
		words = append(words, e.ContainerID)
	}
	if e.IfName != "" {
		words = append(words, fmt.Sprintf("%s on %s", e.IfName, e.Network))
	}
	words = append(words, e.Addresses...)
	line := strings.Join(words, " ")
	if e.Detail != "" {
		line = strings.TrimPrefix(line+": "+e.Detail, ": ")
	}
	kind := fmt.Sprintf("%-9s", e.Event)
	if a.colors(a.Out) {
		kind = paint(eventColor(e.Event), kind)
	}
	_, err := fmt.Fprintf(a.Out, "%s  %s  %s\n", e.Time.Local().Format("15:04:05.000"), kind, cmp.Or(line, "-"))
	return err
}

func eventColor(kind watch.Kind) color {
	switch kind {
	case watch.Lost, watch.Failed, watch.Damaged, watch.Gone, watch.Trouble:
		return red
	case watch.Back, watch.Healthy, watch.Attached:
		return green
	case watch.Unknown, watch.Attaching, watch.Detaching:
		return yellow
	}
	return plain
}
