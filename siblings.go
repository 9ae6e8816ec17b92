package cni

import (
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/plugin"
)

// The reference plugins name after the network and the container what they make
// for one attachment: the chain of the masquerading, that of the host ports; in
// nftables the host ports after the container alone. A container that is attached
// twice, as to the IPv4 and the IPv6 list of a network, has one of each for both.
// So what takes one attachment away asks for its siblings, and leaves theirs.

// siblings are the container's other attachments that stay, as far as record or,
// without one, libcni's cache says.
func (a *attachment) siblings() ([]*attachment, error) {
	stays := func(ifName string) bool { return ifName != a.IfName && !a.op.leaving[ifName] }
	var all []*attachment
	var err error
	if rec := a.op.rec; rec != nil && !a.op.damaged {
		// Most often there is none, and nothing need be parsed.
		if !slices.ContainsFunc(rec.Networks, func(n record.Network) bool { return n.State != record.Deleted && stays(n.IfName) }) {
			return nil, nil
		}
		all, err = a.op.fromRecord(rec)
	} else {
		all, err = a.op.fromCache()
	}
	return slices.DeleteFunc(slices.Clone(all), func(b *attachment) bool { return !stays(b.IfName) }), err
}

// sharing is what of the packet filters the siblings have.
func (a *attachment) sharing() netfilter.Siblings {
	var s netfilter.Siblings
	all, err := a.siblings()
	s.Unknown = err != nil
	if a.op.damaged {
		s.Addresses = addressesOf(a.op.rec, a.op.leaving)
	}
	for _, b := range all {
		s.Owners = append(s.Owners, b.owner())
		s.Addresses = append(s.Addresses, b.addresses()...)
		if b.network.config.Name != a.network.config.Name {
			continue
		}
		wants, err := b.wants()
		for _, w := range wants {
			s.Rules.Masquerade = append(s.Rules.Masquerade, w.rules.Masquerade...)
			s.Rules.HostPorts = append(s.Rules.HostPorts, w.rules.HostPorts...)
		}
		if err != nil {
			a.op.logger.Warn("the rules of another attachment of the container are not known, so what it may share stays",
				"container", a.op.id, "network", b.network.config.Name, "interface", b.IfName, "error", err)
			s.Unknown = true
		}
	}
	return s
}

// ownRules are the rules of the attachment that siblings may share the chains of.
func (a *attachment) ownRules() (own netfilter.Rules) {
	wants, _ := a.wants() // what is not known is looked for by the addresses
	for _, w := range wants {
		own.Masquerade = append(own.Masquerade, w.rules.Masquerade...)
		own.HostPorts = append(own.HostPorts, w.rules.HostPorts...)
	}
	return own
}

func (a *attachment) owner() netfilter.Owner {
	return netfilter.Owner{Network: a.network.config.Name, ContainerID: a.ContainerID, IfName: a.IfName}
}

// addresses are those of the attachment's result.
func (a *attachment) addresses() (all []netip.Addr) {
	result := decodeResult(json.RawMessage(a.partial))
	if result == nil {
		return nil
	}
	for _, ip := range result.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			all = append(all, addr.Unmap())
		}
	}
	return all
}

// wanted are the rules of one plugin.
type wanted struct {
	typ     string
	backend netfilter.Backend
	rules   netfilter.Rules
	unsure  bool // which backend it was: neither configuration nor record says it
}

// wants are the rules of the attachment that other attachments of the container
// may share, and of portmap those in this module's own table too.
func (a *attachment) wants() (all []wanted, err error) {
	result := decodeResult(json.RawMessage(a.partial))
	var errs []error
	for i, p := range a.network.config.Plugins {
		if a.isCallers(p.Network.Type) {
			continue // nobody knows what it makes
		}
		config, err := a.chain().Request(i, &a.Attachment, nil)
		w := wanted{typ: p.Network.Type}
		if err == nil {
			w.backend, w.rules, err = builtin.Wants(&plugin.Request{
				ContainerID: a.ContainerID, IfName: a.IfName, NetNS: a.NetNS, Name: a.network.config.Name,
				Type: w.typ, CNIVersion: a.network.config.CNIVersion, Config: config, PrevResult: result,
			})
		}
		if w.backend == netfilter.Native && !a.isBuiltIn(w.typ) {
			_, _, known := a.kinds.get(w.typ)
			w.backend, w.unsure = referenceBackend(), !known
		}
		if errs = append(errs, err); err == nil && len(w.rules.Masquerade)+len(w.rules.HostPorts) > 0 {
			all = append(all, w)
		}
	}
	return all, join(errs...)
}

// isBuiltIn reports whether a built-in plugin is known to have run the ADD.
func (a *attachment) isBuiltIn(typ string) bool {
	c, ok, _ := a.kinds.get(typ)
	return ok && c.Kind == string(PluginBuiltIn)
}

// referenceBackend is what the reference plugins use where a configuration names
// no backend.
func referenceBackend() netfilter.Backend {
	if netfilter.Detect() == netfilter.DetectedIPTables {
		return netfilter.IPTables
	}
	return netfilter.NFTables
}

// fromCache makes the attachments that libcni's cache has of the container. It is
// read once for each call.
func (op *operation) fromCache() (all []*attachment, err error) {
	if op.cachedAll != nil {
		return *op.cachedAll, nil
	}
	cached := &operation{snapshot: op.snapshot, verb: op.verb, id: op.id, host: op.host, path: op.path, rec: op.rec, damaged: op.damaged}
	if err := cached.addCached(); err != nil {
		return nil, err
	}
	for _, a := range cached.attachments {
		a.partial = a.chain().CachedResult(&a.Attachment)
		a.op = op
	}
	op.cachedAll = &cached.attachments
	return cached.attachments, nil
}
