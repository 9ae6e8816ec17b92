package cnitest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni"
)

// Lookup is Runtime.Lookup of package cni.
func (f *Fake) Lookup(id string) (_ *cni.Result, err error) {
	defer f.record(FakeCall{Method: "Lookup", ContainerID: id}, &err)
	if err := validID(id); err != nil {
		return nil, err
	}
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	return f.lookup(id)
}

// lookup returns the result of a container. The host is locked.
func (f *Fake) lookup(id string) (*cni.Result, error) {
	var all []*fakeAttachment
	if c := f.h.containers[id]; c != nil {
		for _, a := range c.attachments {
			if a.progress != fakePlanned && a.result != nil {
				all = append(all, a)
			}
		}
	}
	if all == nil {
		return nil, fmt.Errorf("container %s is %w", id, cni.ErrNotAttached)
	}
	plan, err := f.lax.Plan(id, "")
	if err != nil {
		return nil, err
	}
	plan.Attachments = nil
	for _, a := range all {
		plan.Attachments = append(plan.Attachments, a.PlannedAttachment)
	}
	return f.resultOf(plan, all)
}

// LookupAddr is Runtime.LookupAddr of package cni.
func (f *Fake) LookupAddr(addr netip.Addr) (found []cni.Attachment, err error) {
	defer f.record(FakeCall{Method: "LookupAddr"}, &err)
	wanted := addr.WithZone("").Unmap()
	if !wanted.IsValid() || wanted.IsLoopback() || wanted.IsUnspecified() || wanted.IsMulticast() {
		return nil, fmt.Errorf("look up address %v: it does not belong to one container: %w", addr, cni.ErrInvalidArgument)
	}
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	all, err := f.h.public()
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		if slices.ContainsFunc(a.Addresses, func(has cni.Address) bool { return has.IP() == wanted }) {
			found = append(found, a)
		}
	}
	if found == nil {
		return nil, fmt.Errorf("look up address %v: %w", addr, cni.ErrNotAttached)
	}
	return found, nil
}

// SetAddresses changes the addresses that a container's interface on a network has, as
// SLAAC and DHCP do later. Refresh returns them. The error is ErrNotAttached if the
// container is not attached to the network.
func (f *Fake) SetAddresses(id, network string, now ...cni.Address) error {
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	a := f.h.containers[id].find(func(a *fakeAttachment) bool { return a.Network == network && a.link })
	if a == nil {
		return fmt.Errorf("container %s on network %q: %w", id, network, cni.ErrNotAttached)
	}
	changed, err := a.with(now)
	if err == nil {
		a.now = changed
	}
	return err
}

// with returns the result with other addresses of the container's interface.
func (a *fakeAttachment) with(now []cni.Address) ([]byte, error) {
	var r types100.Result
	if err := json.Unmarshal(a.result, &r); err != nil {
		return nil, err
	}
	inside := slices.IndexFunc(r.Interfaces, func(i *types100.Interface) bool { return i.Name == a.IfName && i.Sandbox != "" })
	r.IPs = slices.DeleteFunc(r.IPs, func(ip *types100.IPConfig) bool { return ip.Interface != nil && *ip.Interface == inside })
	for _, addr := range now {
		if !addr.IsValid() {
			return nil, fmt.Errorf("an address without a value: %w", cni.ErrInvalidArgument)
		}
		ip := &types100.IPConfig{Interface: types100.Int(inside), Address: ipNet(addr.Prefix)}
		if addr.Gateway.IsValid() {
			ip.Gateway = addr.Gateway.AsSlice()
		}
		r.IPs = append(r.IPs, ip)
	}
	return json.Marshal(&r)
}

// maxMetadata limits the metadata of an attachment, as package cni does.
const maxMetadata = 4096

// SetMetadata is Runtime.SetMetadata of package cni.
func (f *Fake) SetMetadata(ctx context.Context, id string, values map[string]string) (err error) {
	defer f.record(FakeCall{Method: "SetMetadata", ContainerID: id}, &err)
	if err := f.setMetadata(ctx, id, values); err != nil {
		return fmt.Errorf("set metadata of container %q: %w", id, err)
	}
	return nil
}

func (f *Fake) setMetadata(ctx context.Context, id string, values map[string]string) error {
	if err := validID(id); err != nil {
		return err
	}
	unlock, err := f.h.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	me := f.me()
	mine, _ := f.h.recorded(id, func(a *fakeAttachment) bool { return a.owner == me && a.progress != fakePlanned })
	if len(mine) == 0 {
		return cni.ErrNotAttached
	}
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	merged := make([]map[string]string, len(mine))
	for i, a := range mine {
		if merged[i], err = withMetadata(a.Metadata, values); err != nil {
			return err
		}
	}
	for i, a := range mine {
		a.Metadata = merged[i]
	}
	f.h.containers[id].changes++
	return nil
}

// withMetadata returns metadata with more values, unless they are none of an attachment.
func withMetadata(has, more map[string]string) (map[string]string, error) {
	all := map[string]string{}
	maps.Copy(all, has)
	maps.Copy(all, more)
	size := 0
	for k, v := range all {
		if k == "" {
			return nil, fmt.Errorf("metadata with an empty key: %w", cni.ErrInvalidArgument)
		}
		size += len(k) + len(v)
	}
	if size > maxMetadata {
		return nil, fmt.Errorf("metadata of %d bytes, %d are allowed: %w", size, maxMetadata, cni.ErrInvalidArgument)
	}
	return all, nil
}

// Refresh is Runtime.Refresh of package cni. The addresses are those of SetAddresses.
func (f *Fake) Refresh(ctx context.Context, id string, o cni.RefreshOptions) (_ *cni.Result, err error) {
	defer f.record(FakeCall{Method: "Refresh", ContainerID: id}, &err)
	result, err := f.refresh(ctx, id, o)
	if err != nil {
		return nil, fmt.Errorf("refresh container %q: %w", id, err)
	}
	return result, nil
}

func (f *Fake) refresh(ctx context.Context, id string, o cni.RefreshOptions) (*cni.Result, error) {
	all, unlock, err := f.h.lockAttached(ctx, id)
	if errors.Is(err, errGone) {
		err = fmt.Errorf("%w: %w", err, cni.ErrNotAttached)
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	noted := map[*fakeAttachment][]byte{}
	for _, a := range all {
		if noted[a] = a.noted; a.now != nil {
			a.noted = a.now
		}
	}
	result, err := f.lookup(id)
	if o.Note && err == nil {
		f.h.containers[id].changes++
		return result, nil
	}
	for _, a := range all {
		a.noted = noted[a]
	}
	return result, err
}

// Attachments is Runtime.Attachments of package cni, in the order of the IDs.
func (f *Fake) Attachments() (all []cni.Attachment, err error) {
	defer f.record(FakeCall{Method: "Attachments"}, &err)
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	return f.h.public()
}

// AttachmentsOf is Runtime.AttachmentsOf of package cni.
func (f *Fake) AttachmentsOf(id string) (all []cni.Attachment, err error) {
	defer f.record(FakeCall{Method: "AttachmentsOf", ContainerID: id}, &err)
	if err := validID(id); err != nil {
		return nil, err
	}
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	all, err = f.h.public()
	return slices.DeleteFunc(all, func(a cni.Attachment) bool { return a.ContainerID != id }), err
}

// public returns all attachments on record.
func (h *fakeHost) public() (all []cni.Attachment, err error) {
	for _, id := range slices.Sorted(maps.Keys(h.containers)) {
		c := h.containers[id]
		for _, a := range c.attachments {
			one, err := a.public(c)
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		}
	}
	return all, nil
}

func (a *fakeAttachment) public(c *fakeContainer) (cni.Attachment, error) {
	p := cni.Attachment{
		ContainerID: c.id, Network: a.Network, IfName: a.IfName, NetNS: c.netns, Owner: a.owner, Since: c.since, State: a.state(),
		Args: maps.Clone(a.Args), Metadata: maps.Clone(a.Metadata), Plugins: map[string]cni.PluginKind{},
		Requested: slices.Clone(a.Requested), Failures: a.failures, LastTry: a.lastTry, LastError: a.lastError,
	}
	for _, typ := range a.plugins() {
		p.Plugins[typ] = cni.PluginBuiltIn
	}
	if err := a.wantedPorts(&p.Ports); err != nil || a.result == nil {
		return p, err
	}
	var r types100.Result
	if err := json.Unmarshal(a.shown(), &r); err != nil {
		return p, err
	}
	p.Addresses = addressesIn(&r)
	return p, nil
}

// addressesIn returns the addresses in a result.
func addressesIn(r *types100.Result) (all []cni.Address) {
	for _, ip := range r.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		bits, _ := ip.Address.Mask.Size()
		one := cni.Address{Prefix: netip.PrefixFrom(addr.Unmap(), bits)}
		if gateway, ok := netip.AddrFromSlice(ip.Gateway); ok {
			one.Gateway = gateway.Unmap()
		}
		all = append(all, one)
	}
	return all
}

// wantedPorts are the ports that the Setup asked for.
func (a *fakeAttachment) wantedPorts(all *[]cni.PortMapping) error {
	return decode(a.Capabilities["portMappings"], all)
}

// Gateways is Runtime.Gateways of package cni.
func (f *Fake) Gateways(network string) ([]cni.Gateway, error) { return f.conf.Gateways(network) }

// Watch is Runtime.Watch of package cni. It follows real files.
func (f *Fake) Watch(ctx context.Context, o cni.WatchOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		ended <- f.lax.Watch(ctx, cni.WatchOptions{Settle: o.Settle})
	}()
	err := f.conf.Watch(ctx, o)
	cancel()
	return errors.Join(err, <-ended)
}
