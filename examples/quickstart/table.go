package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/embedcni/cni"
)

// printTable prints the containers' addresses, one row each. Values shared by
// several rows appear in the first row only.
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
				for _, a := range addressCells(i) {
					row(w, append(lead, a[0], a[1], took)...)
					lead, name, took = []string{"", "", "", ""}, "", ""
				}
			}
		}
	}
	w.Flush()
	fmt.Fprintln(out)
}

// addressCells returns address and gateway for each row of an interface. There
// is at least one row.
func addressCells(i *cni.Interface) [][2]string {
	var cells [][2]string
	for _, a := range i.Addresses {
		gateway := ""
		if a.Gateway.IsValid() {
			gateway = a.Gateway.String()
		}
		cells = append(cells, [2]string{a.Prefix.String(), gateway})
	}
	if len(cells) == 0 {
		return [][2]string{{"none", ""}}
	}
	return cells
}

func row(w io.Writer, cells ...string) { fmt.Fprintln(w, strings.Join(cells, "\t")) }

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
}

// inside returns the network's interfaces in the container. It omits those on
// the host, such as the bridge.
func inside(n *cni.NetworkResult) []*cni.Interface {
	var found []*cni.Interface
	for _, i := range n.Interfaces {
		if i.Sandbox != "" {
			found = append(found, i)
		}
	}
	return found
}
