// Package nft speaks nf_tables over netlink: transactions, the messages that
// they consist of, the expressions of rules, and lists of rules and elements.
// It is Linux only, and knows nothing of containers.
//
//	err := pool.Do(host, func(c *nft.Conn) error {
//		return c.Transact([]nft.Message{
//			nft.NewTable(table, "a comment"),
//			nft.NewChain(table, "forward", &hook, ""),
//			nft.NewRule(table, "forward", nft.Exprs(nil).Meta(key, nft.Reg(0)).In("isolated").Drop(), "a comment"),
//		}, nil)
//	})
//
// A transaction takes effect as a whole or not at all. With a generation, it
// takes effect only if no rule of the namespace has changed since: so a caller
// lists rules, decides, and deletes what it has seen and nothing else. An error
// names the object that the kernel refused.
package nft
