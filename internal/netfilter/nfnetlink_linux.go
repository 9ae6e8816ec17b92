package netfilter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// nfnetlink asks the kernel, in the network namespace of the calling thread.
//
// It speaks netlink itself, as google/nftables neither says which generation
// of the rules it lists, nor deletes under the condition that it is still that
// one, nor tells which message of a transaction the kernel has refused.
type nfnetlink struct{}

func (nfnetlink) list(ctx context.Context, table nftTable, chains []string) (content nftContent, err error) {
	err = withSocket(ctx, func(s *socket) error {
		content, err = s.list(ctx, table, chains)
		return err
	})
	if errors.Is(err, errNoNFTables) {
		return nftContent{}, nil
	}
	return content, err
}

func (nfnetlink) remove(ctx context.Context, generation uint32, objects []nftObject) error {
	return withSocket(ctx, func(s *socket) error { return s.remove(ctx, generation, objects) })
}

// errNoNFTables means that the kernel has no nf_tables, so that there are no
// rules in it.
var errNoNFTables = errors.New("the kernel has no nf_tables")

// A socket is a nftables for as long as it is open.
var _ nftables = (*socket)(nil)

func (s *socket) list(ctx context.Context, table nftTable, chains []string) (nftContent, error) {
	for range mostChanges {
		if ctx.Err() != nil {
			return nftContent{}, context.Cause(ctx)
		}
		before, err := s.generation()
		if err != nil {
			return nftContent{}, err
		}
		content := nftContent{generation: before}
		err = s.read(&content, table, chains)
		if err != nil && !errors.Is(err, errChanged) {
			return nftContent{}, err
		}
		// A dump takes several messages; rules can change between them.
		after, gerr := s.generation()
		if gerr != nil || err == nil && after == before {
			return content, gerr
		}
	}
	return nftContent{}, errChanged
}

func (s *socket) read(n *nftContent, table nftTable, chains []string) error {
	for _, name := range chains {
		ok, err := s.chainExists(table, name)
		if err != nil {
			return err
		}
		if ok {
			n.chains = append(n.chains, name)
		}
	}
	return s.rules(table, "", nil, func(r nftRule, _ []byte) { n.rules = append(n.rules, r) })
}

func (s *socket) chainExists(table nftTable, name string) (bool, error) {
	if len(name) >= unix.NFT_NAME_MAXLEN {
		return false, nil // the kernel would take it for an invalid message
	}
	b := appendString(nil, unix.NFTA_CHAIN_TABLE, table.name)
	b = appendString(b, unix.NFTA_CHAIN_NAME, name)
	answers, err := s.ask([]message{{typ: unix.NFT_MSG_GETCHAIN, family: table.family, attrs: b, object: text("chain " + table.String() + " " + name)}})
	if err != nil {
		return false, fmt.Errorf("look for chain %q: %w", name, err)
	}
	return answers[0] != nil, nil
}

func (s *socket) remove(ctx context.Context, generation uint32, objects []nftObject) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var msgs []message
	for _, o := range objects {
		msgs = append(msgs, o.deletion())
	}
	return s.transact(msgs, &generation)
}

func zeroTerminated(s string) []byte { return append([]byte(s), 0) }

// attributes returns those of a message of nf_tables.
func attributes(data []byte) (*netlink.AttributeDecoder, error) {
	const header = 4 // struct nfgenmsg
	if len(data) < header {
		return nil, errors.New("a message is too short")
	}
	ad, err := netlink.NewAttributeDecoder(data[header:])
	if err == nil {
		ad.ByteOrder = binary.BigEndian
	}
	return ad, err
}
