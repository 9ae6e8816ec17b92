package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Hooks returns, in order, the hooks of chains of a family: nil for one that is missing
// or has none. They lack the policy.
func (c *Conn) Hooks(family uint8, chains ...Chain) ([]*Hook, error) {
	msgs := make([]Message, len(chains))
	for i, chain := range chains {
		msgs[i] = getChain(Table{family, chain.Table}, chain.Name)
	}
	answers, err := c.ask(msgs)
	if err != nil {
		return nil, err
	}
	hooks := make([]*Hook, len(chains))
	for i, answer := range answers {
		if answer != nil {
			hooks[i] = readHook(body(answer))
		}
	}
	return hooks, nil
}

// readHook reads the attributes of a chain.
func readHook(chain []byte) *Hook {
	hook := attribute(chain, unix.NFTA_CHAIN_HOOK)
	number, priority := attribute(hook, unix.NFTA_HOOK_HOOKNUM), attribute(hook, unix.NFTA_HOOK_PRIORITY)
	if len(number) != 4 || len(priority) != 4 {
		return nil
	}
	return &Hook{
		Type:     unix.ByteSliceToString(attribute(chain, unix.NFTA_CHAIN_TYPE)),
		Number:   binary.BigEndian.Uint32(number),
		Priority: int32(binary.BigEndian.Uint32(priority)),
	}
}
