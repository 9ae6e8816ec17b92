package observed

import (
	"cmp"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/look"
	"github.com/embedcni/cni/netns"
)

// Read returns the interfaces of a namespace by their names.
func Read(ns *netns.Handle) (map[string]Interface, error) {
	n, err := look.Read(ns)
	if err != nil {
		return nil, err
	}
	if n.Torn() {
		return nil, fmt.Errorf("the network namespace %s changed each time it was read", ns.ID())
	}
	all := make(map[string]Interface)
	for _, l := range n.Links() {
		addresses, err := n.Addresses(l.Index)
		if err != nil {
			return nil, err
		}
		routes, err := n.Routes(l.Index)
		if err != nil {
			return nil, err
		}
		var i Interface
		for _, a := range addresses {
			if !a.Tentative && !a.Duplicate {
				i.Addresses = append(i.Addresses, a.Prefix)
			}
		}
		for _, r := range defaults(routes) {
			i.Gateways = append(i.Gateways, r.Via.WithZone(""))
		}
		for _, name := range append(l.Others, l.Name) {
			all[name] = i
		}
	}
	return all, nil
}

// defaults returns the default routes of the main table, the preferred ones first.
func defaults(routes []links.Route) (all []links.Route) {
	for _, r := range routes {
		if r.Dst.Bits() == 0 && r.Via.IsValid() && (r.Table == 0 || r.Table == unix.RT_TABLE_MAIN) {
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b links.Route) int { return cmp.Compare(a.Priority, b.Priority) })
	return all
}
