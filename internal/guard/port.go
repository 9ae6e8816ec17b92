package guard

import "slices"

// Port is an interface as the port of a bridge. A nil field was not announced.
type Port struct {
	Interface int // its index
	Mode      *PortMode
	VLANs     *[]VLANs // in no order
}

// PortMode are the modes of a port.
type PortMode struct{ Hairpin, Isolated bool }

// VLANs are VLANs of a port, from one ID to another.
type VLANs struct {
	First, Last uint16
	Own         bool // packets without a VLAN belong to it
}

// with returns the port after an announcement.
func (p Port) with(now Port) Port {
	if now.Mode == nil {
		now.Mode = p.Mode
	}
	if now.VLANs == nil {
		now.VLANs = p.VLANs
	}
	return now
}

// hasLost reports whether a port has lost something that a plugin may have given to it: a
// mode or a VLAN. standard is the VLAN of the bridge's new ports. Its loss does not count,
// since an ADD for other VLANs takes it away.
func (p Port) hasLost(now Port, standard uint16) bool {
	if p.Mode != nil && now.Mode != nil && (p.Mode.Hairpin && !now.Mode.Hairpin || p.Mode.Isolated && !now.Mode.Isolated) {
		return true
	}
	if p.VLANs == nil || now.VLANs == nil {
		return false
	}
	return slices.ContainsFunc(*p.VLANs, func(v VLANs) bool { return !v.isIn(*now.VLANs, standard) })
}

// isIn reports whether all VLANs but one are in others, as they were.
func (v VLANs) isIn(all []VLANs, but uint16) bool {
	for id := int(v.First); id <= int(v.Last); {
		if id == int(but) {
			id++
			continue
		}
		i := slices.IndexFunc(all, func(w VLANs) bool { return int(w.First) <= id && id <= int(w.Last) && (w.Own || !v.Own) })
		if i < 0 {
			return false
		}
		id = int(all[i].Last) + 1
	}
	return true
}
