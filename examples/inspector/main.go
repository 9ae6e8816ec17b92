// Inspector prints the networks of this host with their containers: which are on a bridge,
// which have a link of their own to the host, and whether each is as it was attached. It
// changes nothing. It needs Linux and root.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/embedcni/cni"
)

const usage = `usage: inspector [-state DIR] NETWORKS

NETWORKS is a directory of network configurations, such as /etc/cni/net.d. The exit code is 0 if
all containers are healthy, 1 if one is not or after an error, and 2 for wrong arguments.

  -state DIR  where the runtime that attached them keeps its records (default /var/lib/cni)
`

func main() {
	state := flag.String("state", "/var/lib/cni", "")
	flag.Usage = func() { fmt.Fprint(flag.CommandLine.Output(), usage) }
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	healthy, err := inspect(ctx, os.Stdout, flag.Arg(0), *state)
	if err != nil {
		log.Fatal("inspector: ", err)
	}
	if !healthy {
		os.Exit(1)
	}
}

// inspect prints a table of the networks, one of the containers, and what is wrong with them.
func inspect(ctx context.Context, out io.Writer, dir, state string) (healthy bool, err error) {
	rt, err := cni.New(
		cni.WithPluginConfDir(dir), cni.WithAllConf, cni.WithStateDir(state), cni.WithBuiltinFallback(),
		cni.WithoutReaping()) // an inspector removes nothing
	if err != nil {
		return false, err
	}
	attached, err := rt.Attachments()
	if err != nil {
		return false, err
	}
	ids := make([]string, 0, len(attached))
	for _, a := range attached {
		ids = append(ids, a.ContainerID)
	}
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	var verdicts []cni.Health // by name, whoever has attached them
	if len(ids) > 0 {
		if verdicts, err = rt.Health(ctx, cni.HealthOptions{Containers: ids}); err != nil {
			return false, err
		}
	}
	states := map[string]cni.HealthState{}
	for _, h := range verdicts {
		states[h.ContainerID] = h.State
	}
	printNetworks(out, rt)
	printContainers(out, attached, states)
	healthy = true
	for _, h := range verdicts {
		if h.State != cni.StateHealthy {
			fmt.Fprintln(out, h)
			healthy = false
		}
	}
	return healthy, nil
}

func printNetworks(out io.Writer, rt *cni.Runtime) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NETWORK\tKIND\tGATEWAYS\tPLUGINS")
	for _, n := range rt.GetConfig().Networks {
		var gateways, plugins []string
		all, err := rt.Gateways(n.Config.Name)
		if err != nil { // the network has none, or only its plugin knows
			gateways = []string{"none known"}
		}
		for _, g := range all {
			gateways = append(gateways, g.Prefix.String())
		}
		for _, p := range n.Config.Plugins {
			plugins = append(plugins, fmt.Sprintf("%s (%s)", p.Network.Type, cmp.Or(p.Kind, "missing")))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", n.Config.Name, kind(n.Config.Plugins[0].Network.Type),
			strings.Join(gateways, " "), strings.Join(plugins, ", "))
	}
	w.Flush()
}

// kind says how the containers of a network reach each other.
func kind(typ string) string {
	switch typ {
	case "bridge":
		return "shared bridge"
	case "ptp":
		return "point to point"
	}
	return typ
}

func printContainers(out io.Writer, attached []cni.Attachment, states map[string]cni.HealthState) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nCONTAINER\tNETWORK\tINTERFACE\tADDRESSES\tPORTS\tOWNER\tSTATE")
	for _, a := range attached {
		var addresses, ports []string
		for _, addr := range a.Addresses {
			addresses = append(addresses, addr.Prefix.String())
		}
		for _, p := range a.Ports {
			ports = append(ports, fmt.Sprintf("%d:%d/%s", p.HostPort, p.ContainerPort, cmp.Or(p.Protocol, "tcp")))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", a.ContainerID, a.Network, a.IfName, strings.Join(addresses, " "),
			strings.Join(ports, " "), a.Owner, states[a.ContainerID])
	}
	w.Flush()
}
