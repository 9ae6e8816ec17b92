package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni"
)

// judge is an attacher that says of all attached containers whether they are
// healthy. They are, and another verdict is an error.
type judge interface {
	verdict(ctx context.Context, all []container) error
	// recover is what a program does when it starts.
	recover(ctx context.Context, all []container) error
}

// verdict asks the plugins of one container after the other, which is the only way
// there.
func (g *goCNI) verdict(ctx context.Context, all []container) error {
	for _, c := range all {
		rt, err := g.runtimes.get(c.Network, g.open)
		if err != nil {
			return err
		}
		if err := rt.Check(ctx, c.ID, c.Path, g.ports(c)...); err != nil {
			return err
		}
	}
	return nil
}

func (*goCNI) recover(context.Context, []container) error {
	return errors.New("go-cni does not know its containers")
}

// verdict compares all containers with their records. A runtime examines the
// containers of its owner, whichever network they are on.
func (o *ours) verdict(ctx context.Context, all []container) error {
	rt, err := o.runtimes.get(0, o.open)
	if err != nil {
		return err
	}
	report, err := rt.Health(ctx, cni.HealthOptions{WithoutCheck: true})
	if err != nil {
		return err
	}
	if healthy := report.Count(cni.StateHealthy); healthy != len(all) || len(report.Containers) != len(all) {
		return fmt.Errorf("%d of %d containers are healthy, want %d; the first that is not: %s",
			healthy, len(report.Containers), len(all), firstDoubt(report))
	}
	for _, h := range report.Containers {
		if len(h.Uncompared) > 0 {
			return fmt.Errorf("nobody has compared all of %s", h)
		}
	}
	return nil
}

func firstDoubt(report *cni.HealthReport) string {
	for _, h := range report.Containers {
		if h.State != cni.StateHealthy {
			return h.String()
		}
	}
	return "none"
}

func (o *ours) recover(ctx context.Context, all []container) error {
	rt, err := o.runtimes.get(0, o.open)
	if err != nil {
		return err
	}
	report, err := rt.Recover(ctx)
	if err != nil {
		return err
	}
	if len(report.Adopted) != len(all) || len(report.Kept)+len(report.Failed)+len(report.Skipped)+len(report.Removed) > 0 {
		return fmt.Errorf("%d of %d containers are adopted: %d kept, %d failed, %d skipped, %d removed", len(report.Adopted), len(all),
			len(report.Kept), len(report.Failed), len(report.Skipped), len(report.Removed))
	}
	return nil
}
