package veth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
)

// join adds a port to the VLANs: a new one to all, while the container's end is down, and
// another to those that it has lost, unless it has got an own VLAN since the comparison.
func (c portConfig) join(conn *links.Conn, br, port links.Link, fresh bool) error {
	vlans := c.vlans()
	if len(vlans) == 0 {
		return nil
	}
	if !fresh {
		has, err := conn.VLANs(port.Index)
		if err != nil {
			return err
		}
		vlans, _ = lostVLANs(vlans, has)
	} else if !c.PreserveDefaultVLAN && br.DefaultVLAN != 0 {
		// The only VLAN of a new port.
		if err := links.DeleteVLAN(conn, port.Index, br.DefaultVLAN); err != nil {
			return fmt.Errorf(`"preserveDefaultVlan": take interface %q out of VLAN %d: %w`, port.Name, br.DefaultVLAN, err)
		}
	}
	for _, v := range vlans {
		if err := links.AddVLAN(conn, port.Index, v); err != nil {
			return fmt.Errorf(`"vlan", "vlanTrunk": put interface %q in VLAN %d: %w`, port.Name, v.ID, err)
		}
	}
	return nil
}

// port compares the host's end, which is on the bridge, in the configured modes.
// Other programs may set more: the kubelet used to set hairpin mode.
func (c *comparison) port(context.Context) error {
	host, found, err := CompareHost(c.r, c.v, c.inside, c.conf.restorePort)
	c.host, c.found = host, append(c.found, found...)
	if err != nil || !host.Exists {
		return err
	}
	return c.onBridge(host.Link, host.Place(c.r), c.conf, c.conf.restorePort)
}

// onBridge compares an interface as a port of the bridge, in the modes and VLANs of a
// configuration.
func (c *comparison) onBridge(port links.Link, place *contract.Place, as *bridgeConfig, restore contract.Make) error {
	lacks := func(wanted, found, why string, err error) {
		d := contract.Difference{Kind: contract.BridgePort, Object: port.Name, Wanted: wanted, Found: found, Err: err, Why: why}
		c.found = append(c.found, place.Lacks(d, restore))
	}
	if port.Port.Master == 0 || port.Port.Master != c.br.Index {
		master, why, err := c.master(port)
		lacks(c.conf.Bridge, master, why, fmt.Errorf("interface %q is not on bridge %q", port.Name, c.conf.Bridge))
		return err
	}
	if as.port.HairpinMode && !port.Port.Hairpin {
		lacks("hairpin", "", "", fmt.Errorf(`"hairpinMode": interface %q is not in hairpin mode`, port.Name))
	}
	if as.port.PortIsolation && !port.Port.Isolated {
		lacks("isolated", "", "", fmt.Errorf(`"portIsolation": interface %q is not isolated`, port.Name))
	}
	lost, err := as.port.portVLANs(c.v.Host.VLANs, port, place, restore)
	c.found = append(c.found, lost...)
	return err
}

// master returns the name of the bridge on which the host's end is instead, and
// why it does not come back.
func (c *comparison) master(port links.Link) (name, why string, err error) {
	if port.Port.Master == 0 {
		if c.br.Index == 0 && !c.ours() {
			why = "the bridge is missing"
		}
		return "", why, nil
	}
	other, err := c.v.Host.LinkByIndex(port.Port.Master)
	if links.NotFound(err) {
		return "", "", nil // it goes at this moment
	}
	return other.Name, "somebody put it there", err
}

// restorePort makes the interface again a port of the bridge, in its modes and its VLANs,
// unless it is a port of another one by now. One that is down it only sets up: what else
// it lacks is another difference.
func (c *bridgeConfig) restorePort(_ context.Context, conn *links.Conn, port links.Link) error {
	if !port.Up() { // wherever it is
		return conn.Change(port.Index, links.Change{Set: unix.IFF_UP})
	}
	br, err := conn.Link(c.Bridge)
	if err == nil {
		err = c.fits(br)
	}
	if err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	off := port.Port.Master == 0
	if !off && port.Port.Master != br.Index {
		return errors.New("it is on another bridge by now")
	}
	if off {
		if err := links.Enslave(conn, port.Index, br.Index); err != nil {
			return fmt.Errorf("put it on bridge %q: %w", c.Bridge, err)
		}
	}
	if err := links.SetPortMode(conn, port.Index, c.port.mode()); err != nil {
		return err
	}
	return c.port.join(conn, br, port, off)
}

// portVLANs compares the VLANs of a port, which is on the bridge, with the configured
// ones. A missing one is added. Others may be somebody's, and so may the port's own VLAN
// if that is another one now.
func (c portConfig) portVLANs(vlans func(port int) (links.VLANs, error), port links.Link, place *contract.Place, restore contract.Make) (all []contract.Difference, err error) {
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
		d := contract.Difference{
			Kind: contract.BridgePort, Object: "VLANs of " + port.Name, Wanted: listed(missing),
			Err: fmt.Errorf(`"vlan", "vlanTrunk": interface %q is not in VLAN %s`, port.Name, listed(missing)),
		}
		all = append(all, place.Lacks(d, restore))
	}
	if taken != 0 {
		own := has.Access()
		d := contract.Difference{
			Kind: contract.BridgePort, Object: "own VLAN of " + port.Name, Wanted: fmt.Sprint(taken), Found: "none", Why: "somebody has changed it",
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
