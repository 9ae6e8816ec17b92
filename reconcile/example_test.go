package reconcile_test

import (
	"context"
	"log"
	"slices"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/reconcile"
)

// The start of a scheduler's agent: it remembers its containers and the namespaces of
// their tasks. What a repair puts right is repaired, everything else replaced.
func Example() {
	rt, err := cni.New(cni.WithDefaultConf)
	if err != nil {
		log.Fatal(err)
	}
	remembered := []reconcile.Expected{
		{ContainerID: "web-1", NetNS: "/run/netns/web-1"},
		{ContainerID: "web-2", NetNS: "/run/netns/web-2", Options: []cni.NamespaceOpts{
			cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8080, ContainerPort: 80}}),
		}},
	}
	report, err := reconcile.Run(context.Background(), rt, remembered, reconcile.Options{
		Decide: func(h cni.Health) reconcile.Decision {
			switch h.State {
			case cni.StateUnknown:
				return reconcile.Report
			case cni.StateBroken:
				if !slices.ContainsFunc(h.Differences, func(d cni.Difference) bool { return !d.Repairable }) {
					return reconcile.Repair
				}
			}
			return reconcile.Replace
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range report.Containers {
		if c.Err != nil || len(c.Lost) > 0 {
			log.Print(c) // restart the task, or tell others about its new address
		}
	}
	for _, id := range report.Unexpected {
		log.Print("nobody remembers ", id)
	}
}
