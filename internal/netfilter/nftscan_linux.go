package netfilter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// rulesOf is the message that asks for the rules of one chain.
func rulesOf(table nftTable, chain string) message {
	b := appendString(nil, unix.NFTA_RULE_TABLE, table.name)
	b = appendString(b, unix.NFTA_RULE_CHAIN, chain)
	return message{
		typ: unix.NFT_MSG_GETRULE, family: table.family, attrs: b,
		object: text("rules of chain " + table.String() + " " + chain),
	}
}

// steadily calls fn, which lists rules, again for as long as others change them
// meanwhile.
func steadily(ctx context.Context, fn func() error) error {
	for range mostChanges {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := fn(); !errors.Is(err, errChanged) {
			return err
		}
	}
	return fmt.Errorf("nftables: list the rules: %w, %d times", errChanged, mostChanges)
}

// errEnough is what fn of scanRules returns to see no more rules.
var errEnough = errors.New("that is enough")

// scanRules calls fn for the rules of one chain, in their order, until it
// returns an error. The kernel makes the list while it is read: who finds what
// he looks for at the beginning does not pay for the length of the chain. It is
// for the network namespace of the calling thread.
//
// It has a socket of its own, as one that still has the rest of a list to give
// is of no more use.
func scanRules(ctx context.Context, table nftTable, chain string, fn func(rule []byte) error) error {
	err := withSocket(ctx, func(s *socket) error {
		m := rulesOf(table, chain)
		m.flags |= unix.NLM_F_DUMP
		s.sequence++
		s.out = m.appendTo(s.out[:0], s.sequence)
		if err := s.send(); err != nil {
			return err
		}
		var failed error
		err := s.receive(func(h header, data []byte) bool {
			if h.flags&unix.NLM_F_DUMP_INTR != 0 {
				failed = errChanged // what is looked for may have been passed over
				return true
			}
			if h.typ != unix.NLMSG_ERROR && h.typ != unix.NLMSG_DONE {
				failed = fn(data)
				return failed != nil
			}
			// What does not exist has no rules.
			if n := int32(0); len(data) >= 4 {
				n = int32(binary.NativeEndian.Uint32(data))
				if n < 0 && unix.Errno(-n) != unix.ENOENT {
					failed = &refusal{m.object, unix.Errno(-n)}
				}
			}
			return true
		})
		return errors.Join(err, failed)
	})
	if errors.Is(err, errEnough) || errors.Is(err, errNoNFTables) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the rules of chain %s of table %v: %w", chain, table, err)
	}
	return nil
}
