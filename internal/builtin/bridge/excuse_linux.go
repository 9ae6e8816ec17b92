package bridge

import (
	"fmt"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Excuse knows two faults of the reference plugin's CHECK. It asks the IPAM plugin even if
// there is none. And it compares the hardware address of the bridge, which follows its ports
// unless somebody sets it, and is another one after somebody has made the bridge again.
// Containers ask for the address when they need it.
func (*Plugin) Excuse(r *plugin.Request, v *compare.View) (e compare.Excuse, err error) {
	c, err := load(r)
	if err != nil {
		return e, err
	}
	if c.IPAM.Type == "" {
		return compare.Excuse{Why: "the CHECK of the plugin fails for every container without an IPAM plugin", Blind: true}, nil
	}
	br, err := v.Host.Link(c.Bridge)
	if links.NotFound(err) {
		return e, nil // gone since the comparison
	}
	if err != nil {
		return e, fmt.Errorf("bridge: %w", err)
	}
	said := compare.OnHost(r, c.Bridge)
	if said == nil || compare.SameMAC(said.Mac, br.MAC) {
		return e, nil
	}
	return compare.Excuse{Why: fmt.Sprintf("bridge %q has the hardware address %v, and had %s after the ADD, which does not matter", c.Bridge, br.MAC, said.Mac)}, nil
}
