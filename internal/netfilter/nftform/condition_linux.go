package nftform

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// condition is portmap's conditionsV4 or conditionsV6 in nft's syntax.
type condition struct {
	exprs  nft.Exprs
	values [][]byte // as in wantedRule
}

// errCondition is for a condition that is not understood here; nft may understand it.
var errCondition = errors.New(`want one or more of "ip saddr|daddr", "ip6 saddr|daddr", "iifname", "oifname", "meta mark", "tcp|udp|sctp sport|dport", each with an optional == or != and one value`)

// parseCondition reads the words of a condition, which may be in one string or
// in several.
//
//	ip saddr != 192.0.2.0/24 iifname "eth0"
func parseCondition(family uint8, parts []string) (condition, error) {
	var c condition
	words := strings.Fields(strings.Join(parts, " "))
	for len(words) > 0 {
		rest, err := c.match(family, words)
		if err != nil {
			return condition{}, fmt.Errorf("%q: %w", strings.Join(words, " "), err)
		}
		words = rest
	}
	return c, nil
}

// match reads one comparison, and returns the words behind it.
func (c *condition) match(family uint8, words []string) ([]string, error) {
	subject, n := words[0], 1
	switch words[0] {
	case "meta":
		if len(words) < 2 {
			return nil, errCondition
		}
		subject, n = words[1], 2
	case "ip", "ip6", "tcp", "udp", "sctp":
		if len(words) < 2 {
			return nil, errCondition
		}
		subject, n = words[0]+" "+words[1], 2
	}
	op := uint32(unix.NFT_CMP_EQ)
	if words = words[n:]; len(words) > 0 && (words[0] == "==" || words[0] == "!=") {
		if words[0] == "!=" {
			op = unix.NFT_CMP_NEQ
		}
		words = words[1:]
	}
	if len(words) == 0 {
		return nil, errCondition
	}
	value := strings.Trim(words[0], `"`)
	switch subject {
	case "ip saddr", "ip daddr", "ip6 saddr", "ip6 daddr":
		return words[1:], c.address(family, subject, op, value)
	case "iifname", "oifname":
		return words[1:], c.link(subject, op, value)
	case "mark":
		n, err := strconv.ParseUint(value, 0, 32)
		if err != nil {
			return nil, errCondition
		}
		c.exprs = c.exprs.Meta(unix.NFT_META_MARK, nft.Reg(0)).Compare(nft.Reg(0), op, nft.Native32(uint32(n)))
		c.values = append(c.values, nft.Native32(uint32(n)))
		return words[1:], nil
	}
	return words[1:], c.port(subject, op, value)
}

func (c *condition) address(family uint8, subject string, op uint32, value string) error {
	p, err := netip.ParsePrefix(value)
	if err != nil {
		addr, err := netip.ParseAddr(value)
		if err != nil {
			return errCondition
		}
		p = netip.PrefixFrom(addr, addr.BitLen())
	}
	v6 := strings.HasPrefix(subject, "ip6 ")
	if p.Addr().Is4() == v6 || p.Bits() == 0 || p.Addr().Zone() != "" {
		return errCondition
	}
	if nft.FamilyOf(p.Addr()) != family {
		return fmt.Errorf("%s is of the other family: %w", subject, errCondition)
	}
	offset := map[string]uint32{"ip saddr": 12, "ip daddr": 16, "ip6 saddr": 8, "ip6 daddr": 24}[subject]
	c.exprs = c.exprs.Within(offset, op, p)
	c.values = append(c.values, p.Masked().Addr().AsSlice()[:p.Bits()/8])
	return nil
}

func (c *condition) link(subject string, op uint32, value string) error {
	name, err := nft.InterfaceName(value)
	if err != nil {
		return err
	}
	if strings.ContainsAny(value, "*{}@\\") {
		return errCondition
	}
	key := uint32(unix.NFT_META_IIFNAME)
	if subject == "oifname" {
		key = unix.NFT_META_OIFNAME
	}
	c.exprs = c.exprs.Meta(key, nft.Reg(0)).Compare(nft.Reg(0), op, []byte(name))
	c.values = append(c.values, []byte(value))
	return nil
}

func (c *condition) port(subject string, op uint32, value string) error {
	protocol, side, _ := strings.Cut(subject, " ")
	number, err := fwrules.ProtocolNumber(protocol)
	if err != nil || side != "sport" && side != "dport" {
		return errCondition
	}
	port, err := strconv.ParseUint(value, 10, 16)
	if err != nil {
		return errCondition
	}
	offset := uint32(0)
	if side == "dport" {
		offset = 2
	}
	data := binary.BigEndian.AppendUint16(nil, uint16(port))
	c.exprs = c.exprs.Protocol(nft.Reg(0)).Equal([]byte{number}).
		Payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset, 2, nft.Reg(0)).Compare(nft.Reg(0), op, data)
	c.values = append(c.values, []byte{number}, data)
	return nil
}
