package netfilter

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// belonging is what of one attachment is to be removed.
type belonging struct {
	target     Target
	masquerade bool // the chain CNI-<hash>
	hostPorts  bool // CNI-DN-<hash>, and CNI-SN-<hash> from before v0.7
	forward    []netip.Addr
}

// belongings sorts rules by attachment.
func belongings(r Rules) []*belonging {
	var all []*belonging
	of := func(o Owner) *belonging {
		for _, b := range all {
			if b.target.Network == o.Network && b.target.ContainerID == o.ContainerID && b.target.IfName == o.IfName {
				return b
			}
		}
		b := &belonging{target: Target{Network: o.Network, ContainerID: o.ContainerID, IfName: o.IfName}}
		all = append(all, b)
		return b
	}
	for _, m := range r.Masquerade {
		b := of(m.Owner)
		b.masquerade = true
		for _, p := range m.Addresses {
			b.target.Addresses = append(b.target.Addresses, p.Addr())
		}
	}
	for _, h := range r.HostPorts {
		b := of(h.Owner)
		b.hostPorts = true
		for _, p := range []netip.Prefix{h.V4, h.V6} {
			if p.IsValid() {
				b.target.Addresses = append(b.target.Addresses, p.Addr())
			}
		}
	}
	for _, f := range r.Forward {
		b := of(f.Owner)
		for _, a := range f.Addresses {
			b.forward = append(b.forward, a.Unmap())
		}
		b.target.Addresses = append(b.target.Addresses, f.Addresses...)
	}
	return all
}

// chains are the container's own chains among what is to be removed.
func (b *belonging) chains() []ownChain {
	own := ownChains(b.target.Network, b.target.ContainerID)
	var chains []ownChain
	if b.masquerade {
		chains = append(chains, own[0])
	}
	if b.hostPorts {
		chains = append(chains, own[1], own[2])
	}
	return chains
}

// entrance is the chain with the jumps to a chain of the container's own.
func entrance(chain string) string {
	switch {
	case strings.HasPrefix(chain, "CNI-DN-"):
		return chainHostPort
	case strings.HasPrefix(chain, "CNI-SN-"):
		return chainOldSNAT
	}
	return "POSTROUTING"
}

func (iptablesWriter) remove(ctx context.Context, r Rules) error {
	all := belongings(r)
	for _, b := range all {
		t, err := b.target.normal()
		if err != nil {
			return err
		}
		b.target = t
	}
	doubt, err := removeNFT(ctx, all)
	if err != nil {
		return err
	}
	var errs []error
	for _, b := range all {
		for _, family := range []string{"iptables", "ip6tables"} {
			if slices.Contains(doubt, b) {
				errs = append(errs, b.removeWith(ctx, xtables{family, false}))
			}
			errs = append(errs, b.removeWith(ctx, xtables{family, true}))
		}
	}
	return errors.Join(errs...)
}

// removeWith looks for all that is there of b with the tool, and deletes it.
func (b *belonging) removeWith(ctx context.Context, x xtables) error {
	var ids []chainID
	for _, c := range b.chains() {
		ids = append(ids, chainID{tableNAT, c.name})
	}
	if slices.ContainsFunc(b.forward, func(a netip.Addr) bool { return a.Is6() == x.v6() }) {
		ids = append(ids, chainID{tableFilter, chainForward})
	}
	if len(ids) == 0 {
		return nil
	}
	sets, err := load(ctx, x, ids)
	if err != nil {
		return err
	}
	var commands []command
	for _, set := range sets {
		switch set.table {
		case tableNAT:
			t := b.target
			t.Siblings = set.siblings(b)
			for _, c := range b.chains() {
				commands = append(commands, set.own(c, t)...)
			}
		case tableFilter:
			commands = append(commands, set.forwarding(Target{Addresses: b.forward})...)
		}
	}
	if len(commands) == 0 {
		return nil
	}
	return iptablesWork{x, commands}.apply(ctx)
}

// siblings are the addresses of the container's other interfaces on the same
// network, which share its chain. Of who has no known address all is removed.
func (s ruleset) siblings(b *belonging) []netip.Addr {
	var siblings []netip.Addr
	own := ownChains(b.target.Network, b.target.ContainerID)[0]
	if !b.masquerade || len(b.target.Addresses) == 0 {
		return nil
	}
	for _, r := range s.rules {
		if !r.jumpsTo(own.name) || !slices.Contains(r.comments(), own.comment) || len(r.args) < 2 || r.args[0] != "-s" {
			continue
		}
		if a, ok := single(r.args[1]); ok && !slices.Contains(b.target.Addresses, a) {
			siblings = append(siblings, a)
		}
	}
	return siblings
}

// removeNFT removes what is in the nf_tables variant over netlink, without a
// process, and all of it, of both families and of both tables, in one
// transaction: each would wait for a grace period of the kernel's. It returns
// those of which something is there that it is not sure of, and leaves them.
func removeNFT(ctx context.Context, all []*belonging) (doubt []*belonging, err error) {
	for range mostChanges {
		var objects []nftObject
		var before uint32
		doubt = nil
		err := dial(ctx, func(c *netlink.Conn) error {
			var err error
			if before, err = generation(c); err != nil {
				return err
			}
			for _, b := range all {
				found, sure, err := b.find(ctx, c)
				if err != nil {
					return err
				}
				if sure {
					objects = append(objects, found...)
				} else {
					doubt = append(doubt, b)
				}
			}
			return nil
		})
		if errors.Is(err, errNoNFTables) {
			return nil, nil
		}
		if errors.Is(err, errChanged) {
			continue
		}
		if err != nil || len(objects) == 0 {
			return doubt, err
		}
		err = nfnetlink{}.remove(ctx, before, inOrder(objects))
		switch {
		case err == nil:
			return doubt, nil
		case ctx.Err() != nil:
			return nil, err
		case errors.Is(err, errChanged):
			continue
		}
		// Most likely something else refers to one of the chains. What looks
		// for it with the tool deletes all but that, and says what it is.
		return all, nil
	}
	return nil, fmt.Errorf("nftables: delete: %w, %d times", errChanged, mostChanges)
}

// inOrder puts rules before chains, which they may jump to.
func inOrder(objects []nftObject) []nftObject {
	slices.SortStableFunc(objects, func(a, b nftObject) int {
		switch {
		case a.handle != 0 && b.handle == 0:
			return -1
		case a.handle == 0 && b.handle != 0:
			return 1
		}
		return 0
	})
	return objects
}

// find returns what there is of b in the nf_tables variant, and whether that is
// all of it and surely b's.
func (b *belonging) find(ctx context.Context, c *netlink.Conn) (objects []nftObject, sure bool, err error) {
	for _, family := range []uint8{familyIPv4, familyIPv6} {
		nat, filter := nftTable{family, tableNAT}, nftTable{family, tableFilter}
		for _, chain := range b.chains() {
			exists, err := chainExists(c, nat, chain.name)
			if err != nil {
				return nil, false, err
			}
			if !exists {
				continue
			}
			sure := true
			name := zeroTerminated(chain.name)
			err = scanRules(ctx, nat, entrance(chain.name), func(data []byte) (bool, error) {
				if !bytes.Contains(data, name) {
					return true, nil // most are others', and to decode them would take the longest
				}
				s, err := decodeShape(data)
				if err != nil || s.jump != chain.name {
					return true, err
				}
				objects = append(objects, nftObject{nat, s.chain, s.handle, s.comment})
				sure = sure && s.comment == chain.comment && b.owns(family, chain, s)
				return sure, nil
			})
			if err != nil || !sure {
				return nil, false, err
			}
			objects = append(objects, nftObject{table: nat, chain: chain.name})
		}
		found, sure, err := b.findForward(ctx, filter)
		if err != nil || !sure {
			return nil, false, err
		}
		objects = append(objects, found...)
	}
	return objects, true, nil
}

// owns reports whether a jump to the chain of the masquerading is from one of
// the attachment's addresses; the chain can be that of another interface too.
func (b *belonging) owns(family uint8, chain ownChain, s shape) bool {
	if entrance(chain.name) != "POSTROUTING" || len(b.target.Addresses) == 0 {
		return true
	}
	return slices.ContainsFunc(b.target.Addresses, func(a netip.Addr) bool {
		return a.Is6() == (family == familyIPv6) && strings.HasPrefix(s.text(), comparison(a, true)+", ")
	})
}

// findForward returns the rules of CNI-FORWARD for the attachment's addresses.
func (b *belonging) findForward(ctx context.Context, table nftTable) (objects []nftObject, sure bool, err error) {
	exact := make(map[string]bool)
	var raw [][]byte
	for _, a := range b.forward {
		if a.Is6() != (table.family == familyIPv6) {
			continue
		}
		raw = append(raw, a.AsSlice())
		exact[comparison(a, true)+", "+acceptance()] = true
		exact[comparison(a, false)+", "+tracked()+", "+acceptance()] = true
	}
	if len(raw) == 0 {
		return nil, true, nil
	}
	sure = true
	err = scanRules(ctx, table, chainForward, func(data []byte) (bool, error) {
		if !slices.ContainsFunc(raw, func(a []byte) bool { return bytes.Contains(data, a) }) {
			return true, nil
		}
		s, err := decodeShape(data)
		if err != nil {
			return false, err
		}
		// Another rule may be one of another version of iptables.
		sure = exact[s.text()]
		objects = append(objects, nftObject{table, s.chain, s.handle, s.comment})
		return sure, nil
	})
	return objects, sure && err == nil, err
}

// comparison is what "-s" or "-d" and an address are in nf_tables.
func comparison(a netip.Addr, source bool) string {
	offset, length := uint32(12), uint32(4) // of struct iphdr
	if a.Is6() {
		offset, length = 8, 16 // of struct ipv6hdr
	}
	if !source {
		offset += length
	}
	u32 := func(typ uint16, v uint32) netlink.Attribute {
		return netlink.Attribute{Type: typ, Data: binary.BigEndian.AppendUint32(nil, v)}
	}
	load := marshal([]netlink.Attribute{
		u32(unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1), u32(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER),
		u32(unix.NFTA_PAYLOAD_OFFSET, offset), u32(unix.NFTA_PAYLOAD_LEN, length),
	})
	compare := marshal([]netlink.Attribute{
		u32(unix.NFTA_CMP_SREG, unix.NFT_REG_1), u32(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ),
		{Type: unix.NFTA_CMP_DATA, Data: marshal([]netlink.Attribute{{Type: unix.NFTA_DATA_VALUE, Data: a.AsSlice()}})},
	})
	return "payload " + hex.EncodeToString(load) + ", cmp " + hex.EncodeToString(compare)
}

// acceptance is what "-j ACCEPT" is in nf_tables.
func acceptance() string {
	const accept = 1 // NF_ACCEPT
	verdict := marshal([]netlink.Attribute{{Type: unix.NFTA_VERDICT_CODE, Data: binary.BigEndian.AppendUint32(nil, accept)}})
	return "immediate " + hex.EncodeToString(marshal([]netlink.Attribute{
		{Type: unix.NFTA_IMMEDIATE_DREG, Data: binary.BigEndian.AppendUint32(nil, unix.NFT_REG_VERDICT)},
		{Type: unix.NFTA_IMMEDIATE_DATA, Data: marshal([]netlink.Attribute{{Type: unix.NFTA_DATA_VERDICT, Data: verdict}})},
	}))
}

// tracked is what "-m conntrack --ctstate RELATED,ESTABLISHED" is in nf_tables:
// the third revision of the match, whose struct xt_conntrack_mtinfo3 says that
// the state is to be looked at, and which.
func tracked() string {
	const size, flags, states = 168, 146, 150 // of the struct, and where its fields are
	info := make([]byte, size)
	binary.NativeEndian.PutUint16(info[flags:], 1)          // XT_CONNTRACK_STATE
	binary.NativeEndian.PutUint16(info[states:], 1<<1|1<<2) // IP_CT_ESTABLISHED, IP_CT_RELATED
	return "match " + hex.EncodeToString(marshal([]netlink.Attribute{
		{Type: matchName, Data: zeroTerminated("conntrack")},
		{Type: 2, Data: binary.BigEndian.AppendUint32(nil, 3)}, // NFTA_MATCH_REV
		{Type: matchInfo, Data: info},
	}))
}
