package cli

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/spf13/cobra"

	"github.com/embedcni/cni"
)

// removeView is the outcome for a container in JSON.
type removeView struct {
	ContainerID string   `json:"containerID"`
	Removed     bool     `json:"removed"` // and verified that nothing remains
	Left        []string `json:"left"`
	Error       string   `json:"error,omitempty"`

	advice string // for people
}

func newRemoveCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "remove ID...",
		Aliases: []string{"rm"},
		GroupID: groupChange,
		Short:   "Detaches the named containers from their networks, live ones too.",
		Long: `Remove detaches each container that is named from all networks to which --owner has
attached it: it asks every plugin, removes leftovers, and verifies that nothing remains. No
configuration is needed. If anything remains, the record stays, and remove may be repeated.
All IDs are looked up before anything is removed. A removal that has begun is carried through,
whatever --timeout says.`,
		Example: `  embedcni remove web-7 web-8
  embedcni remove web-7 --owner nomad`,
		Annotations: map[string]string{takesNoOwner: ""},
		Args:        cobra.MinimumNArgs(1), ValidArgsFunction: a.completeIDs(false),
		RunE: func(cmd *cobra.Command, ids []string) error { return a.remove(cmd.Context(), ids) },
	}
}

func (a *app) remove(ctx context.Context, ids []string) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	rt, err := a.open()
	if err != nil {
		return err
	}
	all, err := a.changeable(rt, ids)
	if err != nil {
		return err
	}
	return a.reportRemoved(a.removeAll(ctx, rt, all))
}

// reportRemoved prints what has come of removals.
func (a *app) reportRemoved(views []removeView) error {
	if err := a.print(views, func() string { return a.removeTable(views) }); err != nil {
		return err
	}
	failed := 0
	for _, v := range views {
		if !v.Removed {
			failed++
		}
	}
	if failed == 0 {
		return nil
	}
	return advise(errors.New(plural(failed, "container")+" could not be removed"), "%s", firstAdvice(views))
}

func firstAdvice(views []removeView) string {
	for _, v := range views {
		if v.advice != "" {
			return v.advice
		}
	}
	return "Mend the cause and try again."
}

// atOnce is how many containers are removed at once: each waits for the kernel most of the
// time.
const atOnce = 8

// removeAll removes containers, several at once, and returns the outcomes in order. Those
// that have not begun when ctx ends are left.
func (a *app) removeAll(ctx context.Context, rt *cni.Runtime, all []container) []removeView {
	views := make([]removeView, len(all))
	p := a.begin("remove", len(all))
	defer p.end()
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i, c := range all {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			views[i] = removeOne(ctx, rt, c)
			p.step()
		})
	}
	wg.Wait()
	return views
}

func removeOne(ctx context.Context, rt *cni.Runtime, c container) removeView {
	err := ctx.Err()
	if err == nil {
		err = rt.Remove(ctx, c.id, "", c.selection()...)
	}
	return viewRemoval(c.id, err)
}

// viewRemoval is the view of a removal with this error.
func viewRemoval(id string, err error) removeView {
	v := removeView{ContainerID: id, Left: []string{}}
	var left *cni.LeftoverError
	if errors.As(err, &left) {
		v.Left = append(v.Left, left.Left...)
		v.advice = leftoverAdvice(left)
		if err = left.Err; err == nil {
			err = errors.New("something remains")
		}
	}
	v.Removed, v.Error = err == nil, textOf(err)
	return v
}

func (a *app) removeTable(views []removeView) string {
	t := table{header: []string{"CONTAINER", "REMOVE", "DETAIL"}}
	for _, v := range views {
		if v.Removed {
			t.add(cell{text: v.ContainerID}, cell{"removed", green}, cell{})
			continue
		}
		t.add(cell{text: v.ContainerID}, cell{"failed", red}, cell{text: v.Error})
		for _, line := range v.Left {
			t.add(cell{text: v.ContainerID}, cell{"left", red}, cell{text: line})
		}
	}
	return t.format(a.colors(a.Out))
}

// withAdvice adds to the error of a removal what to do about what it has left.
func withAdvice(err error) error {
	var left *cni.LeftoverError
	if !errors.As(err, &left) {
		return err
	}
	return advise(err, "%s", leftoverAdvice(left))
}

func leftoverAdvice(left *cni.LeftoverError) string {
	return fmt.Sprintf("The record stays. Mend the cause and run 'embedcni remove %s' again; if the plugin or its configuration "+
		"is gone for good, 'embedcni cleanup %s' shows what would be removed by force.", left.ContainerID, left.ContainerID)
}
