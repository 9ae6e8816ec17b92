package netfilter

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// scanRules calls fn for the rules of one chain, in their order, until fn
// returns false or there are no more. There are none in a chain that does not
// exist. It is for the network namespace of the calling thread.
//
// It has a socket of its own, as one that still has the rest of a list to give
// is of no more use. The kernel makes the list while it is read: who finds what
// he looks for at the beginning does not pay for the length of the chain.
func scanRules(ctx context.Context, table nftTable, chain string, fn func(rule []byte) (more bool, err error)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(chain) >= unix.NFT_NAME_MAXLEN {
		return nil
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("netlink socket: %w", err)
	}
	err = scan(fd, table, chain, fn)
	// Nothing was written that closing could lose.
	_ = unix.Close(fd)
	if err != nil {
		return fmt.Errorf("list the rules of chain %s of table %v: %w", chain, table, err)
	}
	return nil
}

func scan(fd int, table nftTable, chain string, fn func(rule []byte) (bool, error)) error {
	m := request(unix.NFT_MSG_GETRULE, table.family, netlink.Request|netlink.Dump,
		netlink.Attribute{Type: unix.NFTA_RULE_TABLE, Data: zeroTerminated(table.name)},
		netlink.Attribute{Type: unix.NFTA_RULE_CHAIN, Data: zeroTerminated(chain)})
	m.Header.Length = uint32(unix.NLMSG_HDRLEN + len(m.Data))
	data, err := m.MarshalBinary()
	if err != nil {
		return err
	}
	if err := unix.Sendto(fd, data, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	// The kernel fills as much as is asked for, up to 32 KiB at a time.
	buf := make([]byte, 32<<10)
	for {
		n, err := receive(fd, buf)
		if err != nil {
			return err
		}
		for part := buf[:n]; len(part) > 0; {
			head, body, rest, err := cutMessage(part)
			if err != nil {
				return err
			}
			part = rest
			switch head.Type {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				return messageError(body)
			}
			if head.Flags&unix.NLM_F_DUMP_INTR != 0 {
				return errChanged
			}
			more, err := fn(body)
			if err != nil || !more {
				return err
			}
		}
	}
}

// receive reads what the kernel has ready, which for a list is always
// something.
func receive(fd int, buf []byte) (int, error) {
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// cutMessage takes the first netlink message off data.
func cutMessage(data []byte) (head unix.NlMsghdr, body, rest []byte, err error) {
	if len(data) < unix.NLMSG_HDRLEN {
		return head, nil, nil, errors.New("a netlink message is too short")
	}
	head.Len = binary.NativeEndian.Uint32(data)
	head.Type = binary.NativeEndian.Uint16(data[4:])
	head.Flags = binary.NativeEndian.Uint16(data[6:])
	if head.Len < unix.NLMSG_HDRLEN || int(head.Len) > len(data) {
		return head, nil, nil, fmt.Errorf("a netlink message of %d bytes, of which there are %d", head.Len, len(data))
	}
	aligned := min((int(head.Len)+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(data))
	return head, data[unix.NLMSG_HDRLEN:head.Len], data[aligned:], nil
}

// messageError reads a message of an error. A table or a chain that is not
// there has no rules.
func messageError(body []byte) error {
	if len(body) < 4 {
		return errors.New("a netlink error is too short")
	}
	errno := unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
	if errno == 0 || errno == unix.ENOENT {
		return nil
	}
	return errno
}

// shape is a rule of nf_tables in words, but for its counter: one for each
// expression, which are compared whole.
type shape struct {
	chain   string
	handle  uint64
	words   []string
	jump    string // the chain that it jumps or goes to
	comment string // of the match comment
}

// text is what the rule does.
func (s shape) text() string { return strings.Join(s.words, ", ") }

// decodeShape reads a message about a rule.
func decodeShape(data []byte) (shape, error) {
	var s shape
	ad, err := attributes(data)
	if err != nil {
		return s, err
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_RULE_CHAIN:
			s.chain = ad.String()
		case unix.NFTA_RULE_HANDLE:
			s.handle = ad.Uint64()
		case unix.NFTA_RULE_EXPRESSIONS:
			ad.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(s.expression)
				}
				return nil
			})
		}
	}
	return s, ad.Err()
}

func (s *shape) expression(ad *netlink.AttributeDecoder) error {
	name := ""
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME:
			name = ad.String()
		case unix.NFTA_EXPR_DATA:
			data := ad.Bytes()
			if name == "counter" {
				return nil
			}
			s.words = append(s.words, name+" "+hex.EncodeToString(data))
			switch name {
			case "match":
				return s.match(data)
			case "immediate":
				return s.verdict(data)
			}
		}
	}
	return nil
}

// Of linux/netfilter/nf_tables.h: enum nft_match_attributes.
const (
	matchName = 1
	matchInfo = 3
)

// match reads a match of iptables.
func (s *shape) match(data []byte) error {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return err
	}
	name := ""
	for ad.Next() {
		switch ad.Type() {
		case matchName:
			name = ad.String()
		case matchInfo:
			if name == "comment" {
				s.comment, _, _ = strings.Cut(string(ad.Bytes()), "\x00")
			}
		}
	}
	return ad.Err()
}

// verdict reads where an expression "immediate" leads, if to a chain.
func (s *shape) verdict(data []byte) error {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return err
	}
	for ad.Next() {
		if ad.Type() != unix.NFTA_IMMEDIATE_DATA {
			continue
		}
		ad.Nested(func(value *netlink.AttributeDecoder) error {
			for value.Next() {
				if value.Type() != unix.NFTA_DATA_VERDICT {
					continue
				}
				value.Nested(func(verdict *netlink.AttributeDecoder) error {
					for verdict.Next() {
						if verdict.Type() == unix.NFTA_VERDICT_CHAIN {
							s.jump = verdict.String()
						}
					}
					return nil
				})
			}
			return nil
		})
	}
	return ad.Err()
}
