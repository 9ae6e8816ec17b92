package main

import (
	"context"
	"fmt"

	"github.com/embedcni/cni"
)

// repair prints what is wrong with the containers, and mends web.
func repair(ctx context.Context, rt *cni.Runtime) error {
	verdicts, err := rt.Health(ctx, cni.HealthOptions{})
	if err != nil {
		return err
	}
	for _, verdict := range verdicts {
		fmt.Println(verdict)
	}
	report, err := rt.Repair(ctx, "web", cni.RepairOptions{Inside: true})
	if err != nil {
		return err
	}
	for _, part := range report.Repaired {
		fmt.Println("repaired:", part)
	}
	return report.Err()
}
