package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/embedcni/cni"
)

// printTable prints what the containers got: a row for each address, with what
// is the same for several of them in the first row only.
func printTable(out io.Writer, calls *callTimes, containers ...*container) {
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row(w, "CONTAINER", "NETWORK", "INTERFACE", "MAC", "ADDRESS", "GATEWAY", "   TOOK")
	for _, c := range containers {
		name := c.name
		for _, n := range c.result.Networks {
			took := fmt.Sprintf("%7s", milliseconds(calls.of(c.name, n.Name)))
			for _, i := range inside(n) {
				lead := []string{name, n.Name, i.Name, i.Mac}
				for _, a := range i.Addresses {
					gateway := ""
					if a.Gateway.IsValid() {
						gateway = a.Gateway.String()
					}
					row(w, append(lead, a.Prefix.String(), gateway, took)...)
					lead, name, took = []string{"", "", "", ""}, "", ""
				}
			}
		}
	}
	w.Flush()
	fmt.Fprintln(out)
}

func row(w io.Writer, cells ...string) { fmt.Fprintln(w, strings.Join(cells, "\t")) }

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
}

// inside returns the network's interfaces in the container, leaving out those
// on the host, such as the bridge.
func inside(n *cni.NetworkResult) []*cni.Interface {
	var found []*cni.Interface
	for _, i := range n.Interfaces {
		if i.Sandbox != "" {
			found = append(found, i)
		}
	}
	return found
}
