package sweep

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/embedcni/cni/internal/conntrack"
	"github.com/embedcni/cni/netns"
)

// FlushFlows makes conntrack forget the UDP flows that it sends to addresses of
// a container that is gone: the next container that takes the port would never
// see them. It returns how many there were.
//
// If there are any, it asks which addresses are in use by others, whose flows
// stay.
func FlushFlows(host *netns.Handle, addresses []netip.Addr, inUse func() ([]netip.Addr, error)) (flushed uint, err error) {
	var errs []error
	asked := sync.OnceValues(inUse)
	for _, addr := range addresses {
		// What comes back comes from the container, whatever address it was sent to.
		n, err := conntrack.Forget(host, addr.Is6(), conntrack.Flows{From: addr, Keep: func() (bool, error) {
			taken, err := asked()
			return slices.Contains(taken, addr), err
		}})
		flushed += n
		if err != nil {
			errs = append(errs, fmt.Errorf("flush UDP flows to %s: %w", addr, err))
		}
	}
	return flushed, errors.Join(errs...)
}
