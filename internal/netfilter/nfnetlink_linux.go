package netfilter

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

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
		content, there, err := s.listChains(table, chains)
		if err != nil || !there {
			return content, err
		}
		err = s.rules(table, "", nil, func(r nftRule, _ []byte) { content.rules = append(content.rules, r) })
		if err != nil && !errors.Is(err, errChanged) {
			return nftContent{}, err
		}
		// A dump takes several messages; rules can change between them.
		after, gerr := s.generation()
		if gerr != nil || err == nil && after == content.generation {
			return content, gerr
		}
	}
	return nftContent{}, errChanged
}

// listChains returns the generation and which of the chains there are, and tells
// whether there is the table at all: mostly there is not, and nothing to list.
func (s *socket) listChains(table nftTable, chains []string) (content nftContent, there bool, err error) {
	msgs := []message{{
		typ: unix.NFT_MSG_GETTABLE, family: table.family, object: text("table " + table.String()),
		attrs: appendString(nil, unix.NFTA_TABLE_NAME, table.name),
	}}
	chains = slices.DeleteFunc(slices.Clone(chains), tooLong)
	for _, name := range chains {
		msgs = append(msgs, getChain(table, name))
	}
	generation, answers, err := s.generationAnd(msgs...)
	if err != nil {
		return nftContent{}, false, err
	}
	content.generation = generation
	for i, name := range chains {
		if answers[1+i] != nil {
			content.chains = append(content.chains, name)
		}
	}
	return content, answers[0] != nil, nil
}

// tooLong tells whether the kernel would take the name for an invalid message.
func tooLong(name string) bool { return len(name) >= unix.NFT_NAME_MAXLEN }

func getChain(table nftTable, name string) message {
	b := appendString(nil, unix.NFTA_CHAIN_TABLE, table.name)
	b = appendString(b, unix.NFTA_CHAIN_NAME, name)
	return message{typ: unix.NFT_MSG_GETCHAIN, family: table.family, attrs: b, object: text("chain " + table.String() + " " + name)}
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
