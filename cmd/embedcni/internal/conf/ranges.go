package conf

import (
	"fmt"
	"net/netip"
)

// span is a range of host-local.
type span struct {
	value  *value
	subnet netip.Prefix
	at     int // of the subnet
}

// rangesOf returns the ranges of host-local's configuration: those in "ranges", and the one
// that stands in the configuration itself.
func rangesOf(ipam *value) (all []span) {
	add := func(v *value) {
		if m := v.get("subnet"); m != nil {
			subnet, _ := netip.ParsePrefix(v.str("subnet")) // the zero Prefix is not valid
			all = append(all, span{v, subnet, m.value.offset})
		} else if v != ipam {
			all = append(all, span{v, netip.Prefix{}, v.offset})
		}
	}
	add(ipam)
	if sets := ipam.get("ranges"); sets != nil {
		for i := range sets.items {
			for j := range sets.items[i].items {
				add(&sets.items[i].items[j])
			}
		}
	}
	return all
}

// ranges finds ranges that host-local refuses.
func (k *checked) ranges(ipam *value) {
	if sets := ipam.get("ranges"); sets != nil && sets.kind == array {
		for _, set := range sets.items {
			if set.kind != array {
				k.add(set.offset, `"ranges" is a list of lists of ranges`, `write "ranges": [[{"subnet": …}], [{"subnet": …}]]`)
				return
			}
		}
	}
	all := rangesOf(ipam)
	if len(all) == 0 {
		k.add(ipam.offset, "ipam host-local has no subnet", `add "ranges": [[{"subnet": "10.1.0.0/24"}]]`)
	}
	for _, r := range all {
		k.span(r)
	}
}

func (k *checked) span(r span) {
	m := r.value.get("subnet")
	switch {
	case m == nil:
		k.add(r.at, "the range has no subnet", `add "subnet": "10.1.0.0/24"`)
		return
	case m.kind != text:
		if r.value.get("type") == nil { // else it is reported with the fields of ipam
			k.add(r.at, fmt.Sprintf(`"subnet" is %s, and must be a string`, m.kind), `write "subnet": "10.1.0.0/24"`)
		}
		return
	case !r.subnet.IsValid():
		k.add(r.at, fmt.Sprintf("subnet %q is no address with a prefix length", r.value.str("subnet")), `write it as in "10.1.0.0/24"`)
		return
	case r.subnet != r.subnet.Masked():
		k.add(r.at, fmt.Sprintf("subnet %s has bits behind its prefix length, which host-local refuses", r.subnet), fmt.Sprintf("write %q", r.subnet.Masked()))
		return
	case r.subnet.Addr().BitLen()-r.subnet.Bits() < 2:
		k.add(r.at, fmt.Sprintf("subnet %s has no room for a gateway and a container", r.subnet), "choose a larger one")
		return
	}
	var first, last netip.Addr
	for _, key := range []string{"gateway", "rangeStart", "rangeEnd"} {
		m := r.value.get(key)
		if m == nil || m.kind != text {
			continue
		}
		addr, err := netip.ParseAddr(r.value.str(key))
		switch {
		case err != nil:
			k.add(m.value.offset, fmt.Sprintf("%s %q is no address", key, r.value.str(key)), "write it without a prefix length")
		case !r.subnet.Contains(addr):
			k.add(m.value.offset, fmt.Sprintf("%s %s is not in subnet %s", key, addr, r.subnet), "choose an address of the subnet")
		case key == "rangeStart":
			first = addr
		case key == "rangeEnd":
			last = addr
			if first.IsValid() && last.Less(first) {
				k.add(m.value.offset, fmt.Sprintf("rangeEnd %s comes before rangeStart %s", last, first), "exchange them")
			}
		}
	}
}
