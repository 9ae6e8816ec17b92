// Package nft is a client of nf_tables over netlink: transactions, messages, the
// expressions of rules, and lists of rules and elements. It is Linux only, and
// has no notion of containers.
//
//	err := nft.Sockets{Pool: pool, NS: host}.Do(ctx, func(c *nft.Conn) error {
//		return c.Transact([]nft.Message{
//			nft.NewTable(table, "a comment"),
//			nft.NewChain(table, "forward", &hook, ""),
//			nft.NewRule(table, "forward", nft.Exprs(nil).Meta(key, nft.Reg(0)).In("isolated").Drop(), "a comment"),
//		}, nil)
//	})
//
// A transaction takes effect as a whole or not at all. With a generation, it
// takes effect only if no rule of the namespace has changed since. So a caller
// can list rules, decide, and delete exactly the rules that it has seen. An
// error names the object that the kernel refused.
package nft
