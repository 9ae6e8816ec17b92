// Reconciler keeps containers attached as a file wants them. It follows the configurations of
// the networks and the file, repairs what others break, attaches again what is gone, and
// removes what the file no longer has. It needs Linux and root.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/netconf"
	"github.com/embedcni/cni/reconcile"
)

const usage = `usage: reconciler [-state DIR] NETWORKS WANTED.json

NETWORKS is a directory of network configurations, such as /etc/cni/net.d; each container gets
the first network. WANTED.json has the network namespaces of the containers, by their IDs:

	{"web-1": "/run/netns/web-1", "web-2": "/proc/4711/ns/net"}

The file is read at the start, after SIGHUP, and once a minute. An interrupt ends the program, and
the containers stay attached; with {} in the file they are removed. The exit code is 0 after an
interrupt, 1 after an error, and 2 for wrong arguments.

  -state DIR  where the records are (default /var/lib/cni)
`

func main() {
	state := flag.String("state", "/var/lib/cni", "")
	flag.Usage = func() { fmt.Fprint(flag.CommandLine.Output(), usage) }
	flag.Parse()
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, flag.Arg(0), flag.Arg(1), *state); err != nil {
		log.Fatal("reconciler: ", err)
	}
}

// run reconciles whenever something has changed, until ctx ends.
func run(ctx context.Context, networks, wanted, state string) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	rt, err := cni.New(cni.WithOwner("reconciler"), cni.WithStateDir(state), cni.WithPluginConfDir(networks), cni.WithBuiltinFallback())
	if err != nil {
		return err
	}
	if err := rt.Load(cni.WithDefaultConf); err != nil {
		log.Print(err) // Watch loads the networks once they are there
	}
	ctx, cancel := context.WithCancel(ctx)
	loaded := make(chan struct{}, 1)
	ended := make(chan error, 2)
	go func() {
		ended <- netconf.Watch(ctx, rt, netconf.WatchOptions{Report: func(e netconf.WatchEvent) {
			log.Print(e)
			select {
			case loaded <- struct{}{}:
			default: // it reconciles anyway
			}
		}})
	}()
	go func() {
		ended <- guard.Run(ctx, rt, guard.Options{Report: func(e guard.Event) { log.Print(e) }})
	}()
	running := 2
	for minute := time.Tick(time.Minute); running == 2 && ctx.Err() == nil; {
		if err := step(ctx, rt, wanted); err != nil {
			log.Print(err) // it is tried again
		}
		select {
		case err = <-ended:
			running--
		case <-ctx.Done():
		case <-loaded:
		case <-hangups:
		case <-minute:
		}
	}
	cancel()
	for ; running > 0; running-- {
		err = errors.Join(err, <-ended)
	}
	return err
}

// step makes the containers as the file wants them.
func step(ctx context.Context, rt *cni.Runtime, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var wanted map[string]string
	if err := json.Unmarshal(text, &wanted); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	var expected []reconcile.Expected
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		expected = append(expected, reconcile.Expected{ContainerID: id, NetNS: wanted[id]})
	}
	report, err := reconcile.Run(ctx, rt, expected, reconcile.Options{Decide: decide})
	if err != nil {
		return err
	}
	for _, c := range report.Containers {
		log.Print(c)
	}
	// Those that another program has attached stay.
	collected, err := rt.GC(ctx, cni.GCOptions{KeepIf: func(a cni.Attachment) bool { return wanted[a.ContainerID] != "" }})
	if err != nil {
		return err
	}
	for _, id := range collected.Removed {
		log.Printf("%s: removed", id)
	}
	return collected.Err()
}

// decide is the policy of this program.
func decide(h cni.Health) reconcile.Decision {
	switch h.State {
	case cni.StateBroken:
		return reconcile.Repair
	case cni.StateNotAttached, cni.StateElsewhere, cni.StateGone:
		return reconcile.Replace
	}
	return reconcile.Report
}
