package cni

import (
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/builtin/prevresult"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/portindex"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/record"
)

// mappings returns the ports that a plugin of the attachment's network was asked to
// forward.
func (a *attachment) mappings() []PortMapping {
	given := a.CapabilityArgs[capPortMappings]
	if given == nil || !a.network.declares(capPortMappings) {
		return nil
	}
	data, err := json.Marshal(given)
	if err != nil {
		return nil // no plugin got it either
	}
	return mappingsIn(data)
}

// recordedMappings is mappings for an attachment on record.
func recordedMappings(n *record.Attachment) []PortMapping {
	if len(portindex.Claims(n)) == 0 {
		return nil
	}
	return mappingsIn(n.Capabilities[capPortMappings])
}

// earlier returns the container's attachments to which ports may be forwarded since an
// earlier call.
func (op *operation) earlier() (sources []source) {
	own := op.attachments.names()
	for i := range op.Record.Attachments {
		n := &op.Record.Attachments[i]
		if own[n.IfName] || !n.Answered() {
			continue
		}
		ports := recordedMappings(n)
		if result := chain.Decode(n.Result); result != nil && len(ports) > 0 && chain.Walkable(result) == nil {
			sources = append(sources, source{n.Network, n.IfName, result, ports})
		}
	}
	return sources
}

// notePorts notes in each network of a Result, which were made of own, the ports that
// are forwarded to it.
func (r *Result) notePorts(earlier, own []source) {
	for i, forwarded := range forwardedTo(slices.Concat(earlier, own))[len(earlier):] {
		r.Networks[i].Ports = forwarded
	}
}

// mappingsIn reads the capability as plugins get it. A value of another form is no list
// of ports.
func mappingsIn(data json.RawMessage) (all []PortMapping) {
	var wire []wirePort
	if json.Unmarshal(data, &wire) != nil {
		return nil
	}
	for _, p := range wire {
		all = append(all, PortMapping(p))
	}
	return all
}

// forwardedTo returns the ports that are forwarded to each network of a container. A
// port is forwarded in each family of which the network has an address; among several
// networks, the first keeps it.
func forwardedTo(sources []source) [][]PortMapping {
	all := make([][]PortMapping, len(sources))
	taken := map[bool][]ports.Claim{} // of IPv4 (true) and IPv6
	for i, s := range sources {
		if len(s.ports) == 0 {
			continue
		}
		v4, v6 := prevresult.First(s.result, s.ifName)
		own := map[bool][]ports.Claim{}
		for _, m := range s.ports {
			free := false
			for _, is4 := range []bool{true, false} {
				c, ok := inFamily(m, is4)
				if !ok || is4 && !v4.IsValid() || !is4 && !v6.IsValid() {
					continue
				}
				own[is4] = append(own[is4], c)
				free = free || !slices.ContainsFunc(taken[is4], func(t ports.Claim) bool { return t.Includes(c) })
			}
			if free {
				all[i] = append(all[i], m)
			}
		}
		taken[true], taken[false] = append(taken[true], own[true]...), append(taken[false], own[false]...)
	}
	return all
}

// inFamily returns the claim of a mapping in one family, if it has one.
func inFamily(m PortMapping, is4 bool) (c ports.Claim, ok bool) {
	claims := ports.Of([]wirePort{wirePort(m)})
	if len(claims) == 0 {
		return c, false
	}
	c = claims[0]
	all := netip.IPv6Unspecified()
	if is4 {
		all = netip.IPv4Unspecified()
	}
	if !c.Addr.IsValid() {
		c.Addr = all
	}
	return c, c.Addr.Is4() == is4
}
