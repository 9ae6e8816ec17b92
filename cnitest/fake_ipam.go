package cnitest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// fakeIPAM has the addresses of all networks.
type fakeIPAM struct {
	held map[string]map[netip.Addr]bool // by network
	last map[string]netip.Addr          // that was reserved, by network and set of ranges
}

func newFakeIPAM() fakeIPAM {
	return fakeIPAM{held: map[string]map[netip.Addr]bool{}, last: map[string]netip.Addr{}}
}

// fakePlugin is a plugin's configuration.
type fakePlugin struct {
	Type             string          `json:"type"`
	Bridge           string          `json:"bridge"`
	IsDefaultGateway bool            `json:"isDefaultGateway"`
	DNS              types.DNS       `json:"dns"`
	Capabilities     map[string]bool `json:"capabilities"`
	IPAM             struct {
		Type       string         `json:"type"`
		Subnet     string         `json:"subnet"`
		RangeStart string         `json:"rangeStart"`
		RangeEnd   string         `json:"rangeEnd"`
		Gateway    string         `json:"gateway"`
		Ranges     [][]fakeRange  `json:"ranges"`
		Addresses  []fakeAddress  `json:"addresses"`
		Routes     []*types.Route `json:"routes"`
		DNS        types.DNS      `json:"dns"`
	} `json:"ipam"`
}

type fakeRange struct {
	Subnet     string `json:"subnet"`
	RangeStart string `json:"rangeStart"`
	RangeEnd   string `json:"rangeEnd"`
	Gateway    string `json:"gateway"`
}

type fakeAddress struct {
	Address string `json:"address"`
	Gateway string `json:"gateway"`
}

// otherIPAM is the subnet of IPAM plugins that are neither host-local nor static.
const otherIPAM = "192.0.2.0/24"

// span is a range of addresses to allocate from.
type span struct {
	subnet      netip.Prefix
	first, last netip.Addr
	gateway     netip.Addr
}

// reserved is an address that a container has.
type reserved struct {
	prefix  netip.Prefix
	gateway netip.Addr
}

// wantedIPs returns the addresses that a call asks for.
func (a *fakeAttachment) wantedIPs(p fakePlugin) ([]netip.Addr, error) {
	var texts []string
	if p.Capabilities["ips"] {
		if err := decode(a.Capabilities["ips"], &texts); err != nil {
			return nil, err
		}
	}
	var more []string
	if err := decode(a.ConfigArgs["ips"], &more); err != nil {
		return nil, err
	}
	texts = append(texts, more...)
	if ip := a.Args["IP"]; ip != "" {
		texts = append(texts, ip)
	}
	var all []netip.Addr
	for _, text := range texts {
		text, _, _ = strings.Cut(text, "/")
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, err
		}
		all = append(all, addr)
	}
	return all, nil
}

func decode(data json.RawMessage, into any) error {
	if len(data) == 0 {
		return nil
	}
	return json.Unmarshal(data, into)
}

// allocate reserves the addresses of an attachment. With an error it has reserved none.
func (i *fakeIPAM) allocate(a *fakeAttachment, p fakePlugin) (all []reserved, err error) {
	defer func() {
		if err != nil {
			i.release(a.Network, all)
			all = nil
		}
	}()
	if p.IPAM.Type == "static" {
		return p.static()
	}
	sets, err := p.sets(a.Capabilities["ipRanges"])
	if err != nil {
		return nil, err
	}
	wanted, err := a.wantedIPs(p)
	if err != nil {
		return nil, err
	}
	for n, set := range sets {
		got, err := i.next(a.Network, n, set, &wanted)
		if err != nil {
			return all, err
		}
		all = append(all, got)
	}
	if len(wanted) > 0 {
		return all, fmt.Errorf("failed to allocate all requested IPs: %v", wanted)
	}
	return all, nil
}

// next reserves an address of a set: the wanted one, or the next after the last.
func (i *fakeIPAM) next(network string, n int, set []span, wanted *[]netip.Addr) (reserved, error) {
	held := i.held[network]
	if held == nil {
		held = map[netip.Addr]bool{}
		i.held[network] = held
	}
	for w, addr := range *wanted {
		at := slices.IndexFunc(set, func(s span) bool { return s.subnet.Contains(addr) })
		if at < 0 {
			continue
		}
		if held[addr] || addr == set[at].gateway {
			return reserved{}, fmt.Errorf("requested IP address %v is not available in range set %v", addr, set[at].subnet)
		}
		*wanted = slices.Delete(slices.Clone(*wanted), w, w+1)
		held[addr] = true
		return reserved{netip.PrefixFrom(addr, set[at].subnet.Bits()), set[at].gateway}, nil
	}
	key := fmt.Sprint(network, "/", n)
	for _, after := range []netip.Addr{i.last[key], {}} {
		for s, in := range set {
			addr := in.first
			if after.IsValid() {
				if at := slices.IndexFunc(set, func(s span) bool { return s.subnet.Contains(after) }); s < at {
					continue
				} else if s == at {
					addr = after.Next()
				}
			}
			for ; addr.IsValid() && addr.Compare(in.last) <= 0; addr = addr.Next() {
				if !held[addr] && addr != in.gateway {
					held[addr], i.last[key] = true, addr
					return reserved{netip.PrefixFrom(addr, in.subnet.Bits()), in.gateway}, nil
				}
			}
		}
	}
	return reserved{}, fmt.Errorf("no IP addresses available in range set: %v-%v", set[0].first, set[len(set)-1].last)
}

func (i *fakeIPAM) release(network string, all []reserved) {
	for _, r := range all {
		delete(i.held[network], r.prefix.Addr())
	}
}

func (p fakePlugin) static() (all []reserved, err error) {
	for _, a := range p.IPAM.Addresses {
		prefix, err := netip.ParsePrefix(a.Address)
		if err != nil {
			return nil, err
		}
		gateway, _ := netip.ParseAddr(a.Gateway) // there may be none
		all = append(all, reserved{prefix, gateway})
	}
	return all, nil
}

// sets returns the sets of ranges, of each of which a container gets one address.
func (p fakePlugin) sets(capability json.RawMessage) (sets [][]span, err error) {
	var all [][]fakeRange
	if p.Capabilities["ipRanges"] {
		if err := decode(capability, &all); err != nil {
			return nil, err
		}
	}
	if p.IPAM.Type != "host-local" {
		all = append(all, []fakeRange{{Subnet: otherIPAM}})
	} else if all = append(all, p.IPAM.Ranges...); p.IPAM.Subnet != "" {
		all = append(all, []fakeRange{{p.IPAM.Subnet, p.IPAM.RangeStart, p.IPAM.RangeEnd, p.IPAM.Gateway}})
	}
	for _, ranges := range all {
		var set []span
		for _, r := range ranges {
			s, err := r.span()
			if err != nil {
				return nil, err
			}
			set = append(set, s)
		}
		if len(set) > 0 {
			sets = append(sets, set)
		}
	}
	if len(sets) == 0 {
		return nil, fmt.Errorf("no IP ranges specified")
	}
	return sets, nil
}

func (r fakeRange) span() (s span, err error) {
	if s.subnet, err = netip.ParsePrefix(r.Subnet); err != nil {
		return s, err
	}
	s.subnet = s.subnet.Masked()
	s.first, s.last = s.subnet.Addr().Next(), lastOf(s.subnet)
	s.gateway = s.first
	for _, set := range []struct {
		text string
		into *netip.Addr
	}{{r.RangeStart, &s.first}, {r.RangeEnd, &s.last}, {r.Gateway, &s.gateway}} {
		if set.text == "" {
			continue
		}
		if *set.into, err = netip.ParseAddr(set.text); err != nil {
			return s, err
		}
	}
	return s, nil
}

// lastOf returns the last address of a subnet that a container can have.
func lastOf(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ := netip.AddrFromSlice(bytes) // of the length of an address
	if p.Addr().Is4() {
		last = last.Prev() // the broadcast address
	}
	return last
}
