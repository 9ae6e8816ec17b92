package bridge

import (
	"fmt"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
)

// portVLANs compares the VLANs of a port, which is on the bridge, with the configured
// ones. A missing one is added. Others may be somebody's, and so may the port's own VLAN
// if that is another one now.
func (c *config) portVLANs(vlans func(port int) (links.VLANs, error), port links.Link, place *compare.Place, restore fix) (all []compare.Difference, err error) {
	want := c.vlans()
	if len(want) == 0 {
		return nil, nil
	}
	has, err := vlans(port.Index)
	if err != nil {
		return nil, fmt.Errorf("VLANs of interface %q: %w", port.Name, err)
	}
	missing, taken := lostVLANs(want, has)
	if len(missing) > 0 {
		d := compare.Difference{
			Kind: compare.BridgePort, Object: "VLANs of " + port.Name, Wanted: listed(missing),
			Err: fmt.Errorf(`"vlan", "vlanTrunk": interface %q is not in VLAN %s`, port.Name, listed(missing)),
		}
		all = append(all, place.Lacks(d, restore))
	}
	if taken != 0 {
		own := has.Access()
		d := compare.Difference{
			Kind: compare.BridgePort, Object: "own VLAN of " + port.Name, Wanted: fmt.Sprint(taken), Found: "none", Why: "somebody has changed it",
			Err: fmt.Errorf(`"vlan", "vlanTrunk": VLAN %d is not the own one of interface %q`, taken, port.Name),
		}
		if own != 0 {
			d.Found = fmt.Sprint(own)
		}
		all = append(all, d)
	}
	return all, nil
}

// lostVLANs returns the wanted VLANs that are missing, in order, and the wanted own VLAN
// if it cannot be added: the port is in it in another way, or has another own one.
func lostVLANs(want []links.VLAN, has links.VLANs) (missing []links.VLAN, taken uint16) {
	for _, w := range want {
		now, in := has.Find(w.ID)
		switch {
		case w.Access && (in && !now.Access || !in && has.Access() != 0):
			taken = w.ID
		case !in:
			missing = append(missing, w)
		}
	}
	slices.SortFunc(missing, func(a, b links.VLAN) int { return int(a.ID) - int(b.ID) })
	return missing, taken
}

// listed lists VLANs, which are sorted: "7 (its own), 100-199".
func listed(all []links.VLAN) string {
	var parts []string
	for i := 0; i < len(all); {
		end := i + 1
		for end < len(all) && all[end].ID == all[end-1].ID+1 && all[end].Access == all[i].Access {
			end++
		}
		text := fmt.Sprint(all[i].ID)
		if last := all[end-1].ID; last != all[i].ID {
			text += fmt.Sprintf("-%d", last)
		}
		if all[i].Access {
			text += " (its own)"
		}
		parts, i = append(parts, text), end
	}
	return strings.Join(parts, ", ")
}

// rejoin adds a port to the VLANs that it has lost, unless it has got an own VLAN since
// the comparison.
func (c *config) rejoin(conn *links.Conn, port links.Link) error {
	want := c.vlans()
	if len(want) == 0 {
		return nil
	}
	has, err := conn.VLANs(port.Index)
	if err != nil {
		return err
	}
	missing, _ := lostVLANs(want, has)
	for _, v := range missing {
		if err := conn.AddVLAN(port.Index, v); err != nil {
			return fmt.Errorf("put it in VLAN %d: %w", v.ID, err)
		}
	}
	return nil
}
