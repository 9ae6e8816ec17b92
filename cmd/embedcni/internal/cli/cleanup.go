package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/kernel/joined"
)

// cleanupView is what was found of an attachment in JSON.
type cleanupView struct {
	ContainerID string   `json:"containerID"`
	Network     string   `json:"network"`
	IfName      string   `json:"ifName"`
	DryRun      bool     `json:"dryRun"`
	Found       []string `json:"found"` // in the order of removal; rules as commands that delete them
	Left        []string `json:"left"`  // could not be removed
	Error       string   `json:"error,omitempty"`
}

func newCleanupCommand(a *app) *cobra.Command {
	var yes bool
	var addresses []string
	cmd := &cobra.Command{
		Use:     "cleanup ID [NETWORK IFNAME]",
		GroupID: groupChange,
		Short:   "Removes by force what an attachment has left (with --yes).",
		Long: `Cleanup is for an attachment that remove cannot end, because its plugin or configuration is
gone for good, and for leftovers of another runtime: it runs no plugin, and removes what the
reference plugins leave, and the record. What other plugins have left stays, and nobody
knows of it afterwards: try remove first.

With an ID alone it is for all attachments of the container on record. An attachment that
is on no record is named with its network and interface. A live container loses it. Without
--yes it changes nothing and lists what it would remove.`,
		Example: `  embedcni cleanup web-7
  embedcni cleanup web-7 pods eth0 --address 10.1.0.7 --yes`,
		Annotations: map[string]string{takesNoOwner: ""},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 && len(args) != 3 {
				return fmt.Errorf("%d arguments are given: it wants the ID of a container, and perhaps a network and an interface", len(args))
			}
			return nil
		},
		ValidArgsFunction: a.completeIDs(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.cleanup(cmd.Context(), args, addresses, yes)
		},
	}
	cmd.Flags().StringSliceVar(&addresses, "address", nil, "`addresses` that the container had on the network, if no record has them")
	addYes(cmd, &yes)
	return cmd
}

func (a *app) cleanup(ctx context.Context, args, addresses []string, yes bool) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	// Of an attachment on no record the configuration says where its addresses are reserved.
	rt, err := a.openAny()
	if err != nil {
		return err
	}
	targets, err := a.targets(rt, args)
	if err != nil {
		return err
	}
	for i := range targets {
		for _, text := range addresses {
			address, err := netip.ParseAddr(text)
			if err != nil {
				return usageError("--address: %w", err)
			}
			targets[i].Addresses = append(targets[i].Addresses, address)
		}
		targets[i].DryRun = !yes
	}
	views, err := a.cleanAll(ctx, rt, targets)
	if printed := a.print(views, func() string { return a.cleanupTable(views) }); printed != nil {
		return joined.Errors(err, printed)
	}
	return err
}

// targets are the attachment that is named, or all of the owner's of the container.
func (a *app) targets(rt *cni.Runtime, args []string) (all []cni.CleanUpTarget, err error) {
	id := args[0]
	recorded, err := a.recorded(rt, []string{id})
	if err != nil {
		return nil, err
	}
	c, ok := recorded[id]
	if len(args) == 3 {
		target := cni.CleanUpTarget{ContainerID: id, Network: args[1], IfName: args[2]}
		for _, at := range c.others {
			if at.Network == target.Network && at.IfName == target.IfName || at.State == cni.Unknown {
				return nil, a.foreign(c)
			}
		}
		return []cni.CleanUpTarget{target}, nil
	}
	switch {
	case !ok:
		return nil, advise(notOnRecord(id), "To clean up what is on no record, name the network and the interface too.")
	case len(c.own) == 0:
		return nil, a.foreign(c)
	}
	for _, at := range c.own {
		if at.Network == "" {
			return nil, advise(fmt.Errorf("the record of container %s cannot be used: %s", id, at.LastError),
				"Name the network and the interface too.")
		}
		all = append(all, cni.CleanUpTarget{ContainerID: id, Network: at.Network, IfName: at.IfName})
	}
	return all, nil
}

// cleanAll cleans up attachments one after the other. It goes on after an error.
func (a *app) cleanAll(ctx context.Context, rt *cni.Runtime, targets []cni.CleanUpTarget) ([]cleanupView, error) {
	p := a.begin("cleanup", len(targets))
	defer p.end()
	views, errs := []cleanupView{}, []error{}
	for _, t := range targets {
		found, err := rt.CleanUp(ctx, t)
		v := cleanupView{ContainerID: t.ContainerID, Network: t.Network, IfName: t.IfName, DryRun: t.DryRun,
			Found: append([]string{}, found...), Left: []string{}, Error: textOf(err)}
		if left := new(cni.LeftoverError); errors.As(err, &left) {
			v.Left = append(v.Left, left.Left...)
		}
		views, errs = append(views, v), append(errs, err)
		p.step()
	}
	return views, joined.Errors(errs...)
}

func (a *app) cleanupTable(views []cleanupView) string {
	t := table{header: []string{"CONTAINER", "NETWORK", "INTERFACE", "CLEANUP", "LEFTOVER"}}
	found, dryRun := 0, false
	for _, v := range views {
		done := cell{"removed", green}
		switch {
		case v.DryRun:
			done, dryRun = cell{"would remove", yellow}, true
		case v.Error != "":
			done = cell{"found", yellow}
		}
		found += len(v.Found)
		for _, line := range v.Found {
			t.add(cell{text: v.ContainerID}, cell{text: v.Network}, cell{text: v.IfName}, done, cell{text: line})
		}
		for _, line := range v.Left {
			t.add(cell{text: v.ContainerID}, cell{text: v.Network}, cell{text: v.IfName}, cell{"left", red}, cell{text: line})
		}
	}
	if found == 0 {
		return "Nothing is left.\n"
	}
	text := t.format(a.colors(a.Out))
	if dryRun {
		text += "Nothing was changed; to do it, add --yes.\n"
	}
	return text
}
