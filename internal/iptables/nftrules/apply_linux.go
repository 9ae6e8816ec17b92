package nftrules

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/nft"
)

// ErrMissing means that a rule to delete or to check does not exist.
var ErrMissing = errors.New("the rule is not there")

// Command is a line of iptables-restore.
//
//	-N, -X   create a chain, delete an empty one; without words
//	-A, -I   add a rule at the end of a chain, at its beginning
//	-C, -D   fail unless the rule exists, delete it once
//
// -C and -D are about the rules from before the commands.
type Command struct {
	Verb string
	Rule
}

func (c Command) String() string {
	text := fmt.Sprintf("-t %s %s %s", c.Table, c.Verb, c.Chain)
	if len(c.Words) > 0 {
		text += " " + iptables.JoinWords(c.Words)
	}
	return text
}

// Apply runs all of the commands in one transaction, or none. As iptables does, it
// creates the tables and built-in chains of new chains and rules. It fails with
//
//   - [ErrUnknown] if a command is of a form that only iptables knows,
//   - [ErrMissing] if a rule of -C or -D does not exist,
//   - an [*nft.Error] if the kernel refuses: EEXIST for a chain of -N that exists, ENOENT
//     for a jump to a chain that does not, EBUSY for a chain of -X that is not empty or
//     that a rule jumps to, EOPNOTSUPP if a built-in chain has another hook or priority
//     than iptables gives it.
//
// With -C or -D it holds for the rules at the time of the transaction: if others change
// rules after the look, it looks again.
func Apply(ctx context.Context, sockets nft.Sockets, family uint8, commands []Command) error {
	return sockets.Do(ctx, func(c *nft.Conn) error {
		return nft.UntilUnchanged(ctx, func() error { return apply(c, family, commands) })
	})
}

func apply(c *nft.Conn, family uint8, commands []Command) error {
	there, err := standing(c, family, commands)
	if err != nil {
		return err
	}
	err = applyTo(c, family, commands, maps.Clone(there))
	if errors.Is(err, unix.ENOENT) && len(there) > 0 { // somebody has deleted them meanwhile
		err = applyTo(c, family, commands, make(map[iptables.ChainID]bool))
	}
	return err
}

// standing returns the built-in chains that commands add rules to, and their tables, if
// they are there as iptables makes them. Sending them again would cost a grace period:
// the kernel takes it for a change of the chain, frees the old values later, and lets
// everybody wait for that who adds a rule with a match of iptables
// (nf_tables_trans_destroy_flush_work in net/netfilter). A chain that is deleted and
// made with another hook before the transaction gets the rule all the same, as it does
// from iptables.
func standing(c *nft.Conn, family uint8, commands []Command) (map[iptables.ChainID]bool, error) {
	var ids []iptables.ChainID
	var chains []nft.Chain
	for _, command := range commands {
		if command.adds() && hookOf(command.ChainID) != nil && !slices.Contains(ids, command.ChainID) {
			ids, chains = append(ids, command.ChainID), append(chains, nft.Chain{Table: command.Table, Name: command.Chain})
		}
	}
	there := make(map[iptables.ChainID]bool)
	if len(ids) == 0 {
		return there, nil
	}
	hooks, err := c.Hooks(family, chains...)
	for i, hook := range hooks {
		// The kernel refuses another one, and says why.
		if hook != nil && *hook == *hookOf(ids[i]) {
			there[ids[i]], there[iptables.ChainID{Table: ids[i].Table}] = true, true
		}
	}
	return there, err
}

// applyTo runs the commands in one transaction, which makes no table and built-in chain
// that is there.
func applyTo(c *nft.Conn, family uint8, commands []Command, there map[iptables.ChainID]bool) error {
	b := batch{family: family, made: there}
	var looked []Rule
	for _, command := range commands {
		if command.looks() {
			looked = append(looked, command.Rule)
		}
	}
	var generation *uint32
	if len(looked) > 0 {
		now, err := c.Generation()
		if err != nil {
			return err
		}
		if b.found, err = find(c, family, looked); err != nil {
			return err
		}
		generation = &now
		b.looked = looked
	}
	for _, command := range commands {
		if err := b.add(command); err != nil {
			return fmt.Errorf("%v: %w", command, err)
		}
	}
	if len(b.messages) == 0 {
		return nil
	}
	return c.Transact(b.messages, generation)
}

func (c Command) adds() bool { return c.Verb == "-A" || c.Verb == "-I" }

func (c Command) looks() bool { return c.Verb == "-C" || c.Verb == "-D" }

// builtIn is the names of built-in chains, of any table.
var builtIn = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// batch is the messages of one transaction.
type batch struct {
	family   uint8
	messages []nft.Message
	made     map[iptables.ChainID]bool // tables and built-in chains that are there or that it creates
	looked   []Rule
	found    []found // of the next of looked
}

func (b *batch) add(c Command) error {
	table := nft.Table{Family: b.family, Name: c.Table}
	if (c.Verb == "-N" || c.Verb == "-X") && slices.Contains(builtIn, c.Chain) {
		return ErrUnknown // iptables refuses; a chain of that name without a hook would be in its way
	}
	switch c.Verb {
	case "-N":
		if err := b.makeTable(c.Table); err != nil {
			return err
		}
		b.put(nft.NewChain(table, c.Chain, nil, "").Exclusive(), c)
	case "-X":
		b.put(nft.DeleteEmptyChain(table, c.Chain), c)
	case "-A", "-I":
		return b.addRule(table, c)
	case "-C", "-D":
		return b.addFound(c)
	default:
		return ErrUnknown
	}
	return nil
}

func (b *batch) put(m nft.Message, c Command) { b.messages = append(b.messages, m.About(c)) }

// addRule adds a rule, and before it the built-in chain that it goes to.
func (b *batch) addRule(table nft.Table, c Command) error {
	r, err := parse(b.family, c.Words)
	if err != nil {
		return err
	}
	if err := b.makeBuiltIn(c.ChainID); err != nil {
		return err
	}
	build := nft.NewRule
	if c.Verb == "-I" {
		build = nft.InsertRule
	}
	m := build(table, c.Chain, r.encode(b.family), "")
	if r.protocol != 0 {
		m = m.Compat(r.protocol)
	}
	b.put(m, c)
	return nil
}

// addFound checks for a rule that was looked for, or deletes it.
func (b *batch) addFound(c Command) error {
	f := b.found[0]
	same := b.looked[0]
	b.found, b.looked = b.found[1:], b.looked[1:]
	switch {
	case len(f.objects) == 0 && f.doubt:
		return ErrUnknown
	case len(f.objects) == 0:
		return ErrMissing
	case c.Verb == "-C":
		return nil
	}
	b.put(f.objects[0].Deletion(), c)
	// The next command to delete the same rule deletes its next copy.
	for i, r := range b.looked {
		if r.ChainID == same.ChainID && len(b.found[i].objects) > 0 && b.found[i].objects[0] == f.objects[0] {
			b.found[i].objects = b.found[i].objects[1:]
		}
	}
	return nil
}

// makeTable creates the table, which iptables knows, if it is missing.
func (b *batch) makeTable(name string) error {
	id := iptables.ChainID{Table: name}
	if name != "nat" && name != "filter" {
		return ErrUnknown
	}
	if !b.made[id] {
		b.made[id] = true
		b.messages = append(b.messages, nft.NewTable(nft.Table{Family: b.family, Name: name}, ""))
	}
	return nil
}

// makeBuiltIn creates the chain with its table if it is a missing built-in one, of those
// that the reference plugins have rules in. It sends
// no policy, so that an existing chain keeps its own, but the hook, with which the
// kernel compares that of an existing chain.
func (b *batch) makeBuiltIn(id iptables.ChainID) error {
	h := hookOf(id)
	if h == nil || b.made[id] {
		return nil
	}
	if err := b.makeTable(id.Table); err != nil {
		return err
	}
	b.made[id] = true
	b.messages = append(b.messages, nft.NewChain(nft.Table{Family: b.family, Name: id.Table}, id.Chain, h, ""))
	return nil
}

// hookOf returns the hook that iptables gives a built-in chain, or nil for another chain.
func hookOf(id iptables.ChainID) *nft.Hook {
	switch id {
	case iptables.ChainID{Table: "nat", Chain: "PREROUTING"}:
		return nft.DestinationNAT(unix.NF_INET_PRE_ROUTING)
	case iptables.ChainID{Table: "nat", Chain: "OUTPUT"}:
		return nft.DestinationNAT(unix.NF_INET_LOCAL_OUT)
	case iptables.ChainID{Table: "nat", Chain: "POSTROUTING"}:
		return nft.SourceNAT()
	case iptables.ChainID{Table: "filter", Chain: "FORWARD"}:
		return &nft.Hook{Type: "filter", Number: unix.NF_INET_FORWARD}
	}
	return nil
}
