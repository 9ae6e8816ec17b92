package netconf

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/embedcni/cni/internal/store/record"
)

// adopt takes the subnets that a network without a reservation has nevertheless: the
// reservation was lost, or an earlier version of the program made the configuration. They
// are those of a configuration of its name in the directory, of its containers on record,
// and of its bridge, in this order. The last two count unless another network has them.
//
// It fails if the bridge has an address in another network than those: no container could
// be attached to it in a subnet that is chosen, or those that are attached would lose their
// gateway.
func (d Dir) adopt(n Network, wanting []wanting, into *reservation) (bool, error) {
	has, others, err := d.configured(n)
	if err != nil {
		return false, err
	}
	_, used, err := attachedNetworks(record.Open(d.records()), n.Name)
	if err != nil {
		return false, err
	}
	bridged, err := d.bridged(n)
	if err != nil {
		return false, err
	}
	for _, p := range slices.Concat(used, bridged) {
		if !slices.ContainsFunc(others, p.Overlaps) {
			has = append(has, p)
		}
	}
	adopted := into.Take(wanting, mergePrefixes(has))
	return adopted, refuseBridge(n, wanting, into, bridged)
}

// bridged returns the networks of the addresses of the network's bridge.
func (d Dir) bridged(n Network) (all []netip.Prefix, err error) {
	b, ok := n.bridge()
	if !ok {
		return nil, nil
	}
	host, err := d.host()
	if err != nil {
		return nil, err
	}
	all, err = subnetsOfLink(host, b.Name)
	return all, errors.Join(err, host.Close())
}

// bridge returns the network's Bridge.
func (n Network) bridge() (Bridge, bool) {
	i := slices.IndexFunc(n.Plugins, func(p Plugin) bool { _, ok := p.(Bridge); return ok })
	if i < 0 {
		return Bridge{}, false
	}
	return n.Plugins[i].(Bridge), true
}

// refuseBridge refuses a bridge with addresses of a family for which a subnet would be
// chosen, because none of them is in a subnet that the network may have.
func refuseBridge(n Network, wanting []wanting, has *reservation, bridged []netip.Prefix) error {
	given := n.given()
	for _, r := range wanting {
		of := *has.Of(r)
		if r.nth < len(of) {
			continue
		}
		for _, p := range bridged {
			if p.Addr().Is4() != r.family().Is4() || slices.ContainsFunc(slices.Concat(given, of), p.Overlaps) {
				continue
			}
			b, _ := n.bridge()
			return fmt.Errorf("%w: bridge %s exists with an address in %s, which is not of length %d in %v, or is another network's: "+
				"remove the bridge, or name another", ErrInvalid, b.Name, p, r.Bits, r.Pools)
		}
	}
	return nil
}

// records is the directory of the records of attachments.
func (d Dir) records() string { return cmp.Or(d.RecordDir, filepath.Join(d.own(), "attachments")) }
