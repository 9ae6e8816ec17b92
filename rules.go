package cni

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/sweep"
)

// rules are the firewall's rules of the attachment, as one item: they go in one
// transaction per packet filter.
func (f *footprint) rules(ctx context.Context) ([]sweep.Item, error) {
	if !f.Filtered {
		return nil, nil
	}
	target := f.rulesTarget()
	fw := netfilter.Open(f.Host, caller.Netfilter(ctx))
	plan, err := netfilter.Find(ctx, fw, target)
	if plan.Empty() || err != nil {
		return nil, err
	}
	// Whose the addresses are by now takes reading every record, so it is asked
	// only when something is left.
	if target.InUse, err = f.inUse(); err != nil {
		return nil, err
	}
	if plan, err = netfilter.Find(ctx, fw, target); plan.Empty() || err != nil {
		return nil, err
	}
	return []sweep.Item{rules{ctx, plan}}, nil
}

// rulesTarget is what the rules are looked for by.
func (f *footprint) rulesTarget() netfilter.Target {
	return netfilter.Target{
		Network: f.Network, ContainerID: f.ContainerID, IfName: f.IfName,
		Addresses: f.Addresses, Siblings: f.siblings.Addresses, Ports: f.hostPorts, Thorough: f.Thorough,
		Own: f.own, Kept: f.siblings.Rules, KeptUnknown: f.siblings.Unknown,
	}
}

// hostPorts reads the capability portMappings, of whatever type the caller or
// the record has it.
//
//	[{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"}]
func hostPorts(mappings any) ([]netfilter.HostPort, error) {
	data, err := json.Marshal(mappings)
	if err != nil {
		return nil, err
	}
	var wire []wirePort
	if err := json.Unmarshal(data, &wire); err != nil {
		return nil, err
	}
	var ports []netfilter.HostPort
	for _, w := range wire {
		p, err := PortMapping(w).wire()
		if err != nil {
			return nil, err
		}
		one := netfilter.HostPort{HostPort: uint16(p.HostPort), ContainerPort: uint16(p.ContainerPort), Protocol: p.Protocol}
		if p.HostIP != "" {
			one.HostIP = netip.MustParseAddr(p.HostIP) // it was parsed before
		}
		ports = append(ports, one)
	}
	return ports, nil
}

type rules struct {
	ctx  context.Context
	plan netfilter.Plan
}

func (r rules) String() string { return strings.TrimSuffix(r.plan.String(), "\n") }
func (r rules) Remove() error  { return r.plan.Apply(r.ctx) }

// inUse are the addresses that other containers on record have now. One that was
// made ahead of time, and is this one, can be on record still.
func (op *operation) inUse() ([]netip.Addr, error) {
	return op.inUseOf(func(*record.Network) bool { return true })
}

// inUseOf is inUse for the attachments for which counts returns true.
func (op *operation) inUseOf(counts func(*record.Network) bool) ([]netip.Addr, error) {
	found, err := op.records.List()
	if err != nil {
		return nil, err
	}
	var all []netip.Addr
	whole := true
	for _, f := range found {
		if id := f.Record.ContainerID; id != op.id && record.PluginID(id) != op.pluginID() {
			counted := &record.Record{Networks: slices.Clone(f.Record.Networks)}
			counted.Networks = slices.DeleteFunc(counted.Networks, func(n record.Network) bool { return !counts(&n) })
			all = append(all, addressesOf(counted, nil)...)
		}
		whole = whole && f.Err == nil
	}
	if whole {
		return all, nil
	}
	cached, err := op.cachedAddresses()
	return append(all, cached...), err
}

// cachedAddresses are the addresses of other containers in libcni's cache, which
// has those too whose records cannot be used.
func (op *operation) cachedAddresses() (all []netip.Addr, err error) {
	cached, err := chain.AllCached(op.stateDir, "")
	if err != nil {
		return nil, err
	}
	for _, c := range cached {
		if id := record.PluginID(c.ContainerID); id == record.PluginID(op.id) || id == op.pluginID() {
			continue
		}
		a := &attachment{op: op, network: &Network{config: &libcni.NetworkConfigList{Name: c.Network}, snapshot: op.snapshot}}
		a.ContainerID, a.IfName = c.ContainerID, c.IfName
		result := json.RawMessage(a.chain().CachedResult(&a.Attachment))
		all = append(all, addressesOf(&record.Record{Networks: []record.Network{{Result: result}}}, nil)...)
	}
	return all, nil
}

// addressesOf are the addresses of a container's attachments, without those by
// the interface names in except.
func addressesOf(rec *record.Record, except map[string]bool) []netip.Addr {
	var all []netip.Addr
	if rec == nil {
		return nil
	}
	for _, n := range rec.Networks {
		result := decodeResult(n.Result)
		if result == nil || n.State == record.Deleted || except[n.IfName] {
			continue
		}
		for _, ip := range result.IPs {
			if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
				all = append(all, addr.Unmap())
			}
		}
	}
	return all
}
