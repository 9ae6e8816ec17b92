package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/kernel/joined"
)

// releaseView is what a container that is gone still holds, in JSON.
type releaseView struct {
	ContainerID string     `json:"containerID"`
	Reason      string     `json:"reason"` // how it is known that it is gone
	Networks    []string   `json:"networks"`
	Addresses   []string   `json:"addresses"`
	Ports       []portView `json:"ports"`
}

func newReleaseCommand(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:     "release [ID...]",
		GroupID: groupChange,
		Short:   "Lists what gone containers still hold, and gives it back (with --yes).",
		Long: `Release lists the containers of --owner whose network namespace is gone, or was of an
earlier boot, and the addresses and ports of the host that they still hold on record. With
IDs and --yes it removes what is left of them: the plugins are asked for DEL, so that the
addresses and ports are free again, leftovers are removed, and the record ends. Removals of
--owner's that have failed before are tried again with it.

It never touches a container that lives, or that may live: remove does that. A container
that is attached anew meanwhile stays. The program that attached a container releases it by
itself when it starts, or when it is asked to remove the container.`,
		Example: `  embedcni release
  embedcni release web-7 --yes`,
		ValidArgsFunction: a.completeIDs(false),
		RunE: func(cmd *cobra.Command, ids []string) error {
			if yes && len(ids) == 0 {
				return usageError("--yes needs IDs: nothing is removed that is not named; 'embedcni release' lists the containers")
			}
			return a.release(cmd.Context(), ids, yes)
		},
	}
	addYes(cmd, &yes)
	return cmd
}

func (a *app) release(ctx context.Context, ids []string, yes bool) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	rt, err := a.open()
	if err != nil {
		return err
	}
	all, err := a.wanted(rt, ids)
	if err != nil {
		return err
	}
	gone, alive, err := a.gone(ctx, rt, all)
	if err != nil {
		return err
	}
	if len(ids) > 0 && len(alive) > 0 {
		return advise(fmt.Errorf("container %s is not gone: it is %s", alive[0].ContainerID, alive[0].State),
			"'embedcni remove %s' detaches it although it may live.", alive[0].ContainerID)
	}
	if yes {
		views, err := a.releaseAll(ctx, rt, all)
		if err != nil {
			return err
		}
		return a.reportRemoved(views)
	}
	views := viewReleases(all, gone)
	return a.print(views, func() string { return a.releaseTable(views) })
}

// gone tells the containers that are gone from the others.
func (a *app) gone(ctx context.Context, rt *cni.Runtime, all []container) (gone, alive []cni.Health, err error) {
	if len(all) == 0 {
		return nil, nil, nil
	}
	p := a.begin("health", 0)
	defer p.end()
	verdicts, err := rt.Health(ctx, cni.HealthOptions{Containers: idsOf(all), WithoutCheck: true})
	for _, h := range verdicts {
		if h.State == cni.StateGone {
			gone = append(gone, h)
		} else {
			alive = append(alive, h)
		}
	}
	return gone, alive, err
}

// releaseAll removes containers that are gone. GC looks at each record again while nobody can
// attach the container, so that one that is attached anew by now is not removed.
func (a *app) releaseAll(ctx context.Context, rt *cni.Runtime, gone []container) ([]removeView, error) {
	p := a.begin("release", 0)
	defer p.end()
	report, err := rt.GC(ctx, cni.GCOptions{KeepIf: func(at cni.Attachment) bool { return !isAmong(gone, at) }})
	if err != nil {
		return nil, err
	}
	views := make([]removeView, len(gone))
	for i, c := range gone {
		err := joined.Errors(report.Failed[c.id], report.Skipped[c.id])
		if err == nil && !slices.Contains(report.Removed, c.id) {
			err = errors.New("it was attached anew, or removed, meanwhile")
		}
		views[i] = viewRemoval(c.id, err)
	}
	return views, nil
}

// isAmong reports whether an attachment is one of those that the containers had.
func isAmong(all []container, at cni.Attachment) bool {
	return slices.ContainsFunc(all, func(c container) bool {
		return slices.ContainsFunc(c.own, func(seen cni.Attachment) bool {
			return seen.ContainerID == at.ContainerID && seen.IfName == at.IfName && seen.Since.Equal(at.Since)
		})
	})
}

func viewReleases(all []container, gone []cni.Health) []releaseView {
	views := []releaseView{}
	for _, h := range gone {
		c := all[slices.IndexFunc(all, func(c container) bool { return c.id == h.ContainerID })]
		v := releaseView{ContainerID: c.id, Reason: textOf(h.Reason), Networks: []string{}, Addresses: []string{}, Ports: []portView{}}
		for _, at := range c.own {
			one := viewAttachment(at)
			v.Networks = append(v.Networks, one.Network)
			v.Addresses = append(v.Addresses, one.Addresses...)
			v.Ports = append(v.Ports, one.Ports...)
		}
		views = append(views, v)
	}
	return views
}

func (a *app) releaseTable(views []releaseView) string {
	if len(views) == 0 {
		return fmt.Sprintf("No container of %s is gone.\n", a.flags.owner)
	}
	t := table{header: []string{"CONTAINER", "HOLDS ADDRESSES", "PORTS", "NETWORKS", "GONE"}}
	for _, v := range views {
		t.add(row(v.ContainerID, strings.Join(v.Addresses, ","), joinPorts(v.Ports), strings.Join(v.Networks, ","), v.Reason)...)
	}
	return t.format(a.colors(a.Out)) + "Nothing was changed; to give that back, name the containers and add --yes.\n"
}
