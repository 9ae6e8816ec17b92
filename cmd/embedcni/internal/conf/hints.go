package conf

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// hints finds what is accepted, and is most likely not what was meant.
func (k *checked) hints(v *value) {
	plugins := k.plugins(v)
	made := false
	for i := range plugins {
		p := &plugins[i]
		typ := p.str("type")
		if known, ok := pluginFields[typ]; ok {
			if k.isList() {
				k.unknown(p, union(anyPlugin, known), "plugin "+typ)
			} else {
				k.unknown(p, union(union(anyPlugin, listFields), known), "plugin "+typ)
			}
		}
		if ipam := p.get("ipam"); ipam != nil {
			k.addressing(p, ipam, typ, v)
		}
		if slices.Contains(changers, typ) && !made {
			k.add(p.get("type").value.offset, fmt.Sprintf("plugin %s changes an interface, and no plugin before it makes one", typ), "move it behind the plugin that does, such as bridge")
		}
		// A plugin that is not known may make one.
		made = made || slices.Contains(makers, typ) || pluginFields[typ] == nil
		k.capability(p, typ)
	}
	k.sameName(v)
}

// unknown finds fields that a plugin ignores. encoding/json accepts any case.
func (k *checked) unknown(v *value, known fields, of string) {
	all := names(known)
	for _, m := range v.members {
		if slices.ContainsFunc(all, func(name string) bool { return strings.EqualFold(name, m.key) }) {
			continue
		}
		mend := "delete it, unless it is for another program"
		if meant := nearest(m.key, all); meant != "" {
			mend = fmt.Sprintf("write %q", meant)
		}
		k.add(m.offset, fmt.Sprintf("%s has no field %q, and ignores it", of, m.key), mend)
	}
}

// capability finds a plugin that works on what a runtime gives it, and does not ask for it.
func (k *checked) capability(p *value, typ string) {
	name, ok := needed[typ]
	if !ok {
		return
	}
	if c := p.get("capabilities"); c == nil || !c.true(name) {
		k.add(p.offset, fmt.Sprintf("plugin %s does not declare the capability %s, and so never gets any", typ, name),
			fmt.Sprintf(`add "capabilities": {%q: true} to it`, name))
	}
}

// addressing finds what is doubtful about addresses.
func (k *checked) addressing(p *value, ipam *member, typ string, list *value) {
	of := ipam.str("type")
	if known, ok := ipamFields[of]; ok {
		k.unknown(&ipam.value, known, "ipam "+of)
	}
	if of != "host-local" {
		return
	}
	for _, r := range rangesOf(&ipam.value) {
		if r.value != &ipam.value {
			k.unknown(r.value, rangeFields, "range")
		}
		if r.subnet.IsValid() {
			k.claim(r, p.str("bridge"), list.str("name"))
		}
	}
	if routes := ipam.get("routes"); routes != nil {
		for i := range routes.items {
			route := &routes.items[i]
			k.unknown(route, routeFields, "route")
			if dst, err := netip.ParsePrefix(route.str("dst")); err == nil && dst.Bits() == 0 && typ == "bridge" && p.true("isDefaultGateway") {
				k.add(route.offset, "isDefaultGateway adds the default route already, and the reference plugin refuses a second", "delete this route, or isDefaultGateway")
			}
		}
	}
}

// claim notes a subnet, and finds one of an earlier file that overlaps it. Two networks on
// one bridge may share it.
func (k *checked) claim(r span, bridge, network string) {
	for _, other := range k.subnets {
		if other.file == k.path || bridge != "" && other.bridge == bridge || !other.prefix.Overlaps(r.subnet) {
			continue
		}
		k.add(r.at, fmt.Sprintf("subnet %s overlaps %s of network %q in %s", r.subnet, other.prefix, other.network, other.file), "choose another subnet for one of them")
	}
	k.subnets = append(k.subnets, claimed{r.subnet, k.path, network, bridge})
}

// sameName finds a second file for a network.
func (k *checked) sameName(v *value) {
	m := v.get("name")
	if m == nil || m.kind != text {
		return
	}
	if k.named == nil {
		k.named = map[string]string{}
	}
	name := v.str("name")
	if earlier, ok := k.named[name]; ok {
		k.add(m.value.offset, fmt.Sprintf("network %q is in %s too", name, earlier), "rename one of them, or delete a file")
		return
	}
	k.named[name] = k.path
}
