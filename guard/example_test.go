package guard_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
)

// An agent guards its containers until it is told to end, and logs what an administrator
// should know.
func Example() {
	rt, err := cni.New(cni.WithDefaultConf)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err = guard.Run(ctx, rt, guard.Options{
		LegacyInterval: 10 * time.Second,
		Report: func(e guard.Event) {
			switch e.Kind {
			case guard.Repaired, guard.Contested, guard.Failed:
				log.Print(e)
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A guard removes nothing. A program that also wants failed removals repeated, and garbage
// collected, asks for both at an interval of its own.
func Example_removals() {
	rt, err := cni.New(cni.WithDefaultConf)
	if err != nil {
		log.Fatal(err)
	}
	wanted := func(id string) bool { return true } // looks in the program's own list

	for range time.Tick(10 * time.Second) {
		retried, err := rt.RetryRemovals(context.Background())
		log.Print(retried, err)
		collected, err := rt.GC(context.Background(), cni.GCOptions{KeepIf: func(a cni.Attachment) bool { return wanted(a.ContainerID) }})
		log.Print(collected, err)
	}
}

// An administrator works on a network, and the guards of all programs leave it alone.
func ExampleHolds() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	rt, err := cni.New(cni.WithStateDir(dir))
	if err != nil {
		log.Fatal(err)
	}
	work := guard.Hold{Network: "pods", Reason: "the switch is replaced"}
	if err := work.Begin(context.Background(), rt); err != nil {
		log.Fatal(err)
	}
	all, err := guard.Holds(rt)
	if err != nil {
		log.Fatal(err)
	}
	for _, h := range all {
		fmt.Println(h.Network, h.Reason)
	}
	if err := work.End(context.Background(), rt); err != nil {
		log.Fatal(err)
	}
	// Output: pods the switch is replaced
}
