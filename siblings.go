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

// The reference plugins name the chains of an attachment, for masquerading and for
// host ports, after the network and the container. In nftables they name host ports
// after the container alone. Two attachments of a container, for example to the IPv4
// and the IPv6 list of a network, share these chains. They are siblings. The removal
// of one attachment must keep the rules of its siblings.

// siblings returns the container's other attachments that stay, from the record or,
// without a record, from libcni's cache.
func (a *attachment) siblings() ([]*attachment, error) {
	stays := func(ifName string) bool { return ifName != a.IfName && !a.op.leaving[ifName] }
	var all []*attachment
	var err error
	if rec := a.op.rec; rec != nil && !a.op.damaged {
		// Most attachments have none. The record then need not be parsed.
		if !slices.ContainsFunc(rec.Networks, func(n record.Network) bool { return n.State != record.Deleted && stays(n.IfName) }) {
			return nil, nil
		}
		all, err = a.op.fromRecord(rec)
	} else {
		all, err = a.op.fromCache()
	}
	return slices.DeleteFunc(slices.Clone(all), func(b *attachment) bool { return !stays(b.IfName) }), err
}

// sharing returns the addresses, owners and rules of the siblings.
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
			a.op.logger.Warn("the rules of another attachment of the container are not known; rules that it may share stay",
				"container", a.op.id, "network", b.network.config.Name, "interface", b.IfName, "error", err)
			s.Unknown = true
		}
	}
	return s
}

// ownRules returns the attachment's rules in chains that siblings may share.
func (a *attachment) ownRules() (own netfilter.Rules) {
	wants, _ := a.wants() // the sweep finds unknown rules by the addresses
	for _, w := range wants {
		own.Masquerade = append(own.Masquerade, w.rules.Masquerade...)
		own.HostPorts = append(own.HostPorts, w.rules.HostPorts...)
	}
	return own
}

func (a *attachment) owner() netfilter.Owner {
	return netfilter.Owner{Network: a.network.config.Name, ContainerID: a.ContainerID, IfName: a.IfName}
}

// addresses returns the addresses in the attachment's result.
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

// wanted has the rules that one plugin makes for an attachment.
type wanted struct {
	typ     string
	backend netfilter.Backend
	rules   netfilter.Rules
	unsure  bool // neither the configuration nor the record names the backend
}

// wants returns the attachment's rules in chains that other attachments of the
// container may share, and portmap's rules in this module's own table.
func (a *attachment) wants() (all []wanted, err error) {
	result := decodeResult(json.RawMessage(a.partial))
	var errs []error
	for i, p := range a.network.config.Plugins {
		if a.isCallers(p.Network.Type) {
			continue // its rules are unknown
		}
		config, err := a.chain().Request(i, &a.Attachment)
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

// referenceBackend returns the backend that the reference plugins use if the
// configuration names none.
func referenceBackend() netfilter.Backend {
	if netfilter.Detect() == netfilter.DetectedIPTables {
		return netfilter.IPTables
	}
	return netfilter.NFTables
}

// fromCache returns the container's attachments in libcni's cache. It reads the cache
// once for each operation.
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
