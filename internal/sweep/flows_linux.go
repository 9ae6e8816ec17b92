package sweep

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/embedcni/cni/internal/links"
)

// FlushFlows makes conntrack forget the UDP flows that it sends to the target's
// addresses, if one of the forwarded ports may be UDP: the next container that
// takes the port would never see them. It returns the number of flows.
//
// If there are any, it asks which addresses are in use by others, whose flows stay.
func FlushFlows(t Target) (flushed uint, err error) {
	if !t.Rules.UDP || t.Host == nil {
		return 0, nil
	}
	var errs []error
	asked := sync.OnceValues(t.InUse)
	for _, addr := range t.Addresses {
		// Replies come from the container's address, wherever the request was sent to.
		n, err := links.Forget(t.Host, addr.Is6(), links.Flows{From: addr, Keep: func() (bool, error) {
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
