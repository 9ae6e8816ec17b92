package ipam

import (
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/links"
)

// verify returns an error unless an interface has the addresses of a result,
// usable, and there is a route to each destination of the result's routes.
//
// It ignores other addresses and routes. It also ignores where a route leads: a
// program in the container, such as a VPN that takes over the default route or
// one that sets a metric, may have replaced it, and the destination is still
// reached.
func verify(c *links.Conn, index int, result *types100.Result) error {
	if len(result.IPs) == 0 {
		return nil
	}
	w, err := plan(result)
	if err != nil {
		return err
	}
	addrs, err := c.Addresses(index)
	if err != nil {
		return err
	}
	wanted := w.routes
	for _, want := range w.addresses {
		at := slices.IndexFunc(addrs, func(a links.Address) bool { return a.Prefix == want })
		if at < 0 {
			return fmt.Errorf("address %s is missing", want)
		}
		if addrs[at].Duplicate {
			return fmt.Errorf("address %s is another machine's too", want)
		}
		if want.Bits() < want.Addr().BitLen() {
			wanted = append(wanted, links.Route{Dst: want.Masked()})
		}
	}
	return verifyRoutes(c, index, wanted)
}

// verifyRoutes asks for all routes only if some do not lead through the
// interface.
func verifyRoutes(c *links.Conn, index int, wanted []links.Route) error {
	for _, from := range []int{index, anyInterface} {
		have, err := c.Routes(from)
		if err != nil {
			return err
		}
		wanted = slices.DeleteFunc(wanted, func(want links.Route) bool { return reaches(have, want) })
		if len(wanted) == 0 {
			return nil
		}
	}
	return fmt.Errorf("route %s is missing", wanted[0])
}

// anyInterface selects the routes through all interfaces.
const anyInterface = 0

// reaches reports whether there is a route to the destination of another route,
// in that one's table if it names one, because rules refer to tables.
func reaches(routes []links.Route, want links.Route) bool {
	return slices.ContainsFunc(routes, func(r links.Route) bool {
		return r.Dst == want.Dst && (want.Table == unix.RT_TABLE_UNSPEC || r.Table == want.Table)
	})
}

// HasRoute reports whether there is a route to dst through an interface.
func HasRoute(c *links.Conn, index int, dst netip.Prefix) (bool, error) {
	routes, err := c.Routes(index)
	return reaches(routes, links.Route{Dst: dst}), err
}
