package nftrules

import (
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/nft"
)

// Where the addresses are in the header of a packet.
const (
	srcV4, dstV4 = 12, 16
	srcV6, dstV6 = 8, 24
)

// encode returns the expressions of the rule in the form that the documentation of the
// package describes.
func (r rule) encode(family uint8) nft.Exprs {
	src, dst := uint32(srcV4), uint32(dstV4)
	if family == nft.FamilyIPv6 {
		src, dst = srcV6, dstV6
	}
	e := r.in.compare(nil, unix.NFT_META_IIFNAME)
	e = r.out.compare(e, unix.NFT_META_OIFNAME)
	if r.protocol != 0 {
		e = e.Protocol(nft.Reg(0)).Equal([]byte{r.protocol})
	}
	e = r.src.compare(e, src)
	e = r.dst.compare(e, dst)
	for _, m := range r.matches {
		e = e.Match(m.name, m.revision, []byte(m.info))
	}
	e = e.Counter()
	if r.target.name != "" {
		return e.Target(r.target.name, r.target.revision, []byte(r.target.info))
	}
	return e.Verdict(r.verdict.code, r.verdict.chain)
}

func (d device) compare(e nft.Exprs, key uint32) nft.Exprs {
	if d.name == "" {
		return e
	}
	return e.Meta(key, nft.Reg(0)).Compare(nft.Reg(0), operator(d.not), append([]byte(d.name), 0))
}

func (n network) compare(e nft.Exprs, offset uint32) nft.Exprs {
	if !n.IsValid() {
		return e
	}
	addr := n.Addr().AsSlice()
	e = e.Payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, uint32(len(addr)), nft.Reg(0))
	if !n.IsSingleIP() {
		e = e.Mask(nft.Reg(0), nft.PrefixMask(n.Bits(), len(addr)))
	}
	return e.Compare(nft.Reg(0), operator(n.not), addr)
}

func operator(not bool) uint32 {
	if not {
		return unix.NFT_CMP_NEQ
	}
	return unix.NFT_CMP_EQ
}
